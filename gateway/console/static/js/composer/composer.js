/** Where the user writes to a session: the message, the settings of the next turn, and what there is to do while a run is at work. */
import { AAP, api, query } from "../api.js";
import { stopOf, stops } from "../approvals/pending-stops.js";
import { outgoing, removeOutgoing, sendTurn } from "../conversation/outgoing.js";
import { html, useEffect, useRef, useState } from "../preact.js";
import { stored, useObservable } from "../observable.js";
import { pendingOf, useAgents } from "../sessions.js";
import { Button, Icon, IconButton, Menu, toast } from "../ui/index.js";
import { toolsInWords } from "./agent-tools.js";
import { useDraft } from "./drafts.js";
import { contentOf } from "./images.js";
import { MessageBox, sendKeys } from "./message-box.js";
import { ProminentOptions, valuesOf } from "./options.js";
import { readLog } from "./session-log.js";
import { SessionSettings, changeOption, changes, changesOf, setChanges, settingsOf } from "./settings.js";

/** "steer" or "queue": what Enter does while a run is at work, where the agent supports both. */
const whileRunning = stored("portico.whileRunning", "queue");

/** @param {{session: object}} props a session's info */
export function Composer({ session }) {
  const id = session.sessionId;
  return html`<${SessionComposer} key=${id} session=${session} />`;
}

