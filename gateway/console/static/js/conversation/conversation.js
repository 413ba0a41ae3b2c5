/** A session as a conversation: its header, its items, what waits for the user, and the composer. */

import { AAP, api } from "../api.js";
import { lazy } from "../lazy.js";
import { useObservable } from "../observable.js";
import { html, useCallback, useEffect, useMemo, useRef, useState } from "../preact.js";
import { navigate, route, sessionPath } from "../router.js";
import { folderOf, fork, useSession } from "../sessions.js";
import { useShortcuts } from "../shortcuts.js";
import { Button, Empty, Icon, IconButton, Spinner, toast } from "../ui/index.js";
import { ConversationHeader } from "./header.js";
import { Item, estimate } from "./items.js";
import { ConversationLog } from "./log.js";
import { removeOutgoing, retryOutgoing, sendTurn, useOutgoing } from "./outgoing.js";
import { Picture } from "./output.js";
import { Queue, useQueue } from "./queue.js";
import { visibleText } from "./safe-text.js";
import { stateOfCall } from "./tool-card.js";
import { imagesOf } from "./timeline.js";
import { VirtualList } from "./virtual-list.js";

const Approvals = lazy(() => import("../approvals/approvals.js"), "Approvals", { waiting: null });
const Composer = lazy(() => import("../composer/composer.js"), "Composer", { waiting: null });

/** How long a session may be idle while its last turn has no end before the turn counts as cut off. Milliseconds. */
const CUT_OFF = 5000;
const IDLE = { busy: false, retry: false };
const BUSY = { busy: true, retry: false };
const RETRY = { busy: false, retry: true };

function useLog(sessionId) {
  const [log, setLog] = useState(null);
  useEffect(() => {
    const opened = new ConversationLog(sessionId);
    setLog(opened);
    opened.open();
    return () => opened.close();
  }, [sessionId]);
  return log;
}

/** The messages of this window that neither the log nor the queue has yet. */
function Outgoing({ sessionId, queue }) {
  const sent = useOutgoing(sessionId);
  // A message that found a run of another client is in the queue. One in an idle session is about to begin its turn: the agent starts.
  const queued = new Set((queue?.messages ?? []).map((one) => JSON.stringify(one.message.content)));
  const entries = sent.filter((entry) => entry.when !== "queue" || entry.state === "failed" || !queued.has(JSON.stringify(entry.message.content)));
  return html`${entries.map((entry) => {
      const content = entry.message.content;
      const text = typeof content === "string" ? content : content.filter((block) => block.type === "text").map((block) => block.text).join("");
      const word = entry.state === "failed" ? "Not sent" : entry.when === "steer" ? "Sending to the agent at work…" : "Sending…";
      return html`<article class=${`talk-prompt outgoing ${entry.state}`} key=${entry.id} aria-label=${`Your message: ${word}`}>
        <div class="prompt-text" dir="auto">${visibleText(text.slice(0, 4000))}</div>
        ${imagesOf(content).map((url, at) => html`<${Picture} key=${at} url=${url} alt=${`Image ${at + 1} of your message`} />`)}
        <p class="prompt-note"><${Icon} name=${entry.state === "failed" ? "error" : entry.when === "steer" ? "steer" : "clock"} size=${14} /> ${word}${entry.error ? `: ${entry.error}` : ""}</p>
        ${entry.state === "failed" &&
        html`<div class="edit-actions">
          <${Button} small icon="refresh" onClick=${() => retryOutgoing(entry.id)}>Retry</${Button}>
          <${Button} small icon="close" onClick=${() => removeOutgoing(entry.id)}>Remove</${Button}>
        </div>`}
      </article>`;
    })}`;
}

/** What happens, for screen readers: ends of answers and what waits, not each delta. */
function useAnnouncement(items, live) {
  const [text, setText] = useState("");
  const seen = useRef(null);
  useEffect(() => {
    if (!live) return;
    const last = items[items.length - 1];
    const waiting = items.slice(-20).filter((item) => item.type === "tool" && item.state === "waiting");
    const state = `${last?.key}:${last?.type === "end"}:${waiting.map((item) => item.id).join()}`;
    const first = seen.current === null;
    if (seen.current === state) return;
    seen.current = state;
    if (first) return;
    if (waiting.length) setText(waiting.map((item) => `${item.name}: ${stateOfCall(item).word}.`).join(" "));
    else if (last?.type === "end") {
      const answer = items.slice(-10).filter((item) => item.type === "text").pop();
      setText(last.stopReason === "error" ? "The turn ended with an error." : last.stopReason === "cancelled" ? "Cancelled." : `Answer: ${(answer?.text ?? "").slice(0, 300)}`);
    }
  }, [items, live]);
  return text;
}

