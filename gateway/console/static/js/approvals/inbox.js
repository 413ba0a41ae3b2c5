/** Everything that waits for the user, over all sessions, the longest waiting first. */
import { html, useState } from "../preact.js";
import { useObservable } from "../observable.js";
import { Link, sessionPath } from "../router.js";
import { sessions, titleOf } from "../sessions.js";
import { Empty, PaneHeader, TimeAgo } from "../ui/index.js";
import { Approvals } from "./approvals.js";
import {
  callsForUser,
  changeNotifications,
  notificationPermission,
  notificationsWanted,
  waitingSessions,
} from "./notifications.js";
import { useMocks } from "./mocked-answers.js";
import { stops } from "./pending-stops.js";

export function Inbox() {
  const all = useObservable(sessions);
  const answered = useObservable(stops);
  useMocks();
  const waiting = waitingSessions(all);
  // An answer that was refused is shown although its session does not wait any more.
  const refused = [...all.values()].filter((session) => answered.get(session.sessionId)?.error && !callsForUser(session).length);
  const count = waiting.reduce((sum, session) => sum + callsForUser(session).length, 0);
  return html`<div class="inbox">
    <${PaneHeader} title="Inbox" sub=${count ? `${count} ${count === 1 ? "call waits" : "calls wait"} for you` : undefined}>
      <${NotificationSwitch} />
    <//>
    <div class="inbox-list" onKeyDown=${moveByKeys}>
      ${[...refused, ...waiting].map((session) => html`<${WaitingSession} key=${session.sessionId} session=${session} />`)}
      ${
        !waiting.length &&
        !refused.length &&
        html`<${Empty} icon="inbox" title="Nothing waits for you">
          Calls of agents that need your permission, their questions, and calls of your application's tools appear here, whichever
          session they are of.
        <//>`
      }
    </div>
  </div>`;
}

function WaitingSession({ session }) {
  const { cwd, waitingSince } = session["x-portico"];
  const title = titleOf(session);
  return html`<section class="inbox-session" role="group" aria-label=${title}>
    <header>
      <h2>
        <${Link} href=${sessionPath(session.sessionId)}><bdi dir="auto">${title}</bdi><//>
      </h2>
      <p class="inbox-about">
        <bdi>${session.agent.name}</bdi
        >${cwd && html` · <bdi>${cwd}</bdi>`}${waitingSince && html` · <${TimeAgo} at=${waitingSince} />`}
      </p>
    </header>
    <${Approvals} session=${session} level=${3} />
  </section>`;
}

/** The arrow keys, and j and k, go from card to card. */
function moveByKeys(event) {
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  if (!step || event.target.closest("input, textarea, select, pre, summary") || event.ctrlKey || event.metaKey || event.altKey)
    return;
  const cards = [...event.currentTarget.querySelectorAll(".approval")];
  const next = cards[cards.indexOf(event.target.closest(".approval")) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function NotificationSwitch() {
  const wanted = useObservable(notificationsWanted);
  const [permission, setPermission] = useState(notificationPermission());
  const change = async (event) => setPermission(await changeNotifications(event.target.checked));
  if (permission === "unsupported")
    return html`<span class="dim" title="Browsers show notifications of pages of https and of this machine only"
      >No notifications here</span
    >`;
  return html`<label class="check">
    <input type="checkbox" role="switch" checked=${wanted && permission === "granted"} onChange=${change} />
    <span>Notify me</span>
  </label>`;
}
