/** The events pane of a session: its raw log, the same turns as other protocols have them, and the requests with curl. */

import { visibleText } from "../conversation/safe-text.js";
import { html, useEffect, useState } from "../preact.js";
import { Link, sessionPath } from "../router.js";
import { loadSession, titleOf, useSession } from "../sessions.js";
import { PaneHeader, Select, Tabs } from "../ui/index.js";
import { summary } from "./event-log.js";
import { FramesView } from "./frames-view.js";
import { LogView } from "./log-view.js";
import { RequestsView } from "./requests-view.js";
import { useEventLog } from "./use-event-log.js";

/** Turns to choose from, the newest. */
const MOST_TURNS = 500;
const VIEWS = [
  { id: "log", label: "Event log" },
  { id: "frames", label: "As frames" },
  { id: "requests", label: "As curl" },
];

export function EventsPane({ sessionId }) {
  return html`<${Pane} key=${sessionId} sessionId=${sessionId} />`;
}

function Pane({ sessionId }) {
  const session = useSession(sessionId);
  const log = useEventLog(sessionId);
  useEffect(() => void (session || loadSession(sessionId).catch(() => {})), [sessionId]);
  const [view, setView] = useState("log");
  const [turn, setTurn] = useState(null);
  const { turns } = log.all;
  const chosen = turns.find((one) => one.id === turn) ?? turns[turns.length - 1] ?? null;
  const title = session ? visibleText(titleOf(session)) : sessionId;
  const showFrames = (id) => {
    setTurn(id);
    setView("frames");
  };
  const picker =
    chosen &&
    html`<span class="events-choice events-turn"><span class="dim">Turn</span>
      <${Select} label="Turn" value=${String(chosen.id)} onChange=${(id) => setTurn(Number(id))}
        options=${turns
          .slice(-MOST_TURNS)
          .reverse()
          .map(({ id, event }) => ({ value: String(id), label: `${id} · ${summary(event).slice(0, 70)}` }))} /></span>`;
  return html`<div class="events-pane">
    <${PaneHeader} title=${title}>
      <${Link} class="button" href=${sessionPath(sessionId)}>Conversation<//>
    <//>
    <${Tabs} class="events-tabs" label="Views of the log" tabs=${VIEWS} value=${view} onChange=${setView}>
      ${view === "log" && html`<${LogView} log=${log} onFrames=${showFrames} />`}
      ${view === "frames" && html`<${FramesView} sessionId=${sessionId} turn=${chosen} version=${chosen === turns.at(-1) ? log.all.last : null} picker=${picker} />`}
      ${view === "requests" && html`<${RequestsView} sessionId=${sessionId} session=${session} turn=${chosen} picker=${picker} loading=${log.loading} />`}
    <//>
  </div>`;
}
