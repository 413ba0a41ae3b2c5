/** The request of a turn. Its stream is not read: the session's log has the events, for this window and all others. */
import { AAP, send } from "../api.js";

const RETRIES = [300, 1000, 2500];

/** A new key. `crypto.randomUUID` exists on pages of https and of loopback addresses only. */
export function idempotencyKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Send the turn, and wait until the server has taken it: with `queue` until the message is in the queue, otherwise until its turn begins.
 *
 * A request whose connection is lost is repeated with the same idempotency key, so that it runs once. A message that is to steer a
 * run is repeated where the run is just beginning or ending.
 *
 * @param {object} body `messages`, and what else a turn may have
 * @param {{key?: string, signal?: AbortSignal, queue?: boolean}} options
 * @throws {import("../api.js").ApiError} with the server's words; `status` 0 if it cannot be reached
 */
export async function postTurn(sessionId, body, { key = idempotencyKey(), signal, queue = false } = {}) {
  const path = `${AAP}/sessions/${encodeURIComponent(sessionId)}/${queue ? "queue" : "turns"}`;
  const turn = { stream: "delta", on_disconnect: "continue", ...body };
  for (let attempt = 0; ; attempt++) {
    try {
      const response = await send("POST", path, turn, { headers: { "Idempotency-Key": key }, signal });
      response.body?.cancel().catch(() => {});
      return;
    } catch (error) {
      const again = error.status === 0 || (error.status === 409 && body.when_busy === "steer");
      if (!again || attempt >= RETRIES.length) throw error;
      await new Promise((done) => setTimeout(done, RETRIES[attempt]));
      if (signal?.aborted) throw error;
    }
  }
}