function SessionComposer({ session }) {
  const id = session.sessionId;
  const agents = useAgents();
  const agent = agents?.find((one) => one.name === session.agent.name);
  const change = changesOf(id, useObservable(changes));
  const preferred = useObservable(whileRunning);
  const [draft, setDraft] = useDraft(id);
  const [problem, setProblem] = useState("");
  const [settings, setSettings] = useState(null);
  const [stopping, setStopping] = useState(false);
  const field = useRef(null);
  const state = session["x-portico"].state;
  const answered = stopOf(session, useObservable(stops)).sending;
  const running = state === "running" || answered;
  const waiting = answered ? 0 : pendingOf(session).length;
  const steerable = Boolean(agent?.capabilities?.["x-portico"]?.steer);
  // Until the answers have arrived, no run is at work: a message that is to steer it would cancel the calls.
  const steers = steerable && state === "running";
  const action = running ? (steers ? preferred : "queue") : "send";
  const empty = !draft.text.trim() && !draft.images.length;
  const values = valuesOf(agent, session.agent.options, change.options);
  const log = useLog(session);

  useEffect(() => setStopping(false), [state]);
  useUnsentWarning(id);

  const onDraft = (next) => {
    setProblem("");
    setDraft(next);
  };

  const send = async (how) => {
    if (empty) return;
    const sent = draft;
    const applied = how === "steer" ? null : change;
    const body = {
      messages: [{ role: "user", content: contentOf(sent.text, sent.images) }],
      // Another client may have begun a turn meanwhile. A message instead of an answer cancels the calls, which a queued one does not.
      ...(how === "send" ? (waiting ? {} : { when_busy: "queue" }) : { when_busy: how }),
      ...(applied ? settingsOf(applied) : {}),
    };
    setProblem("");
    setDraft({ text: "", images: [] });
    try {
      await sendTurn(id, body, { queue: how === "queue" });
      log.forget();
      if (applied && changesOf(id) === applied) setChanges(id, { options: {} });
    } catch (error) {
      // A message that did not reach the server is kept with the outgoing ones, where it can be sent again without running twice.
      if (!error.status) return;
      for (const entry of outgoing.value) if (entry.body === body) removeOutgoing(entry.id);
      setProblem(error.message);
      setDraft((now) =>
        now.text || now.images.length ? { text: `${sent.text}\n\n${now.text}`, images: [...sent.images, ...now.images] } : sent,
      );
    }
  };

  const stop = async () => {
    setStopping(true);
    try {
      await api.post(`${AAP}/sessions/${encodeURIComponent(id)}/cancel`);
    } catch (error) {
      toast(`Not stopped: ${error.message}`, { kind: "error" });
    }
    setStopping(false);
  };

  const files = async (text) =>
    (await api.get(`${AAP}/sessions/${encodeURIComponent(id)}/files${query({ q: text, limit: 50 })}`)).files;
  const commands = async () => {
    const found = (await log.read()).commands;
    const option = agent?.options.find((one) => one.name === "slash_commands");
    if (option && values.slash_commands !== "on")
      throw new Error("Commands are text in this session: the option slash_commands is off.");
    return found;
  };
  /** Where calls wait, Esc leaves the field for the first of them, so that keys answer it. */
  const toCard = () => {
    const card = field.current.closest(".pane, body").querySelector(".approval:not(.is-answered)");
    field.current.blur();
    card?.focus();
    card?.scrollIntoView({ block: "nearest" });
  };
  const placeholder = waiting
    ? `A message cancels the ${waiting === 1 ? "call that waits" : `${waiting} calls that wait`}. Esc: answer by keys`
    : {
        send: `Message ${agent?.title ?? session.agent.name}`,
        queue: "Queue a message for after this run",
        steer: "Tell the agent at work",
      }[action];

  return html`<section class="composer" role="group" aria-label="Write a message">
    ${
      problem &&
      html`<div class="notice error composer-problem" role="alert">
        <${Icon} name="error" /><span dir="auto">${problem}</span>
        <${IconButton} icon="close" label="Dismiss" onClick=${() => setProblem("")} />
      </div>`
    }
    <${MessageBox}
      draft=${draft}
      onDraft=${onDraft}
      onSend=${() => send(action)}
      agent=${agent}
      commands=${commands}
      files=${files}
      history=${async () => (await log.read()).sent}
      label="Message"
      placeholder=${placeholder}
      onProblems=${(problems) => setProblem(problems.join(" "))}
      autoFocus=${!waiting}
      onEscape=${waiting ? toCard : undefined}
      fieldRef=${field}
    >
      ${
        agent &&
        html`<div class="composer-settings">
          <${ProminentOptions}
            agent=${agent}
            values=${values}
            changes=${change.options}
            onChange=${(name, value) => changeOption(id, name, value, valuesOf(agent, session.agent.options)[name])}
          />
          <button
            type="button"
            class=${`picker${change.tools || change.appTools ? " is-changed" : ""}`}
            title="The agent's tools"
            onClick=${() => setSettings("tools")}
          >
            <${Icon} name="tool" size=${14} /><span class="picker-value"
              >${toolsInWords(change.tools ?? session.agent.tools ?? [])}</span
            >
          </button>
          <${IconButton} icon="settings" label="All options and tools" onClick=${() => setSettings("options")} />
          <${ComposerMenu} steers=${steerable} preferred=${preferred} />
        </div>`
      }
      <div class="composer-send">
        ${
          running
            ? html`<${Button}
                kind=${empty ? "danger" : "default"}
                icon="stop"
                busy=${stopping}
                title="Stop the run"
                aria-keyshortcuts="Escape"
                onClick=${stop}
                ><span class="send-label">Stop</span><//
              >`
            : null
        }
        ${
          running &&
          steers &&
          !empty &&
          html`<${Button}
            icon=${action === "steer" ? "queue" : "steer"}
            onClick=${() => send(action === "steer" ? "queue" : "steer")}
          >
            ${action === "steer" ? "Queue" : "Steer"}
          <//>`
        }
        ${
          (!running || !empty) &&
          html`<${Button}
            kind="primary"
            class="send"
            icon=${{ send: "arrow-up", queue: "queue", steer: "steer" }[action]}
            disabled=${empty}
            aria-label=${action === "send" ? "Send" : undefined}
            title=${TITLES[action]}
            onClick=${() => send(action)}
          >
            ${action === "send" ? null : html`<span>${action === "steer" ? "Steer" : "Queue"}</span>`}
          <//>`
        }
      </div>
    <//>
    ${settings && agent && html`<${SessionSettings} session=${session} agent=${agent} values=${values} tab=${settings} onClose=${() => setSettings(null)} />`}
  </section>`;
}

const TITLES = {
  send: "Send",
  queue: "The message is sent when this run is over",
  steer: "The agent reads the message during this run",
};

/** How the keys send a message. */
function ComposerMenu({ steers, preferred }) {
  const keys = useObservable(sendKeys);
  const items = () => [
    { heading: "Send with" },
    { label: "Enter (Shift+Enter for a new line)", checked: keys === "enter", run: () => (sendKeys.value = "enter") },
    { label: "Ctrl+Enter or ⌘+Enter", checked: keys !== "enter", run: () => (sendKeys.value = "mod+enter") },
    ...(steers
      ? [
          "separator",
          { heading: "While the agent works" },
          { label: "Queue: after this run", checked: preferred === "queue", run: () => (whileRunning.value = "queue") },
          { label: "Steer: the agent reads it now", checked: preferred === "steer", run: () => (whileRunning.value = "steer") },
        ]
      : []),
  ];
  return html`<${Menu} label="How messages are sent" icon="keyboard" items=${items} />`;
}

/** The session's log as the composer needs it, read when it is first needed and after each message. */
function useLog(session) {
  const known = useRef(null);
  return {
    read() {
      known.current ??= readLog(session.sessionId).catch((error) => {
        known.current = null;
        throw error;
      });
      return known.current;
    },
    forget() {
      known.current = null;
    },
  };
}

/** A message that the server does not have yet is lost with the window. */
function useUnsentWarning(sessionId) {
  const entries = useObservable(outgoing);
  const unsent = entries.some((entry) => entry.sessionId === sessionId && entry.message && entry.state !== "queued");
  useEffect(() => {
    if (!unsent) return undefined;
    const ask = (event) => event.preventDefault();
    addEventListener("beforeunload", ask);
    return () => removeEventListener("beforeunload", ask);
  }, [unsent]);
}
