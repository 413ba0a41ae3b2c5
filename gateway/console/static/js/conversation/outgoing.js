/** Messages on their way to the daemon: what is sent, queued or refused, until the log has it. */

import { idempotencyKey, postTurn } from "../composer/post-turn.js";
import { observable, useObservable } from "../observable.js";

/**
 * @typedef {{id: number, sessionId: string, message: object|null, body: object, key: string, when: "turn"|"queue"|"steer", state: "sending"|"queued"|"failed", error: string|null}} Outgoing
 */

/** All messages of this window that are on their way. */
export const outgoing = observable([]);

const requests = new Map();
let lastId = 0;

function replace(id, changes) {
  outgoing.value = outgoing.value.map((entry) => (entry.id === id ? { ...entry, ...changes } : entry));
}

function drop(id) {
  requests.delete(id);
  outgoing.value = outgoing.value.filter((entry) => entry.id !== id);
}

/**
 * Sends a turn. Resolves when the daemon has taken it: its events are in the log then, or with `queue` the message is in the queue of the session.
 * @param {object} body `messages`, and what else a turn may have (`when_busy`, `agent`, `tools`)
 * @throws {import("../api.js").ApiError} if it is refused; the message stays in `outgoing` as failed. An aborted one resolves.
 */
export async function sendTurn(sessionId, body, { key = idempotencyKey(), queue = false } = {}) {
  const id = ++lastId;
  const message = (body.messages ?? []).find((one) => one.role === "user") ?? null;
  const when = body.when_busy === "queue" ? "queue" : body.when_busy === "steer" ? "steer" : "turn";
  outgoing.value = [...outgoing.value, { id, sessionId, message, body, key, queue, when, state: "sending", error: null }];
  const controller = new AbortController();
  requests.set(id, controller);
  // A turn that may begin at once does so within a moment; what takes longer waits in the daemon's queue.
  const timer = when === "queue" && !queue ? setTimeout(() => replace(id, { state: "queued" }), 400) : 0;
  try {
    await postTurn(sessionId, body, { key, signal: controller.signal, queue });
    drop(id);
  } catch (error) {
    if (controller.signal.aborted) return drop(id);
    // Without a message of the user (answers to calls) whoever sent it shows the error.
    if (message) replace(id, { state: "failed", error: error.message });
    else drop(id);
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/** Takes a message back. */
export function removeOutgoing(id) {
  requests.get(id)?.abort();
  drop(id);
}

/** Sends a refused message again. */
export function retryOutgoing(id) {
  const entry = outgoing.value.find((one) => one.id === id);
  if (!entry) return Promise.resolve();
  drop(id);
  return sendTurn(entry.sessionId, entry.body, { key: entry.key, queue: entry.queue }).catch(() => {});
}

export function useOutgoing(sessionId) {
  return useObservable(outgoing).filter((entry) => entry.sessionId === sessionId && entry.message);
}
