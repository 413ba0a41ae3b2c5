/** The list of a session's events: filters, copying, replay. */

import { html, useEffect, useMemo, useState } from "../preact.js";
import { jsonLines, summary } from "./event-log.js";
import { clock, formatSeconds } from "./format.js";
import { JsonView } from "./json-view.js";
import { Select } from "../ui/index.js";
import { CopyAs, LoadError, Notice, useMedia } from "./parts.js";
import { RowList } from "./row-list.js";

const GROUPS = {
  agent_token: "text",
  thinking: "text",
  message_end: "text",
  tool_call: "tool",
  tool_result: "tool",
  tool_input: "tool",
  tool_output: "tool",
  terminal: "tool",
  subagent: "tool",
  turn_start: "turn",
  steered: "turn",
  session_end: "turn",
  awaiting: "turn",
  error: "error",
  stderr: "error",
};
const COLUMNS = ["Number", "Time", "Kind", "Event"];
const SPEEDS = [
  { value: "instant", label: "At once" },
  { value: "steps", label: "Step by step" },
  { value: "live", label: "As they came" },
];

export function LogView({ log, onFrames }) {
  const [kinds, setKinds] = useState([]);
  const [text, setText] = useState("");
  const [follow, setFollow] = useState(true);
  const [from, setFrom] = useState("");
  const [speed, setSpeed] = useState("instant");
  const [replaying, setReplaying] = useState(false);
  const narrow = useMedia("(max-width: 640px), (pointer: coarse)");
  useEffect(() => log.filter(kinds, text), [log, kinds, text]);

  const { replayed } = log;
  const shown = replayed ? replayed.log : log.all;
  const toggleKind = (kind) => setKinds(kinds.includes(kind) ? kinds.filter((other) => other !== kind) : [...kinds, kind]);
  const replay = (number) => {
    setFrom(String(number));
    setFollow(speed !== "instant");
    log.replay(number, speed);
  };
  const endReplay = () => {
    log.stopReplay();
    setFollow(true);
    setReplaying(false);
  };
  const total = log.all.entries.length;
  // Not for each event that arrives: screen readers would read nothing else.
  const announced = useMemo(
    () => (log.loading ? "" : shown.filtered ? `${count(shown.shown)} events match.` : `${count(shown.entries)} events.`),
    [kinds, text, log.loading, Boolean(replayed)],
  );

  if (log.error)
    return html`<div class="events-body"><${LoadError} error=${log.error} reload=${() => location.reload()} what="The event log" /></div>`;
  return html`
    <div class="events-tools">
      <label class="events-search"><span class="visually-hidden">Search the events</span>
        <input class="input" type="search" value=${text} placeholder="Search in the JSON, or a number" onInput=${(event) => setText(event.target.value)} /></label>
      <${CopyAs} text=${() => jsonLines(shown.shown)} label=${shown.filtered ? `Copy ${shown.shown.length.toLocaleString("en")} as JSON lines` : "Copy all as JSON lines"} />
      <button type="button" class="button" aria-expanded=${Boolean(replaying || replayed)} disabled=${Boolean(replayed) || total === 0} onClick=${() => setReplaying(!replaying)}>Replay…</button>
      <button type="button" class="button" aria-pressed=${follow} onClick=${() => setFollow(!follow)}>Follow the end</button>
    </div>
    <div class="chip-row" role="group" aria-label="Kinds of events">
      ${[...log.all.kinds]
        .sort(([one], [other]) => one.localeCompare(other))
        .map(
          ([kind, count]) => html`<button type="button" key=${kind}
        class=${`chip kind-${GROUPS[kind] ?? "other"}`} aria-pressed=${kinds.includes(kind)} onClick=${() => toggleKind(kind)}>${kind} <span class="chip-count">${count.toLocaleString("en")}</span></button>`,
        )}
      ${kinds.length > 0 && html`<button type="button" class="link-button" onClick=${() => setKinds([])}>all kinds</button>`}
    </div>
    ${(replaying || replayed) && html`<${ReplayBar} log=${log} from=${from} setFrom=${setFrom} speed=${speed} setSpeed=${setSpeed} onStart=${replay} onEnd=${endReplay} />`}
    <p class="events-status">
      ${total === 0 && log.loading ? "Loading" : shown.filtered ? `${count(shown.shown)} of ${count(shown.entries)} events` : `${count(shown.entries)} events`}${
        log.seeds ? `, after ${log.seeds} messages that the session began with` : ""
      }${log.deleted ? ". The session has been deleted" : ""}.
      ${log.loading && log.more && " Older ones are being loaded…"}
      ${!log.loading && log.more && html` <button type="button" class="link-button" onClick=${() => log.loadOlder()}>Load all older events</button>`}
      ${log.olderError && html` <span class="error-text">They cannot be loaded: ${log.olderError}</span>`}
      <span class="dim"> Stored events have no time of their own; runs do, and those that arrive now.</span>
    </p>
    <p class="visually-hidden" role="status">${announced}</p>
    ${
      !log.loading && total === 0 && !replayed
        ? html`<p class="page-about events-body">This session has no events yet. They appear here as they come.</p>`
        : html`<${RowList} items=${shown.shown} keyOf=${(entry) => entry.id} columns=${COLUMNS} label="Events" rowHeight=${narrow ? 44 : 28} follow=${follow} onFollow=${setFollow}
          rowClass=${(entry) => `kind-${GROUPS[entry.event.kind] ?? "other"}`}
          renderRow=${(entry) => [
            html`<span class="event-id">${entry.id}</span>`,
            html`<${Time} entry=${entry} run=${log.runs.get(entry.id)} />`,
            html`<span class="event-kind">${entry.event.kind}</span>`,
            html`<span class="event-summary" dir="auto">${summary(entry.event)}</span>`,
          ]}
          renderDetail=${(entry) => html`<${Detail} entry=${entry} onReplay=${replay} onFrames=${onFrames} replaying=${Boolean(replayed)} />`} />`
    }`;
}

