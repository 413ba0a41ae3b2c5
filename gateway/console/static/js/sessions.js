/**
 * The caller's sessions and agents, live.
 *
 * A session is the object that `GET /aap/v3/sessions/ID` returns: `{sessionId, agent: {name, options, tools}, tools, "x-portico": {state, title,
 * cwd, updatedAt, lastSeq, pendingCalls, ...}}`. It is replaced, never changed, so components may compare it by identity.
 */
import { AAP, ApiError, api, query } from "./api.js";
import { visibleText } from "./conversation/safe-text.js";
import { observable, stored, useObservable, useSelected } from "./observable.js";
import { useEffect } from "./preact.js";
import { followUpdates } from "./updates.js";

const PAGE = 100;

/** Map of session id → session: those that were listed so far. */
export const sessions = observable(new Map());

/** `{complete: false, loading: true, error: null}`: whether all sessions are in the map. */
export const listing = observable({ complete: false, loading: true, error: null, loaded: false });

/** The agents of `GET /meta`: `[{name, title, options, tools, capabilities, ...}]`, null until they are known. */
export const agents = observable(null);

/** Ids of the sessions whose deletion can still be undone. */
export const deleting = observable(new Set());

let cursor = null;
/** How many of the newest sessions are listed without a hole. */
let depth = 0;
let close = null;
let generation = 0;

/** @returns {object|undefined} */
export const useSession = (id) => useSelected(sessions, (map) => map.get(id));

/** All known sessions that are not being deleted, newest activity first. */
export function useSessions() {
  const map = useObservable(sessions);
  const hidden = useObservable(deleting);
  return [...map.values()].filter((session) => !hidden.has(session.sessionId)).sort(byActivity);
}

export const useAgents = () => useObservable(agents);

const own = (session) => session?.["x-portico"] ?? {};

function byActivity(a, b) {
  const [one, other] = [own(a).updatedAt ?? "", own(b).updatedAt ?? ""];
  if (one !== other) return one < other ? 1 : -1;
  return a.sessionId < b.sessionId ? 1 : -1;
}

/** "running", "waiting" (for the user), "error" (the last turn failed) or "idle". */
export function stateOf(session) {
  const { state, stopReason, error } = own(session);
  if (state === "running" || state === "waiting") return state;
  return stopReason === "error" || error ? "error" : "idle";
}

export const titleOf = (session) => own(session).title || "New session";

/** The title as it is shown: what would reorder the text around it is visible. */
export const shownTitle = (session) => visibleText(titleOf(session));

/** The working folder, or null. */
export const folderOf = (session) => own(session).cwd ?? session?.agent?.options?.cwd ?? null;

/** The folder that the user knows it by: of a session in a worktree, the one that this was made from. Null if it has none. */
export function projectOf(session) {
  const { worktree, cwd } = own(session);
  if (!worktree) return folderOf(session);
  return worktree.base + (cwd?.startsWith(`${worktree.path}/`) ? cwd.slice(worktree.path.length) : "");
}

/** The calls that wait for the user; empty if none. */
export function pendingOf(session) {
  return own(session).state === "waiting" ? (own(session).pendingCalls ?? []) : [];
}

/** The sessions that wait for the user, those that have waited longest first. */
export function waitingSessions(map = sessions.value) {
  return [...map.values()]
    .filter((session) => own(session).state === "waiting" && !deleting.value.has(session.sessionId))
    .sort((a, b) => (own(a).waitingSince ?? "").localeCompare(own(b).waitingSince ?? ""));
}

/** The last part of a folder's path; the home folder is not known here, so the whole path is the tooltip. */
export function folderName(path) {
  if (!path) return "No folder";
  const parts = visibleText(path).split("/").filter(Boolean);
  return parts.at(-1) ?? "/";
}

// Unread marks: the number of the last event that was seen, by session.

const seen = stored("portico.seen", {});
/** Sessions whose last activity was before the console's first use in this browser count as read. */
const since = stored("portico.seenSince", null);
since.value ??= new Date().toISOString();

const lastSeq = (session) => own(session).lastSeq ?? 0;

