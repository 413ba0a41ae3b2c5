/** Requests to the daemon: JSON, and server-sent events that reconnect by themselves. */
import { observable } from "./observable.js";

/** Base of the session API. */
export const AAP = "/aap/v3";

const TOKEN_KEY = "portico.signIn";
/** A stream without any byte for so long is dead: the daemon sends a comment every 15 s by default. Milliseconds. */
const SILENCE = 45_000;
const FIRST_RETRY = 250;
const LONGEST_RETRY = 8_000;

/** A refused request. `status` is 0 if the daemon could not be reached. */
export class ApiError extends Error {
  constructor(status, message, body = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.body = body;
  }
}

/** "online", or "reconnecting" while a stream is interrupted. */
export const connection = observable("online");

/** Counts the answers with 401. The sign-in page listens. */
export const unauthorized = observable(0);

export const signInToken = {
  get: () => localStorage.getItem(TOKEN_KEY),
  set: (token) => localStorage.setItem(TOKEN_KEY, token),
  clear: () => localStorage.removeItem(TOKEN_KEY),
};

function headersOf(extra, body) {
  const headers = new Headers(extra);
  const token = signInToken.get();
  if (token) headers.set("X-Portico-Sign-In", token);
  if (body !== undefined && !headers.has("Content-Type")) headers.set("Content-Type", "application/json");
  return headers;
}

async function errorOf(response) {
  let body = null;
  let text = "";
  try {
    text = await response.text();
    body = JSON.parse(text);
  } catch {
    // Not JSON: an error of a proxy, whose page says nothing to the user.
  }
  const detail = body && (body.error?.message ?? body.error ?? body.detail);
  const message = typeof detail === "string" ? detail : `The server answered ${response.status} ${response.statusText}`.trim();
  if (response.status === 401) unauthorized.value += 1;
  return new ApiError(response.status, message, body);
}

/** The response of a request. Raises ApiError for an error status and for no connection, AbortError if `signal` aborts it. */
export async function send(method, path, body, { signal, headers, keepalive } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: headersOf(headers, body),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      keepalive,
      credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "Portico cannot be reached. Is it running?");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function json(method, path, body, options) {
  const response = await send(method, path, body, options);
  if (response.status === 204) return null;
  const text = await response.text();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(response.status, `The answer of ${path} is not JSON`);
  }
}

export const api = {
  get: (path, options) => json("GET", path, undefined, options),
  post: (path, body, options) => json("POST", path, body, options),
  put: (path, body, options) => json("PUT", path, body, options),
  patch: (path, body, options) => json("PATCH", path, body, options),
  delete: (path, options) => json("DELETE", path, undefined, options),
};

/** `?a=1&b=2` of the values that are neither null, undefined nor "". */
export function query(values) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") params.append(name, String(value));
  }
  const text = params.toString();
  return text ? `?${text}` : "";
}

const interrupted = new Set();

function mark(key, broken) {
  if (broken) interrupted.add(key);
  else interrupted.delete(key);
  connection.value = interrupted.size ? "reconnecting" : "online";
}

const wakeUps = new Set();

function wakeAll(reason) {
  for (const wake of [...wakeUps]) wake(reason);
}

addEventListener("online", () => wakeAll("online"));
document.addEventListener("visibilitychange", () => wakeAll("visibility"));
addEventListener("pageshow", (event) => event.persisted && wakeAll("sleep"));
// Timers stop while the machine sleeps; its TCP connections may be gone afterwards without a word.
let lastTick = Date.now();
setInterval(() => {
  const now = Date.now();
  if (now - lastTick > 30_000 && !document.hidden) wakeAll("sleep");
  lastTick = now;
}, 5_000);

/**
 * Reads server-sent events by fetch, which unlike EventSource can send headers.
 *
 * A GET, and a POST with an `Idempotency-Key`, reconnects after an interruption from the last id, with a growing delay, at once when
 * the network or the window comes back. It ends by `close()`, by `signal`, by a refusal (4xx), or for other requests with the response.
 *
 * @param {string} path
 * @param {object} options
 * @param {(frame: {id: string|null, event: string, data: any}) => void} [options.onFrame] data is parsed JSON, or text that is not JSON
 * @param {(frames: Array) => void} [options.onFrames] all frames of one read together, instead of `onFrame`
 * @param {() => void} [options.onOpen] after each connection, before its first frame
 * @param {(error: ApiError|null) => void} [options.onEnd] once, when it will not reconnect: null after the end of the response
 * @param {string|number} [options.after] the id after which it begins
 * @param {boolean} [options.whileHidden] keeps the connection while the window is hidden. Otherwise it is closed, since browsers open six
 *   connections to a server at most, and continued from the last id.
 */