const count = (list) => list.length.toLocaleString("en");

function ReplayBar({ log, from, setFrom, speed, setSpeed, onStart, onEnd }) {
  const { replayed } = log;
  const start = (event) => {
    event.preventDefault();
    onStart(Number(from) || 1);
  };
  if (!replayed)
    return html`<form class="events-replay" key="start" onSubmit=${start}>
      <label>From event <input class="input" type="number" min="1" step="1" inputmode="numeric" value=${from} placeholder="1" onInput=${(event) => setFrom(event.target.value)} /></label>
      <${Select} label="Speed of the replay" value=${speed} options=${SPEEDS} onChange=${setSpeed} />
      <button type="submit" class="button primary">Start</button>
    </form>`;
  const waiting = speed === "steps" ? ` ${count(replayed.waiting)} are waiting.` : "";
  return html`<div class="events-replay" key="shown">
    <${Notice} title=${`Replay from ${replayed.from}`}>What a client gets that has seen all before it: ${count(replayed.log.entries)} events.${waiting}<//>
    ${speed === "steps" && html`<button type="button" class="button primary" disabled=${replayed.waiting.length === 0} onClick=${() => log.step()}>Next event</button>`}
    <button type="button" class="button" onClick=${onEnd}>End the replay</button>
  </div>`;
}

function Time({ entry, run }) {
  if (entry.gap !== null)
    return html`<span class="event-time" title=${`arrived at ${clock(entry.at, true)}`}>+${formatSeconds(Math.max(0, entry.gap) / 1000)}</span>`;
  if (entry.at !== null) return html`<span class="event-time" title="arrived here">${clock(entry.at)}</span>`;
  if (run) return html`<span class="event-time event-run" title=${`A run began: ${run.id}`}>${clock(new Date(run.startedAt))}</span>`;
  return html`<span class="event-time dim" aria-label="no time">·</span>`;
}

function Detail({ entry, onReplay, onFrames, replaying }) {
  return html`<div class="event-detail">
    <div class="event-actions">
      <${CopyAs} text=${() => JSON.stringify(entry.event, null, 2)} label="Copy JSON" what=${`of event ${entry.id}`} small=${true} />
      ${!replaying && html`<button type="button" class="button small" onClick=${() => onReplay(entry.id)}>Replay from here</button>`}
      ${entry.event.kind === "turn_start" && html`<button type="button" class="button small" onClick=${() => onFrames(entry.id)}>This turn as frames</button>`}
      ${entry.at !== null && html`<span class="dim">arrived at ${clock(entry.at, true)}</span>`}
    </div>
    <${JsonView} value=${entry.event} open=${3} />
  </div>`;
}
