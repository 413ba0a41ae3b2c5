/** What tells the user that an agent waits: the count in the window's title, and the browser's notifications if they are wanted. */
import { useEffect } from "../preact.js";
import { observable, stored } from "../observable.js";
import { navigate, route, sessionPath } from "../router.js";
import { deleting, listing, pendingOf, sessions, titleOf } from "../sessions.js";
import { toast } from "../ui/index.js";
import { titleOfCall } from "../conversation/tool-title.js";
import { mocksOf, startMockedAnswers } from "./mocked-answers.js";

/** How many sessions wait for the user. */
const waitingCount = observable(0);

/** Whether the user wants notifications, in this browser. */
export const notificationsWanted = stored("portico.notifications", false);

/** "granted", "denied", "default" (not asked yet), or "unsupported", as on pages of plain http from another machine. */
export const notificationPermission = () =>
  typeof Notification === "undefined" || !window.isSecureContext ? "unsupported" : Notification.permission;

/** Turn notifications on, which asks the browser's user, or off. @returns {Promise<string>} the browser's permission */
async function wantNotifications(wanted) {
  const permission =
    wanted && notificationPermission() === "default" ? await Notification.requestPermission() : notificationPermission();
  notificationsWanted.value = wanted && permission === "granted";
  return permission;
}

/** The calls of a session that wait for the user: all but those whose result is given automatically. */
export function callsForUser(session) {
  const mocks = mocksOf(session.sessionId);
  return pendingOf(session).filter((call) => !call.optional && !(call.wants === "result" && mocks[call.name]?.automatic));
}

/** Sessions that wait for the user, the longest waiting first. */
export const waitingSessions = (all) =>
  [...all.values()]
    .filter((session) => callsForUser(session).length && !deleting.value.has(session.sessionId))
    .sort((one, other) => String(one["x-portico"].waitingSince).localeCompare(String(other["x-portico"].waitingSince)));

const WORDS = { permission: "asks for permission", answer: "has a question", result: "waits for a result" };

/** Shows nothing itself: the count, the notifications and the automatic answers go on as long as it is there. */
export function Notifications() {
  useEffect(start, []);
  return null;
}

/** The items of a menu that turn the notifications on and off. */
export function notificationItems() {
  if (notificationPermission() === "unsupported") return [];
  const wanted = notificationsWanted.value;
  return [
    {
      label: wanted ? "Turn notifications off" : "Notify me of approvals",
      icon: wanted ? "bell-off" : "bell",
      run: () => changeNotifications(!wanted),
    },
  ];
}

/** Turn notifications on or off, and say why where the browser does not allow them. */
export async function changeNotifications(wanted) {
  const permission = await wantNotifications(wanted);
  if (wanted && permission === "denied") {
    toast("The browser does not allow notifications of this page. Change that in its settings for this site.", { kind: "error" });
  }
  return permission;
}

function start() {
  let known = null;
  const update = (all) => {
    const waiting = waitingSessions(all);
    waitingCount.value = waiting.length;
    const stops = new Map(waiting.map((session) => [session.sessionId, session["x-portico"].waitingSince]));
    // What waits when the page is opened is not news.
    if (known) for (const session of waiting) if (known.get(session.sessionId) !== stops.get(session.sessionId)) notify(session);
    // The same holds for what the list brings that is loaded after this part of the page.
    if (known || listing.value.loaded) known = stops;
  };
  update(sessions.value);
  const ends = [sessions.subscribe(update), listing.subscribe(() => update(sessions.value)), startTitle(), startMockedAnswers()];
  return () => ends.forEach((end) => end());
}

function notify(session) {
  const seen = document.hasFocus() && (route.value.page === "inbox" || route.value.sessionId === session.sessionId);
  if (!notificationsWanted.value || notificationPermission() !== "granted" || seen) return;
  const [call] = callsForUser(session);
  const { name, subject } = titleOfCall(call.name, call.input, call.title);
  const title = titleOf(session);
  try {
    // A notification of the same tag replaces the one that another window has shown.
    const shown = new Notification(`${title}: ${WORDS[call.wants]}`, {
      body: `${name} ${subject}`.slice(0, 300),
      tag: `portico ${session.sessionId}`,
    });
    shown.onclick = () => {
      window.focus();
      navigate(sessionPath(session.sessionId));
      shown.close();
    };
  } catch {
    // Browsers of phones have notifications of service workers only.
    notificationsWanted.value = false;
  }
}

/** Keep the count before the title, whoever changes the title. */
function startTitle() {
  const show = () => {
    const plain = document.title.replace(/^\(\d+\) /, "");
    const title = waitingCount.value ? `(${waitingCount.value}) ${plain}` : plain;
    if (title !== document.title) document.title = title;
  };
  const observer = new MutationObserver(show);
  observer.observe(document.head, { subtree: true, childList: true, characterData: true });
  const end = waitingCount.subscribe(show);
  show();
  return () => {
    end();
    observer.disconnect();
  };
}