/** The text of the answer that ends with this item. */
function answerBefore(items, end) {
  const at = items.indexOf(end);
  const texts = [];
  for (let index = at - 1; index >= 0 && items[index].type !== "user" && items[index].type !== "end"; index -= 1) {
    if (items[index].type === "text" && !items[index].discarded) texts.unshift(items[index].text);
  }
  return texts.join("\n\n");
}

/** @param {{sessionId: string}} props */
export function Conversation({ sessionId }) {
  const session = useSession(sessionId);
  const log = useLog(sessionId);
  if (!log || !session) return html`<div class="page-loading"><${Spinner} /></div>`;
  return html`<${Open} key=${sessionId} session=${session} log=${log} />`;
}

function Open({ session, log }) {
  useObservable(log.changes);
  const id = session.sessionId;
  const list = useRef(null);
  const pane = useRef(null);
  const [follows, setFollows] = useState(true);
  const [cancelling, setCancelling] = useState(false);
  const own = session["x-portico"] ?? {};
  const { timeline } = log;
  const items = timeline.items;
  const busy = own.state === "running" || own.state === "waiting";
  const folder = folderOf(session) ?? "";

  const unseen = useRef(0);
  if (follows) unseen.current = timeline.version;

  useEffect(() => {
    const cut = log.loaded && timeline.running && own.state === "idle" && (own.lastSeq ?? 0) <= timeline.last;
    if (!cut) return undefined;
    const timer = setTimeout(() => {
      timeline.interrupted("The gateway was stopped while this turn was running. Its last events may be missing.");
      log.notify();
    }, CUT_OFF);
    return () => clearTimeout(timer);
  }, [own.state, own.lastSeq, timeline.running, timeline.last, log.loaded]);

  const cancel = useCallback(async () => {
    setCancelling(true);
    try {
      await api.post(`${AAP}/sessions/${encodeURIComponent(id)}/cancel`);
    } catch (error) {
      toast(`Not cancelled: ${error.message}`, { kind: "error" });
    }
    setCancelling(false);
  }, [id]);

  const actions = useMemo(() => {
    /** A message in a new session with everything before an earlier one. */
    const resend = async (item, content) => {
      try {
        const until = item.seq !== undefined && item.seq !== null ? { after: item.seq - 1 } : { messages: item.position };
        const next = await fork(id, until);
        navigate(sessionPath(next));
        sendTurn(next, { messages: [{ role: "user", content }] }).catch((error) => toast(`Not sent: ${error.message}`, { kind: "error" }));
        return true;
      } catch (error) {
        toast(`No new session: ${error.message}`, { kind: "error" });
        return false;
      }
    };
    return {
      resend,
      regenerate: (item) => resend({ seq: item.seq }, item.prompt),
      retry: () => {
        const prompt = log.timeline.lastPrompt;
        if (prompt) sendTurn(id, { messages: [{ role: "user", content: prompt.content }] }).catch((error) => toast(`Not sent: ${error.message}`, { kind: "error" }));
      },
      fork: async (item) => {
        try {
          navigate(sessionPath(await fork(id, { after: item.id })));
        } catch (error) {
          toast(`Not forked: ${error.message}`, { kind: "error" });
        }
      },
      answerOf: (item) => answerBefore(log.timeline.items, item),
    };
  }, [id, log]);

  // An error can be retried while it is the last thing that has happened.
  const lastError = useMemo(() => {
    for (let index = items.length - 1; index >= 0 && index > items.length - 6; index -= 1) {
      if (items[index].type === "user") return null;
      if (items[index].type === "error") return items[index].key;
    }
    return null;
  }, [items]);
  const idle = busy ? BUSY : IDLE;
  const contextOf = useCallback((item) => (item.key === lastError && !busy ? RETRY : item.type === "user" || item.type === "end" ? idle : IDLE), [lastError, busy, idle]);
  const renderItem = useCallback((item, context) => html`<${Item} item=${item} actions=${actions} context=${context} folder=${folder} />`, [actions, folder]);
  const announcement = useAnnouncement(items, log.loaded);

  useShortcuts([
    {
      keys: "Escape",
      label: "Cancel the turn",
      group: "Conversation",
      typing: true,
      run: (event) => {
        // Of several panes, that with the focus; else the first.
        const panes = [...document.querySelectorAll(".conversation")];
        const chosen = panes.find((one) => one.contains(event.target)) ?? panes[0];
        // Calls that wait are cancelled by the button only: a key that is pressed by mistake would throw them away.
        if (chosen !== pane.current || own.state !== "running" || cancelling) return false;
        cancel();
        return undefined;
      },
    },
    { keys: "shift+End", label: "Go to the newest output", group: "Conversation", run: () => list.current?.toEnd() },
  ]);

  const toEnd = () => list.current?.toEnd();
  // New output of another turn is for whoever has sent it: the list goes to the end.
  const outgoing = useOutgoing(id);
  const [queue, reread] = useQueue(session);
  const sent = outgoing.length ? outgoing[outgoing.length - 1].id : 0;
  useEffect(() => {
    if (sent) toEnd();
  }, [sent]);

  // A result of the search leads to an event.
  const { value: place } = route;
  const wanted = place.sessionId === id ? Number(place.query.get("seq")) : 0;
  useEffect(() => {
    if (!log.loaded || !(wanted > 0)) return;
    log.loadUntil(wanted).then(() => {
      const found = log.timeline.items.filter((item) => ["user", "text", "thinking", "error"].includes(item.type) && item.id <= wanted).pop();
      if (found) setTimeout(() => list.current?.toKey(found.key));
    });
  }, [log.loaded, wanted]);

  let body;
  if (log.error && !log.loaded) {
    body = html`<${Empty} icon="error" title="The session's log could not be read" action=${html`<${Button} icon="refresh" onClick=${() => { log.error = null; log.notify(); log.open(); }}>Try again</${Button}>`}>${log.error.message}</${Empty}>`;
  } else if (!log.loaded) body = html`<div class="page-loading"><${Spinner} /></div>`;
  else {
    const before = html`${log.hasOlder || log.loadingOlder ? html`<div class="talk-older">${log.loadingOlder ? html`<span class="spinner" aria-hidden="true"></span> Loading older messages…` : html`${log.olderError && html`<span class="error-text">${log.olderError}</span>`}<button type="button" class="show-more" onClick=${() => log.loadOlder()}>${log.olderError ? "Try again" : "Load older messages"}</button>`}</div>` : null}`;
    const empty = !items.length && !outgoing.length && !own.queued && !log.hasOlder;
    const after = html`
      ${empty && html`<div class="conversation-empty"><${Icon} name="terminal" size=${28} /><p>Nothing was said yet. Write a message to ${visibleText(session.agent.name)}.</p></div>`}
      ${own.state === "running" && !timeline.running && html`<p class="talk-note"><span class="spinner" aria-hidden="true"></span><span>The agent is starting…</span></p>`}
      ${own.state === "running" && timeline.running && !atWork(items) && html`<p class="talk-note working"><span class="spinner" aria-hidden="true"></span><span>Working…</span></p>`}
      <${Approvals} session=${session} />
      <${Outgoing} sessionId=${id} queue=${queue} />
      <${Queue} session=${session} queue=${queue} reread=${reread} />
    `;
    body = html`<${VirtualList}
      ref=${list}
      items=${items}
      renderItem=${renderItem}
      contextOf=${contextOf}
      estimate=${estimate}
      before=${before}
      after=${after}
      label="Conversation"
      onNearTop=${() => log.olderError || log.loadOlder()}
      onFollow=${setFollows}
    />`;
  }
  return html`<div class="conversation" ref=${pane}>
    <${ConversationHeader}
      session=${session}
      context=${timeline.context}
      model=${timeline.model}
      canCancel=${busy}
      cancelling=${cancelling}
      onCancel=${cancel}
      onEnd=${toEnd}
    />
    ${log.deleted && html`<p class="talk-note bad"><${Icon} name="trash" size=${14} /><span>This session was deleted.</span></p>`}
    <div class="conversation-body">
      ${body}
      ${!follows && html`<${Button} class="to-end" icon="arrow-down" onClick=${toEnd}>${timeline.version > unseen.current ? "New output" : "To the end"}</${Button}>`}
    </div>
    <div class="visually-hidden" role="status" aria-live="polite">${announcement}</div>
    <${Composer} session=${session} />
  </div>`;
}

/** Whether the last item shows by itself that the agent works. */
function atWork(items) {
  const last = items[items.length - 1];
  return Boolean(last?.streaming || (last?.type === "tool" && ["running", "writing", "waiting"].includes(last.state)));
}
