/** The items of a conversation as rows. */

import { html, useLayoutEffect, useRef, useState } from "../preact.js";
import { Link } from "../router.js";
import { Button, CopyButton, Icon, IconButton } from "../ui/index.js";
import { adviceOf } from "./error-advice.js";
import { useFold } from "./fold.js";
import { dollars, duration, timeOf, tokens, usageWords } from "./format.js";
import { Markdown } from "./markdown.js";
import { Output, Picture } from "./output.js";
import { SafeText, visibleText } from "./safe-text.js";
import { Steps, stepsOf } from "./steps.js";
import { imagesOf } from "./timeline.js";
import { ToolCard } from "./tool-card.js";

const LONG_PROMPT = 4000;

/** A message of the user, as it was typed. */
function Prompt({ item, actions, context }) {
  const [editing, setEditing] = useState(false);
  const [open, setOpen] = useFold(item.key, false);
  const text = item.text ?? "";
  const long = text.length > LONG_PROMPT || text.split("\n").length > 40;
  const shown = long && !open ? text.split("\n").slice(0, 20).join("\n").slice(0, 2000) : text;
  const canFork = !item.steered && (item.seq !== undefined || item.position !== undefined);
  if (editing) return html`<${EditPrompt} item=${item} close=${() => setEditing(false)} send=${(content) => actions.resend(item, content)} />`;
  return html`<article class=${`talk-prompt${item.steered ? " steered" : ""}`} aria-label="Your message">
    <div class="prompt-text" dir="auto">${visibleText(shown)}${long && !open ? "…" : ""}</div>
    ${long && html`<button type="button" class="show-more" onClick=${() => setOpen(!open)}>${open ? "Show less" : `Show all ${text.length.toLocaleString("en")} characters`}</button>`}
    ${imagesOf(item.content).map((url, at) => html`<${Picture} key=${at} url=${url} alt=${`Image ${at + 1} of your message`} />`)}
    ${item.steered && html`<p class="prompt-note"><${Icon} name="steer" size=${14} /> Sent while the agent was working</p>`}
    <div class="item-actions">
      <${CopyButton} text=${text} label="Copy message" />
      ${canFork && html`<${IconButton} icon="edit" label="Edit and resend in a new session" disabled=${context?.busy} onClick=${() => setEditing(true)} />`}
    </div>
  </article>`;
}

function EditPrompt({ item, close, send }) {
  const [text, setText] = useState(item.text ?? "");
  const [busy, setBusy] = useState(false);
  const field = useRef(null);
  // With the field, not after the next frame: what is selected or typed before that would be kept beside the new text.
  useLayoutEffect(() => {
    field.current.focus();
    field.current.setSelectionRange(text.length, text.length);
  }, []);
  const images = Array.isArray(item.content) ? item.content.filter((block) => block?.type !== "text") : [];
  const submit = async () => {
    if (!text.trim() || busy) return;
    setBusy(true);
    const content = images.length ? [{ type: "text", text }, ...images] : text;
    if (!(await send(content))) setBusy(false);
  };
  const keys = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      event.preventDefault();
      close();
    } else if (event.key === "Enter" && (event.metaKey || event.ctrlKey) && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  };
  return html`<article class="talk-prompt editing" aria-label="Edit your message">
    <textarea ref=${field} dir="auto" aria-label="Message" rows=${Math.min(16, text.split("\n").length + 1)} value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${keys}></textarea>
    <p class="dim">A new session with everything before this message gets the new text. This session stays as it is.</p>
    <div class="edit-actions">
      <${Button} small onClick=${close} disabled=${busy}>Cancel</${Button}>
      <${Button} small kind="primary" icon="send" busy=${busy} disabled=${!text.trim()} onClick=${submit}>Send in a new session</${Button}>
    </div>
  </article>`;
}

function Thinking({ item }) {
  const [open, setOpen] = useFold(item.key, false);
  const took = item.took ? ` for ${duration(item.took)}` : "";
  return html`<section class=${`talk-thinking${item.discarded ? " discarded" : ""}`} role="group" aria-label="Thinking of the agent">
    <button type="button" class="talk-fold" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      <${Icon} name=${open ? "chevron-down" : "chevron-right"} size=${14} />
      <${Icon} name="brain" size=${14} />
      <span class=${item.streaming ? "shimmer" : ""}>${item.streaming ? "Thinking…" : `Thought${took}`}</span>
      ${!open && html`<span class="fold-preview"><bdi>${visibleText((item.streaming ? item.text.slice(-160) : item.text.slice(0, 160)).replace(/\s+/g, " "))}</bdi></span>`}
    </button>
    ${open && html`<div class="thinking-text"><${Markdown} text=${item.text} streaming=${item.streaming} /></div>`}
  </section>`;
}

