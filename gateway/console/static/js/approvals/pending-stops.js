/**
 * The answers to pending calls. The calls of one stop are answered in one turn: each answer is kept here until all are given,
 * then they are sent.
 */
import { observable } from "../observable.js";
import { pendingOf } from "../sessions.js";
import { idempotencyKey, postTurn } from "../composer/post-turn.js";
import { allows, answerTo, messagesOf, unanswered } from "./answers.js";
import { changedSince, changesFiles } from "./files-on-disk.js";

/**
 * By session id: the answers so far (by call id), whether they are being sent, and why they were refused.
 * @type {{value: Map<string, {stop: string, answers: object, sending: boolean, error: string|null}>}}
 */
export const stops = observable(new Map());

const CHANGED = "a file has changed on the disk since it was shown. Look at what the call would do now.";
const EMPTY = { stop: "", answers: {}, sending: false, error: null };

/** What tells one stop of a session from the next, whose calls may have the same ids. */
const stopId = (session) => [session["x-portico"].waitingSince, ...pendingOf(session).map((call) => call.toolCallId)].join(" ");

/** The state of a session's present stop. An error outlives its stop: the user has not read it yet. */
export function stopOf(session, all = stops.value) {
  const known = all.get(session.sessionId) ?? EMPTY;
  if (!pendingOf(session).length) return { ...EMPTY, error: known.error };
  const stop = stopId(session);
  return known.stop === stop ? known : { ...EMPTY, stop, error: known.error };
}

function update(sessionId, state) {
  const all = new Map(stops.value);
  all.set(sessionId, state);
  stops.value = all;
}

/** Keep an answer, null to take it back, and send all once none is missing. */
export function answerCall(session, call, answer) {
  const { [call.toolCallId]: _, ...others } = stopOf(session).answers;
  return answerCalls(session, answer ? { ...others, [call.toolCallId]: answer } : others);
}

/** Keep these answers, by call id, and send them once none is missing. `key` is the idempotency key of the request. */
export async function answerCalls(session, answers, key = idempotencyKey()) {
  const calls = pendingOf(session);
  const state = { ...stopOf(session), answers, error: null };
  if (state.sending || !calls.length) return;
  const complete = Object.keys(answers).length > 0 && !unanswered(calls, answers).length;
  update(session.sessionId, { ...state, sending: complete });
  if (!complete) return;
  try {
    const changed = await changedSince(session, calls.filter((call) => dependsOnDisk(call, answerTo(answers, call))));
    if (changed.length) return update(session.sessionId, { ...state, answers: without(answers, changed), error: CHANGED });
    const messages = messagesOf(calls, answers, session["x-portico"].waitingSince);
    await postTurn(session.sessionId, { messages }, { key });
    // The calls disappear with the server's update of the session; until then the card shows that they are being sent.
    update(session.sessionId, { ...state, sending: true });
  } catch (error) {
    // Refused answers are to be given anew; those that did not reach the server are kept.
    update(session.sessionId, { ...state, answers: error.status ? {} : answers, sending: false, error: error.message });
  }
}

/** Whether an answer allows a change of what the card has shown of the disk. */
const dependsOnDisk = (call, answer) => answer?.kind === "choice" && allows(answer.choice) && changesFiles(call);

const without = (answers, calls) => {
  const left = new Set(calls.map((call) => call.toolCallId));
  return Object.fromEntries(Object.entries(answers).filter(([id]) => !left.has(id)));
};

/** Send answers again that did not reach the server. */
export const sendAgain = (session) => answerCalls(session, stopOf(session).answers);

export function dismissError(sessionId) {
  const known = stops.value.get(sessionId);
  if (known) update(sessionId, { ...known, error: null });
}
