/**
 * The files that pending calls would change, as they are on the disk: read for the card, and again before an answer that allows
 * the call. What has changed meanwhile is shown first.
 */
import { AAP, api } from "../api.js";
import { changesOfCall } from "../conversation/file-changes.js";
import { observable } from "../observable.js";

/**
 * By call: its files, or why they could not be read. `version` counts the states that were shown.
 * @type {{value: Map<string, {files: import("../conversation/file-changes.js").DiskFile[], error: string|null, version: number}>}}
 */
export const filesOnDisk = observable(new Map());

const LARGEST = 200;

/** What tells a call from all others: agents choose the ids of calls, and repeat them. */
const keyOfCall = (session, call) => [session.sessionId, session["x-portico"].waitingSince, call.toolCallId].join(" ");

/** By call: a large change takes long to compare. */
const compared = new WeakMap();

/** Whether an answer to a call depends on the disk. */
export function changesFiles(call) {
  if (!compared.has(call)) compared.set(call, call.wants === "permission" && changesOfCall(call.name, call.input).length > 0);
  return compared.get(call);
}

/** What is known of a call's files; undefined until they are read. */
export const filesOf = (session, call, all = filesOnDisk.value) => all.get(keyOfCall(session, call));

/** What a card shows of a call, for `seen.js`; null while its files are read. */
export function seenKey(session, call) {
  const version = changesFiles(call) ? filesOf(session, call)?.version : 0;
  return version === undefined ? null : `${keyOfCall(session, call)} ${version}`;
}

async function read(session, call) {
  const path = [AAP, "sessions", session.sessionId, "calls", encodeURIComponent(call.toolCallId), "files"].join("/");
  try {
    return { files: (await api.get(path)).files, error: null };
  } catch (error) {
    // Without a connection there is no answer either.
    if (!error.status) throw error;
    return { files: [], error: error.message };
  }
}

const content = ({ files, error }) =>
  JSON.stringify([error, files.map(({ path, exists, text, size, modified, problem }) => [path, exists, text ?? [size, modified], problem])]);

function keep(session, call, state) {
  const key = keyOfCall(session, call);
  const all = new Map(filesOnDisk.value);
  const before = all.get(key);
  if (before && content(before) === content(state)) return false;
  all.delete(key);
  all.set(key, { ...state, version: (before?.version ?? 0) + 1 });
  for (const oldest of [...all.keys()].slice(0, -LARGEST)) all.delete(oldest);
  filesOnDisk.value = all;
  return true;
}

/** Read the files of a call for its card. */
export async function loadFiles(session, call) {
  try {
    keep(session, call, await read(session, call));
  } catch (error) {
    keep(session, call, { files: [], error: error.message });
  }
}

/** Read the files of calls again. @returns {Promise<object[]>} the calls whose files are not as they were shown. Raises ApiError without a connection. */
export async function changedSince(session, calls) {
  const states = await Promise.all(calls.map((call) => read(session, call)));
  return calls.filter((call, at) => keep(session, call, states[at]));
}
