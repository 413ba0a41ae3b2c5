/** Times as people say them. */
import { html } from "../preact.js";
import { observable, useObservable } from "../observable.js";

const now = observable(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 20_000);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) now.value = Date.now();
});

/** The present in milliseconds; renders again every 20 seconds. */
export const useNow = () => useObservable(now);

/** "now", "5m", "3h", "2d", "12 Mar", "12 Mar 2024". @param {string|number|Date|null} at */
export function timeAgo(at, present = Date.now()) {
  if (at === null || at === undefined) return "";
  const time = new Date(at);
  const seconds = (present - time.getTime()) / 1000;
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h`;
  if (seconds < 7 * 86400) return `${Math.floor(seconds / 86400)}d`;
  const sameYear = time.getFullYear() === new Date(present).getFullYear();
  return time.toLocaleDateString(undefined, { day: "numeric", month: "short", year: sameYear ? undefined : "numeric" });
}

const LONG = { dateStyle: "medium", timeStyle: "medium" };

export function TimeAgo({ at }) {
  const present = useNow();
  if (!at) return null;
  const time = new Date(at);
  if (Number.isNaN(time.getTime())) return null;
  return html`<time class="time" datetime=${time.toISOString()} title=${time.toLocaleString(undefined, LONG)}>${timeAgo(at, present)}</time>`;
}