export function isUnread(session, marks = seen.value) {
  const mark = marks[session.sessionId];
  if (mark === undefined) return lastSeq(session) > 0 && (own(session).updatedAt ?? "") > since.value;
  return lastSeq(session) > mark;
}

export const useUnreadMarks = () => useObservable(seen);

export function markSeen(session) {
  if (!session) return;
  const { sessionId } = session;
  if ((seen.value[sessionId] ?? -1) >= lastSeq(session)) return;
  const next = { ...seen.value, [sessionId]: lastSeq(session) };
  const ids = Object.keys(next);
  // 5000 marks are 250 kB of localStorage at most.
  for (const id of ids.slice(0, Math.max(0, ids.length - 5000))) delete next[id];
  seen.value = next;
}

export function markUnread(session) {
  seen.value = { ...seen.value, [session.sessionId]: Math.max(0, lastSeq(session) - 1) };
}

/** Marks a session as seen as long as it is open in a window that the user looks at. */
export function useMarkSeen(id) {
  const session = useSession(id);
  useEffect(() => {
    const look = () => document.visibilityState === "visible" && document.hasFocus() && markSeen(sessions.value.get(id));
    look();
    addEventListener("focus", look);
    addEventListener("pointerdown", look);
    document.addEventListener("visibilitychange", look);
    return () => {
      removeEventListener("focus", look);
      removeEventListener("pointerdown", look);
      document.removeEventListener("visibilitychange", look);
    };
  }, [id, session]);
}

// Loading.

/** Milliseconds between two renderings of the list, while many sessions change. */
const PAUSE = 50;
let timer = null;
let dirty = false;

function publish() {
  dirty = false;
  sessions.value = new Map(sessions.value);
  timer = setTimeout(() => {
    timer = null;
    if (dirty) publish();
  }, PAUSE);
}

function changed() {
  if (dirty) return;
  dirty = true;
  if (timer === null) queueMicrotask(() => dirty && timer === null && publish());
}

function put(session) {
  sessions.value.set(session.sessionId, session);
  changed();
}

/** Sessions that were deleted while this page was open. */
const gone = new Set();

function drop(id) {
  gone.add(id);
  if (sessions.value.delete(id)) changed();
}

const order = (parameters) => `${AAP}/sessions${query({ order: "activity", limit: PAGE, ...parameters })}`;

/** Lists from the newest until what was known has been listed again; what is missing among them was deleted meanwhile. */
async function list(current) {
  if (again) return void (again = "asked");
  again = "busy";
  try {
    await listOnce(current);
  } finally {
    const asked = again === "asked";
    again = null;
    if (asked && current === generation) list(current);
  }
}

let again = null;

async function listOnce(current) {
  listing.value = { ...listing.value, loading: true, error: null };
  const before = new Set(sessions.value.keys());
  const touched = new Set();
  const updates = (id) => touched.add(id);
  listeners.add(updates);
  try {
    let after = null;
    let listed = 0;
    let oldest = "";
    do {
      const page = await api.get(order({ after }));
      if (current !== generation) return;
      for (const session of page.sessions) {
        before.delete(session.sessionId);
        // What /updates has said meanwhile is newer.
        if (!touched.has(session.sessionId)) put(session);
      }
      listed += page.sessions.length;
      oldest = own(page.sessions.at(-1)).updatedAt ?? "";
      after = page.next ?? null;
    } while (after && listed < depth);
    for (const id of before) {
      const updated = own(sessions.value.get(id)).updatedAt ?? "";
      if (!touched.has(id) && (!after || updated > oldest)) drop(id);
    }
    cursor = after;
    depth = listed;
    listing.value = { complete: !after, loading: false, error: null, loaded: true };
    if (after) await listWaiting(current, touched);
  } catch (error) {
    if (current === generation) listing.value = { ...listing.value, loading: false, error: error.message };
  } finally {
    listeners.delete(updates);
  }
}