export function stream(path, { method = "GET", body, headers, onFrame, onFrames, onOpen, onEnd, signal, after, whileHidden = false } = {}) {
  const key = {};
  let lastId = after === undefined || after === null ? null : String(after);
  let closed = false;
  let controller = null;
  let retry = FIRST_RETRY;
  let timer = null;
  let heard = Date.now();
  const repeatable = method === "GET" || new Headers(headers).has("Idempotency-Key");
  const paused = () => document.hidden && !whileHidden && method === "GET";

  function finish(error) {
    if (closed) return;
    close();
    onEnd?.(error);
  }

  function close() {
    if (closed) return;
    closed = true;
    clearTimeout(timer);
    clearInterval(watchdog);
    wakeUps.delete(wake);
    signal?.removeEventListener("abort", close);
    controller?.abort();
    mark(key, false);
  }

  function wake(reason) {
    if (paused()) {
      clearTimeout(timer);
      timer = null;
      controller?.abort();
      mark(key, false);
    } else if (!controller) {
      retry = FIRST_RETRY;
      clearTimeout(timer);
      connect();
    } else if (reason === "sleep" && repeatable) {
      controller.abort();
    }
  }

  const watchdog = setInterval(() => {
    if (controller && repeatable && Date.now() - heard > SILENCE) controller.abort();
  }, 5_000);

  function again() {
    controller = null;
    if (closed || paused()) return;
    mark(key, true);
    clearTimeout(timer);
    timer = setTimeout(connect, retry * (0.75 + Math.random() / 2));
    retry = Math.min(retry * 2, LONGEST_RETRY);
  }

  async function connect() {
    timer = null;
    if (closed || paused() || controller) return;
    const own = new AbortController();
    controller = own;
    heard = Date.now();
    try {
      const wanted = new Headers(headers);
      wanted.set("Accept", "text/event-stream");
      if (lastId !== null) wanted.set("Last-Event-ID", lastId);
      const response = await send(method, path, body, { signal: own.signal, headers: wanted });
      if (closed) return;
      retry = FIRST_RETRY;
      mark(key, false);
      onOpen?.();
      await read(response);
      if (closed) return;
      if (!repeatable || method !== "GET") return finish(null);
    } catch (error) {
      if (closed) return;
      const final = error instanceof ApiError && error.status >= 400 && error.status < 500 && ![408, 425, 429].includes(error.status);
      if (final || !repeatable) return finish(error.name === "AbortError" ? null : error);
      if (!(error instanceof ApiError) && error.name !== "AbortError" && error.name !== "TypeError") console.error(error);
    } finally {
      own.abort();
    }
    again();
  }

  async function read(response) {
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || closed) return;
      heard = Date.now();
      rest += decoder.decode(value, { stream: true });
      const end = rest.lastIndexOf("\n\n");
      if (end < 0) continue;
      const frames = parseFrames(rest.slice(0, end));
      rest = rest.slice(end + 2);
      for (const frame of frames) if (frame.id !== null) lastId = frame.id;
      if (!frames.length) continue;
      if (onFrames) onFrames(frames);
      else for (const frame of frames) if (!closed) onFrame?.(frame);
    }
  }

  wakeUps.add(wake);
  if (signal?.aborted) close();
  else {
    signal?.addEventListener("abort", close);
    connect();
  }
  return {
    close,
    get lastId() {
      return lastId;
    },
  };
}

/** The frames of a piece of an event stream that ends at a frame's end. Comments are left out. */
export function parseFrames(text) {
  const frames = [];
  for (const block of text.split("\n\n")) {
    let id = null;
    let event = "message";
    let data = null;
    for (const line of block.split("\n")) {
      if (line.startsWith("data:")) {
        const part = line.slice(line[5] === " " ? 6 : 5);
        data = data === null ? part : `${data}\n${part}`;
      } else if (line.startsWith("id:")) id = line.slice(3).trim();
      else if (line.startsWith("event:")) event = line.slice(6).trim();
    }
    if (data === null && event === "message") continue;
    let value = data;
    try {
      value = data === null ? null : JSON.parse(data);
    } catch {
      // Data that is not JSON is text.
    }
    frames.push({ id, event, data: value });
  }
  return frames;
}