function Answer({ item }) {
  if (item.discarded) {
    return html`<section class="talk-note"><${Icon} name="refresh" size=${14} /><span>The agent lost this message half-way, and began it again.</span></section>`;
  }
  return html`<article class="talk-answer" aria-label="Answer of the agent" aria-busy=${item.streaming ? "true" : undefined}><${Markdown} text=${item.text} streaming=${item.streaming} /></article>`;
}

function Plan({ item }) {
  const steps = stepsOf(item.entries);
  if (!steps) return null;
  const done = steps.filter((step) => step.status === "completed").length;
  return html`<section class="talk-card talk-plan" role="group" aria-label="Plan of the agent">
    <h2><${Icon} name="todo" /> Plan <span class="dim">${done} of ${steps.length} done</span></h2>
    <${Steps} steps=${steps} />
  </section>`;
}

function Failure({ item, actions, context }) {
  const { text, page } = adviceOf(item.message);
  const retry = context?.retry;
  return html`<section class="talk-card talk-failure" role="group" aria-label="Error">
    <h2><${Icon} name="error" /> This run failed</h2>
    <${Output} text=${String(item.message ?? "")} foldKey=${item.key} lines=${8} label="Error" />
    <p>${item.resetsAt ? `The limit resets at ${timeOf(item.resetsAt)}. ` : ""}${text}</p>
    <div class="failure-actions">
      ${retry && html`<${Button} icon="refresh" onClick=${() => actions.retry(item)}>Retry</${Button}>`}
      ${page && html`<${Link} class="button" href=${`/${page}`}>Open Agents</${Link}>`}
    </div>
  </section>`;
}

const STOPS = { max_tokens: "Stopped: the answer reached the model's limit of tokens.", refusal: "The model refused to answer.", cancelled: "Cancelled.", error: "Ended with an error." };

/** The end of a run: how it ended, what it used, and what can be done with the answer. */
function RunEnd({ item, actions, context }) {
  const { usage, context: window_ } = item;
  const used = usage.input + usage.output + usage.cacheRead + usage.cacheWrite > 0;
  const stop = STOPS[item.stopReason];
  return html`<footer class="run-end">
    ${stop && html`<span class=${`run-stop ${item.stopReason}`}><${Icon} name=${item.stopReason === "cancelled" ? "stop" : item.stopReason === "error" ? "error" : "info"} size=${14} /> ${stop}</span>`}
    <span class="run-facts">
      ${item.durationMs >= 50 && html`<span title="Time from the prompt">${duration(item.durationMs)}</span>`}
      ${used && html`<span title=${`Tokens: ${usageWords(usage)}`}>${tokens(usage.input + usage.cacheRead + usage.cacheWrite)} in, ${tokens(usage.output)} out</span>`}
      ${usage.cost !== null && usage.cost > 0 && html`<span title="By the agent's own price list">${dollars(usage.cost)}</span>`}
      ${window_ && html`<span title=${`${window_.used.toLocaleString("en")} of ${window_.size.toLocaleString("en")} tokens of the context window`}>context ${percent(window_)}</span>`}
    </span>
    <span class="item-actions">
      <${CopyButton} text=${() => actions.answerOf(item)} label="Copy answer" />
      ${item.seq && html`<${IconButton} icon="refresh" label="Regenerate in a new session" disabled=${context?.busy} onClick=${() => actions.regenerate(item)} />`}
      <${IconButton} icon="fork" label="Fork: go on from here in a new session" onClick=${() => actions.fork(item)} />
    </span>
  </footer>`;
}

export const percent = ({ used, size }) => {
  const share = (100 * used) / size;
  return share > 0 && share < 1 ? "<1%" : `${Math.min(100, Math.round(share))}%`;
};

function Notice({ icon, kind = "", children }) {
  return html`<section class=${`talk-note ${kind}`}><${Icon} name=${icon} size=${14} /><span>${children}</span></section>`;
}

function Limit({ item }) {
  const name = item.limit ? ` (${visibleText(item.limit).replace(/_/g, " ")})` : "";
  const share = item.utilization !== null ? `, ${Math.round(item.utilization * 100)}% used` : "";
  const reset = item.resetsAt ? ` It resets at ${timeOf(item.resetsAt)}.` : "";
  const words = item.status === "rejected" ? `The usage limit of the account${name} is reached${share}.` : `The usage limit of the account${name} is near${share}.`;
  return html`<${Notice} icon="clock" kind=${item.status === "rejected" ? "bad" : "warn"}>${words}${reset}${item.waiting ? " Portico continues this run then." : ""}</${Notice}>`;
}