/** Lists all sessions that wait for the user: they may be older than those of the list. */
async function listWaiting(current, touched) {
  const stale = new Set(waitingSessions().map((session) => session.sessionId));
  let after = null;
  do {
    const page = await api.get(order({ state: "waiting", after }));
    if (current !== generation) return;
    for (const session of page.sessions) {
      stale.delete(session.sessionId);
      if (!touched.has(session.sessionId)) put(session);
    }
    after = page.next ?? null;
  } while (after);
  await Promise.all([...stale].map((id) => loadSession(id)));
}

/** Lists the next page of older sessions. */
export async function listOlder() {
  if (!cursor || listing.value.loading) return;
  const current = generation;
  listing.value = { ...listing.value, loading: true };
  try {
    const page = await api.get(order({ after: cursor }));
    if (current !== generation) return;
    for (const session of page.sessions) if (!sessions.value.has(session.sessionId)) put(session);
    cursor = page.next ?? null;
    depth += page.sessions.length;
    listing.value = { complete: !cursor, loading: false, error: null, loaded: true };
  } catch (error) {
    listing.value = { ...listing.value, loading: false, error: error.message };
  }
}

/** Reads one session that may not have been listed yet. @returns {Promise<object|null>} null if there is none */
export async function loadSession(id) {
  if (gone.has(id)) return null;
  try {
    const session = await api.get(`${AAP}/sessions/${encodeURIComponent(id)}`);
    put(session);
    return session;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) {
      drop(id);
      return null;
    }
    throw error;
  }
}

export async function loadAgents() {
  agents.value = (await api.get(`${AAP}/meta`)).agents;
}

const listeners = new Set();

function received(frame) {
  if (frame.event === "session") put(frame.data);
  else if (frame.event === "session_deleted") drop(frame.data.sessionId);
  else return;
  for (const listener of [...listeners]) listener(frame.data.sessionId);
}

/** Begins to follow the caller's sessions, after signing in. */
export function start() {
  stop();
  const current = ++generation;
  loadAgents().catch(() => {});
  close = followUpdates({
    // The list is read behind `ready`: whatever changes after it is reported.
    onReady() {
      list(current);
      if (!agents.value) loadAgents().catch(() => {});
    },
    onFrames: (frames) => frames.forEach(received),
  });
}

/** Forgets everything, after signing out. */
export function stop() {
  generation += 1;
  close?.();
  close = null;
  cursor = null;
  depth = 0;
  sessions.value = new Map();
  agents.value = null;
  listing.value = { complete: false, loading: true, error: null, loaded: false };
}

// What the user does with sessions.

const sessionApi = (id, rest = "") => `${AAP}/sessions/${encodeURIComponent(id)}${rest}`;

/** Sets the user's title; null or "" gives the agent's back. */
export async function rename(id, title) {
  put(await api.patch(sessionApi(id), { title: title || null }));
}

/** A new session with the messages so far, or up to `{after: SEQ}` or `{messages: COUNT}`. @returns {Promise<string>} its id */
export async function fork(id, until = {}) {
  const { sessionId } = await api.post(sessionApi(id, "/fork"), until);
  await loadSession(sessionId);
  return sessionId;
}

const UNDO = 6_000;
const timers = new Map();

function setDeleting(id, value) {
  const next = new Set(deleting.value);
  if (value) next.add(id);
  else next.delete(id);
  deleting.value = next;
}

async function deleteNow(id, keepalive = false) {
  clearTimeout(timers.get(id));
  timers.delete(id);
  try {
    await api.delete(sessionApi(id), { keepalive });
  } catch (error) {
    if (error.status !== 404) {
      setDeleting(id, false);
      throw error;
    }
  }
  drop(id);
  setDeleting(id, false);
}

/**
 * Deletes a session in 6 seconds, or when the page is left. Until then it is only hidden.
 * @returns {() => void} takes it back
 */
export function deleteLater(id, onError) {
  setDeleting(id, true);
  clearTimeout(timers.get(id));
  timers.set(id, setTimeout(() => deleteNow(id).catch(onError), UNDO));
  return () => {
    clearTimeout(timers.get(id));
    timers.delete(id);
    setDeleting(id, false);
  };
}

addEventListener("pagehide", () => {
  for (const id of [...timers.keys()]) deleteNow(id, true).catch(() => {});
});
