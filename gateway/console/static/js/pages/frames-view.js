/** One turn as the frames of each protocol. */

import { html, useEffect, useMemo, useState } from "../preact.js";
import { visible } from "./format.js";
import { JsonView } from "./json-view.js";
import { Select } from "../ui/index.js";
import { CopyAs, LoadError, useAnswer, useMedia } from "./parts.js";
import { RowList } from "./row-list.js";

const PROTOCOLS = [
  { value: "aap-delta", label: "AAP, deltas" },
  { value: "aap-message", label: "AAP, messages" },
  { value: "aap-none", label: "AAP, JSON" },
  { value: "acp", label: "ACP" },
  { value: "execute", label: "/v1/execute" },
  { value: "openai-chat", label: "OpenAI chat completions" },
  { value: "openai-responses", label: "OpenAI Responses" },
  { value: "anthropic-messages", label: "Anthropic Messages" },
];
const COLUMNS = ["Frame", "Id", "Event", "Data"];
const SUMMARY = 240;

/** A frame as it stands in a stream of server-sent events. */
export function frameText({ event, data, id }) {
  const text = typeof data === "string" ? data : JSON.stringify(data);
  return [
    ...(event === undefined ? [] : [`event: ${event}`]),
    ...text.split("\n").map((line) => `data: ${line}`),
    ...(id === undefined ? [] : [`id: ${id}`]),
    "",
    "",
  ].join("\n");
}

/** `version` is the session's last event if the turn may go on, else null. `picker` chooses the turn. */
export function FramesView({ sessionId, turn, version, picker }) {
  const [protocol, setProtocol] = useState("aap-delta");
  const narrow = useMedia("(max-width: 640px), (pointer: coarse)");
  const path = turn && `/aap/v3/sessions/${encodeURIComponent(sessionId)}/frames?turn=${turn.id}&protocol=${protocol}`;
  const { data, error, loading, reload } = useAnswer(path);
  const [loadedAt, setLoadedAt] = useState(version);
  useEffect(() => setLoadedAt(version), [path]);
  const frames = useMemo(() => (data?.frames ?? []).map((frame, index) => ({ ...frame, index: index + 1 })), [data]);
  if (!turn) return html`<p class="page-about events-body">This session has had no turn yet.</p>`;
  const older = version !== null && version !== loadedAt;
  return html`
    <div class="events-tools">
      ${picker}<span class="events-choice"><span class="dim">Protocol</span><${Select} label="Protocol" value=${protocol} options=${PROTOCOLS} onChange=${setProtocol} /></span>
      <${CopyAs} text=${() => frames.map(frameText).join("")} label="Copy all frames" />
      ${older && html`<button type="button" class="button" onClick=${() => (setLoadedAt(version), reload())}>Read again: the session has new events</button>`}
    </div>
    ${error && html`<div class="events-body"><${LoadError} error=${error} reload=${reload} what="The frames" /></div>`}
    <p class="events-status" role="status">${loading ? "Loading…" : `${frames.length.toLocaleString("en")} ${frames.length === 1 ? "frame" : "frames"}: what a client of this protocol gets for the turn that begins with event ${turn.id}.${data?.truncated ? " The turn has more frames than are shown here." : ""}`}</p>
    ${
      !error &&
      html`<${RowList} key=${path} items=${frames} keyOf=${(frame) => frame.index} columns=${COLUMNS} label="Frames" rowHeight=${narrow ? 44 : 28} follow=${false}
      renderRow=${(frame) => [
        html`<span class="event-id">${frame.index}</span>`,
        html`<span class="event-time">${frame.id ?? ""}</span>`,
        html`<span class="event-kind">${frame.event ?? nameOf(frame.data)}</span>`,
        html`<span class="event-summary" dir="auto">${brief(frame.data)}</span>`,
      ]}
      renderDetail=${(frame) => html`<div class="event-detail">
        <div class="event-actions"><${CopyAs} text=${() => frameText(frame)} label="Copy the frame" what=${String(frame.index)} small=${true} /></div>
        <${JsonView} value=${frame.data} open=${4} /></div>`} />`
    }`;
}

/** What a frame without an event's name is, by the member that says so in its protocol. */
function nameOf(data) {
  return data?.params?.update?.sessionUpdate ?? data?.method ?? data?.kind ?? data?.type ?? data?.object ?? "";
}

function brief(data) {
  const text = typeof data === "string" ? data : JSON.stringify(data);
  return visible(text.length > SUMMARY ? `${text.slice(0, SUMMARY)}…` : text);
}
