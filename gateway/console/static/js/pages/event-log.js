/** The events of a session as the events pane shows them: in order, filtered by kind and text. Pure, without components. */

import { visible } from "./format.js";

/**
 * @typedef {object} Entry
 * @property {number} id the number of the event in the session's log
 * @property {object} event the stored JSON
 * @property {number | null} at when it arrived here, in milliseconds since the epoch; null for one that was stored before
 * @property {number | null} gap milliseconds since the event before it arrived; null if that is not known
 */

/** @returns {Entry} the entry of a stored event, which has no time */
export function storedEntry({ id, event }) {
  return { id, event, at: null, gap: null };
}

/** All entries that were given, and those of them that match the filter. Both are in the order of their numbers. */
export class EventLog {
  constructor() {
    /** @type {Entry[]} */
    this.entries = [];
    /** @type {Entry[]} */
    this.shown = [];
    /** @type {Map<string, number>} how many events there are of each kind */
    this.kinds = new Map();
    /** @type {Entry[]} the first event of each turn */
    this.turns = [];
    this._only = new Set();
    this._text = "";
    this._json = new WeakMap();
  }

  get first() {
    return this.entries[0]?.id ?? null;
  }

  get last() {
    return this.entries[this.entries.length - 1]?.id ?? null;
  }

  /** Add events that follow. Those that are here already are left out: a stream that reconnects may repeat them. */
  addNewer(entries) {
    const last = this.last ?? -1;
    const added = entries.filter((entry) => entry.id > last);
    this.turns = this.turns.concat(this._count(added));
    for (const entry of added) {
      this.entries.push(entry);
      if (this._matches(entry)) this.shown.push(entry);
    }
    return added.length;
  }

  /** Add events that come before all others. */
  addOlder(entries) {
    const first = this.first ?? Infinity;
    const added = entries.filter((entry) => entry.id < first);
    this.turns = this._count(added).concat(this.turns);
    this.entries = added.concat(this.entries);
    this.shown = added.filter((entry) => this._matches(entry)).concat(this.shown);
    return added.length;
  }

  /**
   * @param {Iterable<string>} kinds none of them stands for all kinds
   * @param {string} text searched for in the JSON, without regard to case
   */
  filter(kinds, text) {
    this._only = new Set(kinds);
    this._text = text.trim().toLowerCase();
    this.shown = this.filtered ? this.entries.filter((entry) => this._matches(entry)) : this.entries.slice();
  }

  /** @returns {Entry | null} */
  entryOf(id) {
    let low = 0;
    let high = this.entries.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      const entry = this.entries[middle];
      if (entry.id === id) return entry;
      if (entry.id < id) low = middle + 1;
      else high = middle - 1;
    }
    return null;
  }

  /** A log without entries that has the same filter. */
  emptyCopy() {
    const copy = new EventLog();
    copy.filter(this._only, this._text);
    return copy;
  }

  get filtered() {
    return this._only.size > 0 || this._text !== "";
  }

  /** Counts events by kind. Returns those that begin a turn. */
  _count(entries) {
    for (const { event } of entries) this.kinds.set(event.kind, (this.kinds.get(event.kind) ?? 0) + 1);
    return entries.filter(({ event }) => event.kind === "turn_start");
  }

  _matches(entry) {
    if (this._only.size && !this._only.has(entry.event.kind)) return false;
    if (!this._text) return true;
    if (this._text === String(entry.id)) return true;
    let json = this._json.get(entry);
    if (json === undefined) {
      json = JSON.stringify(entry.event).toLowerCase();
      this._json.set(entry, json);
    }
    // As it is typed, and as it stands in JSON, where a quote has a backslash before it.
    return json.includes(this._text) || json.includes(JSON.stringify(this._text).slice(1, -1));
  }
}

/** Entries as JSON lines: `{"id": N, "event": {…}}`, with `at` where the time of arrival is known. */
export function jsonLines(entries) {
  return entries
    .map(({ id, event, at }) => JSON.stringify(at === null ? { id, event } : { id, at: new Date(at).toISOString(), event }))
    .map((line) => `${line}\n`)
    .join("");
}

const SUMMARY = 240;
/** Characters of a summary; the whole event is in its details. */

/**
 * An event in one line, without its kind.
 * @param {object} event
 * @returns {string}
 */
export function summary(event) {
  const text = SUMMARIES[event.kind]?.(event) ?? JSON.stringify({ ...event, kind: undefined });
  return visible((text.length > SUMMARY ? `${text.slice(0, SUMMARY)}…` : text).replaceAll("\n", "⏎").replaceAll("\t", "⇥"));
}

const brief = (value) => (typeof value === "string" ? value : (JSON.stringify(value) ?? ""));
const contentText = (content) => (typeof content === "string" ? content : brief(content));

const SUMMARIES = {
  agent_token: (event) => event.text,
  thinking: (event) => event.text,
  stdout: (event) => event.line,
  stderr: (event) => event.line,
  error: (event) => event.message,
  title: (event) => event.text ?? "(none)",
  mode: (event) => event.mode,
  hook: (event) => `${event.name} ${event.status}`,
  subagent: (event) => `${event.label} ${event.status}`,
  tool_call: (event) => [event.name, event.status, event.detail ?? brief(event.input ?? "")].filter(Boolean).join(" · "),
  tool_input: (event) => `${event.name} · ${brief(event.input)}`,
  tool_output: (event) => event.text,
  tool_result: (event) => `${event.is_error ? "failed · " : ""}${contentText(event.output)}`,
  usage: (event) => `${event.input_tokens} in, ${event.output_tokens} out, ${event.cache_read} from the cache`,
  context_use: (event) => `${event.used} of ${event.size} tokens`,
  session_end: (event) => `${event.stop_reason} · exit code ${event.exit_code} · ${event.duration_ms} ms`,
  native_session: (event) => [event.model, event.native_id].filter(Boolean).join(" · "),
  message_end: (event) => (event.discarded ? "discarded" : ""),
  awaiting: (event) => event.calls.map((call) => `${call.wants} of ${call.id}`).join(", "),
  commands: (event) => event.commands.map((command) => `/${command.name}`).join(" "),
  plan: (event) => event.entries.map((entry) => `${entry.content} (${entry.status})`).join(" · "),
  steered: (event) => contentText(event.message.content),
  turn_start: (event) =>
    [
      ...event.messages.map((message) => `${message.role}: ${contentText(message.content)}`),
      ...event.permissions.map((reply) => `${reply.granted ? "granted" : "denied"}: ${reply.call_id}`),
    ].join(" · "),
};

/**
 * The messages of a turn as a client sends them.
 * @param {object} event a `turn_start`
 */
export function clientMessages(event) {
  return [
    ...event.messages,
    ...event.permissions.map(({ call_id, granted, reason }) => ({
      role: "tool_permission",
      toolCallId: call_id,
      granted,
      ...(reason ? { reason } : {}),
    })),
  ];
}
