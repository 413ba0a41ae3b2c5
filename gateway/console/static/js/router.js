/** Pages by the address, with the history API. */
import { html } from "./preact.js";
import { observable, useObservable } from "./observable.js";

const BASE = "/console";

/** Sessions that may be open side by side. Each has a connection of its own, and a browser opens six to a server. */
export const MOST_PANES = 3;

/**
 * @typedef {{page: "home"|"session"|"events"|"inbox"|"agents"|"policy"|"audit"|"metrics"|"keys"|"unknown",
 *   sessionId: string|null, also: string[], query: URLSearchParams, path: string}} Route
 */

/** @returns {Route} */
function parse(location) {
  const rest = location.pathname.slice(BASE.length).replace(/^\/+|(?<!\/)\/+$/g, "");
  const query = new URLSearchParams(location.search);
  const route = { page: "unknown", sessionId: null, also: [], query, path: location.pathname + location.search };
  const parts = rest.split("/").map(decode);
  if (rest === "") route.page = "home";
  else if (parts[0] === "sessions" && parts[1] && parts.length === 2) {
    route.page = "session";
    route.sessionId = parts[1];
    const also = (query.get("also") ?? "").split(",").filter((id) => id && id !== parts[1]);
    route.also = [...new Set(also)].slice(0, MOST_PANES - 1);
  } else if (parts[0] === "sessions" && parts[2] === "events" && parts.length === 3) {
    route.page = "events";
    route.sessionId = parts[1];
  } else if (parts.length === 1 && ["inbox", "agents", "policy", "audit", "metrics", "keys"].includes(parts[0])) route.page = parts[0];
  return route;
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = observable(parse(location));

addEventListener("popstate", () => {
  route.value = parse(location);
});

/** Goes to a path below /console, such as `/sessions/ID`, or with /console before it. */
export function navigate(path, { replace = false } = {}) {
  const target = address(path);
  if (target === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", target);
  route.value = parse(location);
}

/** The address of a path below /console. */
export function address(path) {
  return path.startsWith(BASE) ? path : BASE + (path.startsWith("/") ? path : `/${path}`);
}

/** The address of sessions side by side, the first one being the main one. */
export function sessionPath(id, also = []) {
  const others = also.filter((other) => other !== id).map(encodeURIComponent);
  return `/sessions/${encodeURIComponent(id)}${others.length ? `?also=${others.join(",")}` : ""}`;
}

/** @returns {Route} */
export const useRoute = () => useObservable(route);

/** A link to a page of the console. With ctrl, cmd, shift or the middle button the browser opens it as it does every link. */
export function Link({ href, children, onClick, replace, ...rest }) {
  const follow = (event) => {
    onClick?.(event);
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(href, { replace });
  };
  return html`<a href=${address(href)} onClick=${follow} ...${rest}>${children}</a>`;
}