function Compaction({ item }) {
  const [open, setOpen] = useFold(item.key, false);
  const facts = [item.trigger ? `${visibleText(item.trigger)}` : null, item.tokensBefore ? `${tokens(item.tokensBefore)} tokens before` : null, item.kept ? `the last ${item.kept} messages are kept` : null].filter(Boolean);
  return html`<section class="talk-compaction">
    <div class="talk-note"><${Icon} name="collapse" size=${14} /><span>The agent replaced the conversation so far by a summary${facts.length ? ` (${facts.join(", ")})` : ""}.</span>
      ${item.summary && html`<button type="button" class="show-more" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>${open ? "Hide the summary" : "Show the summary"}</button>`}</div>
    ${open && html`<div class="talk-card"><${Markdown} text=${item.summary} /></div>`}
  </section>`;
}

function Raw({ item }) {
  return html`<section class="talk-raw" role="group" aria-label=${item.stream === "stderr" ? "Standard error of the agent" : "Output of the agent that is no message"}>
    <p class="dim">${item.stream === "stderr" ? "Standard error of the agent" : "Output of the agent that is no message"}</p>
    <${Output} text=${item.text} foldKey=${item.key} lines=${6} />
  </section>`;
}

function System({ item }) {
  const [open, setOpen] = useFold(item.key, false);
  return html`<section class="talk-thinking">
    <button type="button" class="talk-fold" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}><${Icon} name=${open ? "chevron-down" : "chevron-right"} size=${14} /><span>System prompt</span></button>
    ${open && html`<${Output} text=${item.text} foldKey=${item.key} lines=${40} label="System prompt" plain=${true} />`}
  </section>`;
}

const NOTICE_KINDS = { warning: "warn", error: "bad" };
const HOOK_ICONS = { completed: "check", failed: "error", started: "clock" };

/** One row. `context` is what else it depends on: `{busy, retry}`. */
export function Item({ item, actions, context, folder }) {
  switch (item.type) {
    case "user":
      return html`<${Prompt} item=${item} actions=${actions} context=${context} />`;
    case "text":
      return html`<${Answer} item=${item} />`;
    case "thinking":
      return html`<${Thinking} item=${item} />`;
    case "tool":
      return html`<${ToolCard} call=${item} folder=${folder} />`;
    case "plan":
      return html`<${Plan} item=${item} />`;
    case "error":
      return html`<${Failure} item=${item} actions=${actions} context=${context} />`;
    case "end":
      return html`<${RunEnd} item=${item} actions=${actions} context=${context} />`;
    case "rate_limit":
      return html`<${Limit} item=${item} />`;
    case "compacted":
      return html`<${Compaction} item=${item} />`;
    case "mode":
      return html`<${Notice} icon="settings">The agent changed its mode to <strong><${SafeText} text=${item.mode} /></strong>.</${Notice}>`;
    case "hook":
      return html`<${Notice} icon=${HOOK_ICONS[item.status] ?? "info"}>Hook <strong><${SafeText} text=${item.name} /></strong>: <${SafeText} text=${item.status} /></${Notice}>`;
    case "notice":
      return html`<${Notice} icon=${item.severity === "info" ? "info" : "warning"} kind=${NOTICE_KINDS[item.severity] ?? ""}><${SafeText} text=${item.text} /></${Notice}>`;
    case "raw":
      return html`<${Raw} item=${item} />`;
    case "gap":
      return html`<${Notice} icon="warning" kind="warn">${item.text}</${Notice}>`;
    case "paused":
      return html`<${Notice} icon="pause">The agent's process has ended. It is started again with your answer.</${Notice}>`;
    case "system":
      return html`<${System} item=${item} />`;
    case "image":
      return html`<${Picture} url=${item.url} alt="Image of the agent" />`;
    default:
      return null;
  }
}

/** The height that a row is likely to have, in pixels, before it was shown. */
export function estimate(item) {
  switch (item.type) {
    case "user":
      return 64 + Math.min(20, Math.ceil((item.text?.length ?? 0) / 80)) * 22;
    case "text":
      return 24 + Math.ceil(Math.min(item.text.length, 100_000) / 85) * 24;
    case "tool":
      return 48 + Math.min(4, Math.ceil((typeof item.result === "string" ? item.result.length : 0) / 80)) * 19;
    case "end":
      return 44;
    case "plan":
      return 48 + item.entries.length * 26;
    case "error":
      return 170;
    default:
      return 40;
  }
}
