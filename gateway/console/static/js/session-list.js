/** The list of sessions in the sidebar. */
import { visibleText } from "./conversation/safe-text.js";
import { observable, stored, useObservable, useSelected } from "./observable.js";
import { html, memo, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./preact.js";
import { Link, MOST_PANES, navigate, route as currentRoute, sessionPath, useRoute } from "./router.js";
import {
  deleteLater,
  folderName,
  projectOf,
  fork,
  isUnread,
  listOlder,
  listing,
  markSeen,
  markUnread,
  pendingOf,
  rename,
  stateOf,
  shownTitle,
  titleOf,
  useSessions,
  useUnreadMarks,
} from "./sessions.js";
import { useShortcuts } from "./shortcuts.js";
import { Button, Empty, Icon, IconButton, Menu, Spinner, TimeAgo, copyText, toast } from "./ui/index.js";

const STATES = {
  running: { icon: null, word: "Running" },
  waiting: { icon: "hand", word: "Waiting for you" },
  error: { icon: "error", word: "Error" },
  idle: { icon: null, word: "Idle" },
};

/** "folder", "agent" or "none". */
export const grouping = stored("portico.grouping", "folder");
/** Names of groups that are folded. */
const folded = stored("portico.foldedGroups", [], { ofPerson: true });
/** {agent, state}: which sessions are listed; "" for all. */
export const filter = observable({ agent: "", state: "" });
/** The id of the session whose title is being edited. */
export const renaming = observable(null);

const report = (error) => toast(error.message, { kind: "error" });

/** The state of a session: an icon and a word. */
export function StateBadge({ session }) {
  const state = stateOf(session);
  const { icon, word } = STATES[state];
  return html`<span class=${`state ${state}`}>
    ${state === "running" ? html`<span class="spinner" aria-hidden="true"></span>` : icon ? html`<${Icon} name=${icon} size=${14} />` : html`<span class="state-dot" aria-hidden="true"></span>`}
    <span>${word}</span>
  </span>`;
}

/** Opens a session beside those that are open. */
export function openBeside(route, id) {
  if (route.page !== "session" || route.sessionId === id) return navigate(sessionPath(id));
  const others = route.also.filter((other) => other !== id);
  // The newest takes the place of the last where there are as many as fit.
  navigate(sessionPath(route.sessionId, [...others.slice(0, MOST_PANES - 2), id]));
}

/** Hides a session and deletes it when it can no longer be undone. */
export function deleteWithUndo(session, route) {
  const id = session.sessionId;
  const undo = deleteLater(id, (error) => toast(`Not deleted: ${error.message}`, { kind: "error" }));
  toast(`Deleted “${shownTitle(session)}”.`, { undo });
  if (route.sessionId === id) navigate(route.also.length ? sessionPath(route.also[0], route.also.slice(1)) : "/", { replace: true });
  else if (route.also.includes(id)) navigate(sessionPath(route.sessionId, route.also.filter((other) => other !== id)), { replace: true });
}

/** What can be done with a session, for its menu. */
export function sessionActions(session, route) {
  const id = session.sessionId;
  return [
    { label: "Open beside", icon: "split", hint: "O", disabled: route.sessionId === id, run: () => openBeside(route, id) },
    { label: "Rename", icon: "edit", hint: "R", run: () => (renaming.value = id) },
    { label: "Fork", icon: "fork", hint: "F", run: () => fork(id).then((copy) => navigate(sessionPath(copy)), report) },
    isUnread(session)
      ? { label: "Mark as read", icon: "check", run: () => markSeen(session) }
      : { label: "Mark as unread", icon: "dot", run: () => markUnread(session) },
    { label: "Events", icon: "code", run: () => navigate(`/sessions/${encodeURIComponent(id)}/events`) },
    { label: "Copy id", icon: "copy", run: () => copyText(id).then(() => toast("Copied the session’s id."), report) },
    "separator",
    { label: "Delete", icon: "trash", hint: "Del", danger: true, run: () => deleteWithUndo(session, route) },
  ];
}

/** A title that can be edited in place: Enter saves it, Esc leaves it. An empty one gives the agent's title back. */
export function TitleEditor({ session, onDone }) {
  const [text, setText] = useState(titleOf(session));
  const field = useRef(null);
  const done = useRef(false);
  // Before the next key: what is typed behind the shortcut is for the field.
  useLayoutEffect(() => field.current.select(), []);
  const finish = (save) => {
    if (done.current) return;
    done.current = true;
    onDone();
    const title = text.trim();
    if (save && title !== titleOf(session)) rename(session.sessionId, title).catch((error) => toast(`Not renamed: ${error.message}`, { kind: "error" }));
  };
  const keys = (event) => {
    event.stopPropagation();
    if (event.isComposing) return;
    if (event.key === "Enter") finish(true);
    else if (event.key === "Escape") finish(false);
    else return;
    event.preventDefault();
  };
  return html`<input
    class="input title-editor"
    ref=${field}
    aria-label="Title of the session"
    maxlength="200"
    dir="auto"
    value=${text}
    onInput=${(event) => setText(event.target.value)}
    onKeyDown=${keys}
    onBlur=${() => finish(true)}
    onClick=${(event) => event.stopPropagation()}
  />`;
}

const Row = memo(function Row({ session, open, current, unread, showFolder }) {
  const id = session.sessionId;
  const editing = useSelected(renaming, useCallback((value) => value === id, [id]));
  const row = useRef(null);
  const pending = pendingOf(session).length;
  const edited = useRef(false);
  useLayoutEffect(() => {
    // Before the next key, which may be one that deletes.
    if (edited.current && !editing && (document.activeElement === document.body || document.activeElement === null)) row.current.querySelector("a").focus();
    edited.current = editing;
  }, [editing]);
  const finish = () => {
    renaming.value = null;
  };
  const title = shownTitle(session);
  const details = html`<span class="row-details">
    <${StateBadge} session=${session} />
    ${pending > 1 && html`<span class="count">${pending}</span>`}
    <span class="row-agent" dir="auto">${session.agent.name}</span>
    ${showFolder && projectOf(session) && html`<span class="row-folder" dir="auto" title=${visibleText(projectOf(session))}>${folderName(projectOf(session))}</span>`}
    <${TimeAgo} at=${session["x-portico"]?.updatedAt} />
  </span>`;
  return html`<li class=${`session-row${open ? " open" : ""}${unread ? " unread" : ""}`} data-session=${id} ref=${row}>
    ${editing
      ? html`<div class="row-link"><${TitleEditor} session=${session} onDone=${finish} />${details}</div>`
      : html`<${Link} class="row-link" href=${sessionPath(id)} aria-current=${current ? "page" : undefined} onDblClick=${() => (renaming.value = id)}>
          <span class="row-title">
            ${unread && html`<span class="unread-mark"><span class="visually-hidden">Unread: </span></span>`}
            <span class="row-text" dir="auto" title=${title}>${title}</span>
          </span>
          ${details}
        </${Link}>`}
    ${!editing && html`<${Menu} label=${`Actions for ${title}`} class="row-menu" items=${() => sessionActions(session, currentRoute.value)} />`}
  </li>`;
});

function groupsOf(sessions, by) {
  if (by === "none") return [{ key: "", name: null, sessions }];
  const groups = new Map();
  for (const session of sessions) {
    const key = by === "agent" ? session.agent.name : (projectOf(session) ?? "");
    if (!groups.has(key)) groups.set(key, { key, name: by === "agent" ? key : folderName(key), sessions: [] });
    groups.get(key).sessions.push(session);
  }
  // Two folders of one name get the folder above, too.
  const names = new Map();
  for (const group of groups.values()) names.set(group.name, (names.get(group.name) ?? 0) + 1);
  for (const group of groups.values()) {
    if (by === "folder" && names.get(group.name) > 1) group.name = group.key.split("/").slice(-2).map(visibleText).join("/") || group.name;
  }
  return [...groups.values()];
}

const GROUPINGS = [
  ["folder", "Folder"],
  ["agent", "Agent"],
  ["none", "Time"],
];
const WANTED = [
  ["", "All"],
  ["waiting", "Waiting for you"],
  ["running", "Running"],
  ["unread", "Unread"],
  ["error", "Error"],
  ["idle", "Idle"],
];

/** The head of the list: how it is grouped and which sessions are shown. */
export function ListTools() {
  const by = useObservable(grouping);
  const wanted = useObservable(filter);
  const names = [...new Set(useSessions().map((session) => session.agent.name))].sort();
  const items = () => [
    { heading: "Group by" },
    ...GROUPINGS.map(([value, label]) => ({ label, checked: by === value, run: () => (grouping.value = value) })),
    { heading: "State" },
    ...WANTED.map(([state, label]) => ({ label, checked: wanted.state === state, run: () => (filter.value = { ...wanted, state }) })),
    { heading: "Agent" },
    { label: "All", checked: wanted.agent === "", run: () => (filter.value = { ...wanted, agent: "" }) },
    ...names.map((agent) => ({ label: agent, checked: wanted.agent === agent, run: () => (filter.value = { ...wanted, agent }) })),
  ];
  const chip = (label, cleared) =>
    html`<button type="button" class="chip" onClick=${() => (filter.value = { ...wanted, ...cleared })}>${label}<${Icon} name="close" size=${12} label="Remove the filter" /></button>`;
  return html`<div class="list-tools">
    <span class="list-title">Sessions</span>
    ${wanted.state && chip(WANTED.find(([value]) => value === wanted.state)[1], { state: "" })}
    ${wanted.agent && chip(wanted.agent, { agent: "" })}
    <${Menu} label="Group and filter the sessions" icon="filter" items=${items} />
  </div>`;
}

export function SessionList() {
  const sessions = useSessions();
  const route = useRoute();
  const marks = useUnreadMarks();
  const by = useObservable(grouping);
  const closed = useObservable(folded);
  const wanted = useObservable(filter);
  const status = useObservable(listing);
  const list = useRef(null);
  const shown = useMemo(
    () =>
      sessions.filter((session) => {
        if (wanted.agent && session.agent.name !== wanted.agent) return false;
        if (wanted.state === "unread") return isUnread(session, marks);
        return !wanted.state || stateOf(session) === wanted.state;
      }),
    [sessions, wanted, marks],
  );
  const groups = groupsOf(shown, by);

  // The end of the list is near, by scrolling or because the list is short.
  const nearEnd = () => {
    const { scrollTop, clientHeight, scrollHeight } = list.current ?? {};
    return clientHeight > 0 && scrollHeight - scrollTop - clientHeight < 400;
  };
  useEffect(() => {
    if (status.loaded && !status.complete && !status.loading && !status.error && nearEnd()) listOlder();
  }, [status]);

  const isOpen = ({ sessionId: id }) => route.sessionId === id || route.also.includes(id);
  const links = () => [...(list.current?.querySelectorAll(".session-row a.row-link") ?? [])];
  const focused = () => document.activeElement?.closest?.(".session-row")?.dataset.session;
  const target = () => {
    const id = focused() ?? route.sessionId;
    return sessions.find((session) => session.sessionId === id);
  };
  const move = (step) => {
    const all = links();
    if (!all.length) return;
    let at = all.findIndex((link) => link.closest(".session-row").dataset.session === focused());
    if (at < 0) at = all.findIndex((link) => link.getAttribute("aria-current") === "page");
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + step))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  };
  const on = (action) => () => {
    const session = target();
    return session ? action(session) : false;
  };
  useShortcuts([
    { keys: "j", label: "Next session in the list", group: "Sessions", run: () => move(1) },
    { keys: "k", label: "Previous session in the list", group: "Sessions", run: () => move(-1) },
    { keys: "o", label: "Open the session beside", group: "Sessions", run: on((session) => openBeside(route, session.sessionId)) },
    { keys: "r", label: "Rename the session", group: "Sessions", run: on((session) => void (renaming.value = session.sessionId)) },
    { keys: "f", label: "Fork the session", group: "Sessions", run: on((session) => void fork(session.sessionId).then((id) => navigate(sessionPath(id)), report)) },
    { keys: "u", label: "Mark as read or unread", group: "Sessions", run: on((session) => (isUnread(session) ? markSeen(session) : markUnread(session))) },
    { keys: "Delete", label: "Delete the session", group: "Sessions", run: () => remove() },
  ]);
  const remove = () => {
    const id = focused();
    const session = id && sessions.find((one) => one.sessionId === id);
    if (!session) return false;
    const all = links();
    const at = all.findIndex((link) => link.closest(".session-row").dataset.session === id);
    (all[at + 1] ?? all[at - 1])?.focus();
    return deleteWithUndo(session, route);
  };
  const keys = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.target.closest("input, .menu")) return;
    event.preventDefault();
    event.stopPropagation();
    move(step);
  };
  const fold = (key) => (folded.value = closed.includes(key) ? closed.filter((other) => other !== key) : [...closed, key].slice(-200));

  if (!sessions.length && status.loaded) return html`<${Empty} icon="terminal" title="No sessions yet">Start one here, from an editor or by the API: it appears at once.</${Empty}>`;
  return html`<div class="session-list" ref=${list} onKeyDown=${keys} onScroll=${() => nearEnd() && listOlder()}>
    ${groups.map((group) => {
      const key = `${by}:${group.key}`;
      const isFolded = group.name !== null && closed.includes(key);
      const waiting = group.sessions.filter((session) => stateOf(session) === "waiting").length;
      return html`<section class="session-group" key=${key} aria-label=${group.name ?? "Sessions"}>
        ${group.name !== null &&
        html`<h2 class="group-header">
          <button type="button" aria-expanded=${String(!isFolded)} title=${visibleText(group.key) || undefined} onClick=${() => fold(key)}>
            <${Icon} name=${isFolded ? "chevron-right" : "chevron-down"} size=${14} />
            <span class="group-name" dir="auto">${group.name}</span>
            <span class="dim">${group.sessions.length}</span>
            ${isFolded && waiting > 0 && html`<span class="state waiting"><${Icon} name="hand" size=${14} label="Waiting for you" />${waiting}</span>`}
          </button>
        </h2>`}
        ${!isFolded &&
        html`<ul>
          ${group.sessions.map((session) => html`<${Row} key=${session.sessionId} session=${session} open=${isOpen(session)} current=${route.sessionId === session.sessionId} unread=${isUnread(session, marks)} showFolder=${by !== "folder"} />`)}
        </ul>`}
      </section>`;
    })}
    ${!shown.length && status.loaded && html`<p class="list-note">No session matches. <button type="button" class="link-button" onClick=${() => (filter.value = { agent: "", state: "" })}>Show all</button></p>`}
    ${status.error && html`<p class="list-note error-text"><${Icon} name="error" size=${14} /> ${status.error}</p>`}
    ${!status.loaded && status.loading && html`<div class="list-note"><${Spinner} label="Loading sessions" /></div>`}
    ${status.loaded && !status.complete && html`<div class="list-note"><${Button} small=${true} busy=${status.loading} onClick=${listOlder}>Show older sessions</${Button}></div>`}
  </div>`;
}
