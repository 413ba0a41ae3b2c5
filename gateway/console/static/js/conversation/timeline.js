/**
 * What a conversation shows, made of the events of its log. No DOM, no requests, no clock: times come with the entries.
 *
 * An item is never changed: where an event changes one, a new object takes its place, so that only what has changed is rendered.
 * An entry takes the same short time however many items there are.
 *
 * Items, by `type`: `user`, `text`, `thinking`, `tool` (with `children`: calls of a sub-agent), `plan`, `error`, `end` (of a run),
 * `rate_limit`, `compacted`, `mode`, `hook`, `notice`, `raw`, `gap`, `paused`, `system`, `image`. Every item has a `key` that stays, `id`, the
 * number of its first event (of a call: the id of the call), and `turn`, the number of the event that began its turn (null before the first).
 */

import { taskOfCall } from "./steps.js";

const OPEN = new Set(["writing", "running", "waiting"]);
const DENIED = /^(?:PreToolUse:\S+ hook error: )?Tool call denied/;
const CANCELLED = /^Tool call cancelled/;

export const NO_USAGE = Object.freeze({ input: 0, output: 0, cacheRead: 0, cacheWrite: 0, reasoning: 0, cost: null });

function usageOf(event) {
  return {
    input: event.input_tokens ?? 0,
    output: event.output_tokens ?? 0,
    cacheRead: event.cache_read ?? 0,
    cacheWrite: event.cache_write ?? 0,
    reasoning: event.reasoning_tokens ?? 0,
    cost: event.cost_usd ?? null,
  };
}

export function addUsage(left, right) {
  return {
    input: left.input + right.input,
    output: left.output + right.output,
    cacheRead: left.cacheRead + right.cacheRead,
    cacheWrite: left.cacheWrite + right.cacheWrite,
    reasoning: left.reasoning + right.reasoning,
    cost: left.cost === null && right.cost === null ? null : (left.cost ?? 0) + (right.cost ?? 0),
  };
}

function textOf(content) {
  if (typeof content === "string") return content;
  return Array.isArray(content) ? content.filter((block) => block?.type === "text").map((block) => block.text).join("") : "";
}

/** The `https:` and `data:` addresses of the images of a message. */
export function imagesOf(content) {
  return Array.isArray(content) ? content.filter((block) => block?.type === "image" && typeof block.url === "string").map((block) => block.url) : [];
}

export class Timeline {
  /** @param {Array} [seeds] stored messages before the first event: `[{position, message}]`, in order */
  constructor(seeds = []) {
    this.title = undefined;
    this.model = null;
    this.mode = null;
    this.commands = null;
    this.context = null;
    this.rateLimit = null;
    this.usage = NO_USAGE;
    /** Tasks by their ids, and the id of the call that has changed them last. */
    this._tasks = new Map();
    this._taskCall = null;
    /** The number of the last event. */
    this.last = 0;
    /** Whether a run is under way, as far as the events say. */
    this.running = false;
    /** Whether it waits for its client. */
    this.waiting = false;
    /** Counts changes. */
    this.version = 0;
    this._items = [];
    this._shown = null;
    this._calls = new Map();
    this._now = 0;
    this._turn = null;
    this._turnMessage = null;
    this._open = null;
    this._message = [];
    this._plan = null;
    this._limit = null;
    this._hooks = new Map();
    this._runUsage = NO_USAGE;
    this._runContext = null;
    this._runFrom = 0;
    this._runError = false;
    this._skip = "";
    for (const seed of seeds) this._seed(seed);
    this._seeds = this._items.length;
  }

  /** All items in order. The array is another one after a change, and may be kept. */
  get items() {
    this._shown ??= this._items.slice();
    return this._shown;
  }

  /** Applies entries `{id, event, first?, at?}` in the order of the log. `at` is when a live event came, in milliseconds. */
  append(entries) {
    for (const entry of entries) {
      const handle = HANDLERS[entry.event?.kind];
      this.last = Math.max(this.last, entry.id);
      this._now = entry.first ?? entry.id;
      if (handle) handle.call(this, entry.event, entry);
    }
    this._shown = null;
    this.version += 1;
    return this;
  }

  /** The daemon has ended and no event says how the run under way has ended. */
  interrupted(reason) {
    if (!this.running) return;
    this._endRun("cancelled");
    this._add({ type: "gap", key: `gap:${this.last}`, text: reason });
    this._shown = null;
    this.version += 1;
  }

  /** The message of the user that began the last turn with one: `{seq, content}`; null without one. */
  get lastPrompt() {
    return this._turnMessage;
  }

  // -- items ------------------------------------------------------------------------------------------------------------

  _add(item) {
    const whole = { turn: this._turn, id: this._now, ...item };
    this._items.push(whole);
    return this._items.length - 1;
  }

  _change(index, changes) {
    this._items[index] = { ...this._items[index], ...changes };
  }

  _close(at) {
    const index = this._open;
    if (index === null) return;
    this._open = null;
    const item = this._items[index];
    const took = item.type === "thinking" && item.startedAt && at ? { took: at - item.startedAt } : {};
    this._change(index, { streaming: false, ...took });
  }

  _delta(type, event, entry) {
    if (!event.text) return;
    const open = this._open === null ? null : this._items[this._open];
    if (open?.type === type) {
      this._items[this._open] = { ...open, text: open.text + event.text };
      return;
    }
    this._close(entry.at);
    if (!(this._skip + event.text).trim()) {
      // White space before a message would be an empty item.
      this._skip += event.text;
      return;
    }
    const text = this._skip.replace(/^\s*\n/, "") + event.text;
    this._skip = "";
    this._open = this._add({ type, key: `${type}:${entry.first ?? entry.id}`, text, streaming: true, startedAt: entry.at ?? null });
    this._message.push(this._open);
    this.running = true;
  }

  // -- calls ------------------------------------------------------------------------------------------------------------

  _call(id) {
    const place = this._calls.get(id);
    if (!place) return null;
    let item = this._items[place[0]];
    for (const child of place.slice(1)) item = item?.children.find((one) => one.id === child);
    return item ?? null;
  }

  _changeCall(id, changes) {
    const place = this._calls.get(id);
    if (!place) return;
    const apply = (item, path) =>
      path.length
        ? { ...item, children: item.children.map((child) => (child.id === path[0] ? apply(child, path.slice(1)) : child)) }
        : { ...item, ...(typeof changes === "function" ? changes(item) : changes) };
    this._items[place[0]] = apply(this._items[place[0]], place.slice(1));
  }

  _newCall(id, entry, fields) {
    const call = {
      // Not the number of its first event: a page may begin in the middle of the call.
      type: "tool", key: this._calls.has(id) ? `tool:${id}:${entry.first ?? entry.id}` : `tool:${id}`, id, name: "", input: null, detail: null, state: "running",
      output: "", result: null, changes: [], exitCode: null, children: [], turn: this._turn, ...fields,
    };
    const parent = fields.parent ? this._calls.get(fields.parent) : null;
    if (parent) {
      this._changeCall(fields.parent, (item) => ({ children: [...item.children, call] }));
      this._calls.set(id, [...parent, id]);
    } else {
      this._close(entry.at);
      this._calls.set(id, [this._add(call)]);
    }
  }

  /** The call of an event; one whose beginning is not loaded, or is missing, is made. */
  _known(id, entry, fields = {}) {
    const call = this._call(id);
    if (!call) this._newCall(id, entry, fields);
    return this._call(id);
  }

  _eachOpenCall(visit) {
    const walk = (item) => {
      if (item.type !== "tool") return;
      item.children.forEach(walk);
      if (OPEN.has(item.state)) visit(item);
    };
    for (let index = this._items.length - 1; index >= this._runFrom; index -= 1) walk(this._items[index]);
  }

  _endRun(state) {
    this._close();
    this._eachOpenCall((call) => this._changeCall(call.id, { state: call.state === "writing" ? "abandoned" : state, streaming: false }));
    this._hooks.clear();
    this._plan = this._limit = null;
    this._message = [];
    this._skip = "";
    this.running = this.waiting = false;
    this._runUsage = NO_USAGE;
    this._runContext = null;
    this._runError = false;
    this._runFrom = this._items.length;
  }

  // -- messages that were there before the first event ----------------------------------------------------------------

  _seed({ position, message }) {
    const key = `seed:${position}`;
    const content = message?.content;
    if (message?.role === "user") this._add({ type: "user", key, content, text: textOf(content), position, seed: true });
    else if (message?.role === "system") this._add({ type: "system", key, text: textOf(content), seed: true });
    else if (message?.role === "tool") this._result(message.toolCallId, content, { id: key, first: key });
    else if (message?.role === "assistant") {
      const blocks = typeof content === "string" ? [{ type: "text", text: content }] : (content ?? []);
      blocks.forEach((block, at) => {
        if (block.type === "text" && block.text.trim()) {
          this._add({ type: message["x-portico"]?.error ? "error" : "text", key: `${key}.${at}`, text: block.text, message: block.text, streaming: false, seed: true });
        } else if (block.type === "thinking") this._add({ type: "thinking", key: `${key}.${at}`, text: block.thinking, streaming: false, seed: true });
        else if (block.type === "image") this._add({ type: "image", key: `${key}.${at}`, url: block.url, seed: true });
        else if (block.type === "tool_use") {
          this._newCall(block.toolCallId, { id: key, first: `${key}.${at}` }, { name: block.name, input: block.input, state: "ended" });
        }
      });
    }
  }

  _result(id, output, entry, fields = {}) {
    const call = this._known(id, entry);
    const text = textOf(output);
    const state = DENIED.test(text) ? "denied" : CANCELLED.test(text) ? "cancelled" : fields.failed ? "failed" : "completed";
    this._changeCall(call.id, {
      result: output,
      state,
      changes: fields.changes ?? [],
      exitCode: fields.exitCode ?? null,
      endedAt: entry.at ?? null,
      byClient: fields.byClient ?? false,
    });
    if (state === "completed") this._changeTasks(id, text);
  }

  /** Of an agent that changes one task with each call, the newest call has the whole list (`tasks`), and the one before it none. */
  _changeTasks(id, output) {
    const call = this._call(id);
    const change = taskOfCall(call.name, call.input, output);
    if (!change) return;
    const task = change.id ?? String(this._tasks.size + 1);
    if (change.status === "deleted") this._tasks.delete(task);
    else this._tasks.set(task, { status: "pending", content: `Task ${task}`, ...this._tasks.get(task), ...change });
    if (this._taskCall !== null) this._changeCall(this._taskCall, { tasks: [] });
    this._taskCall = id;
    this._changeCall(id, { tasks: [...this._tasks.values()] });
  }
}

const HANDLERS = {
  turn_start(event, entry) {
    const messages = event.messages ?? [];
    const prompts = messages.filter((message) => message.role === "user");
    if (prompts.length && this.running) {
      // A message cancels what waits. A run that neither waits nor has ended was cut off by the end of the daemon.
      const cut = !this.waiting;
      this._endRun("cancelled");
      if (cut) this._add({ type: "gap", key: `gap:${entry.id}`, text: "The gateway was stopped while this turn was running. Its last events may be missing." });
    }
    this._close(entry.at);
    this._turn = entry.id;
    this.running = true;
    this.waiting = false;
    for (const message of messages) {
      if (message.role === "tool") this._result(message.toolCallId ?? message.tool_call_id, message.content, entry, { byClient: true });
    }
    for (const reply of event.permissions ?? []) {
      const state = reply.granted ? "running" : "denied";
      this._known(reply.call_id, entry);
      this._changeCall(reply.call_id, { state, decision: { granted: reply.granted, reason: reply.reason ?? null, choice: reply.choice ?? null } });
    }
    this._eachOpenCall((call) => call.state === "waiting" && this._changeCall(call.id, { state: "running" }));
    prompts.forEach((message, at) => {
      this._turnMessage = { seq: entry.id, content: message.content };
      this._add({ type: "user", key: `user:${entry.id}.${at}`, content: message.content, text: textOf(message.content), seq: entry.id });
    });
    if (prompts.length) this._runFrom = this._items.length;
  },
  steered(event, entry) {
    this._close(entry.at);
    const content = event.message?.content;
    this._add({ type: "user", key: `user:${entry.id}`, content, text: textOf(content), steered: true });
  },
  agent_token(event, entry) {
    this._delta("text", event, entry);
  },
  thinking(event, entry) {
    this._delta("thinking", event, entry);
  },
  message_end(event, entry) {
    this._close(entry.at);
    if (event.discarded) for (const index of this._message) this._change(index, { discarded: true });
    this._message = [];
    this._skip = "";
  },
  tool_input(event, entry) {
    const call = this._call(event.id);
    if (!call || !OPEN.has(call.state)) this._newCall(event.id, entry, { name: event.name, input: event.input, state: "writing" });
    else if (call.state === "writing") this._changeCall(event.id, { name: event.name || call.name, input: event.input });
    this.running = true;
  },
  tool_call(event, entry) {
    const call = this._call(event.id);
    if (event.status === "started") {
      const fields = { name: event.name, input: event.input ?? null, detail: event.detail ?? null, state: "running", startedAt: entry.at ?? null };
      if (call?.state === "writing") this._changeCall(event.id, fields);
      else if (!call || !OPEN.has(call.state)) this._newCall(event.id, entry, { ...fields, parent: event.parent_id ?? event.subagent_id ?? null });
      this.running = true;
    } else {
      const known = call ?? this._known(event.id, entry, { name: event.name, parent: event.parent_id ?? null });
      if (OPEN.has(known.state)) this._changeCall(event.id, { state: event.status, endedAt: entry.at ?? null });
    }
  },
  tool_output(event, entry) {
    const call = this._known(event.tool_call_id, entry);
    this._changeCall(call.id, { output: call.output + (event.text ?? "") });
  },
  tool_result(event, entry) {
    this._known(event.tool_call_id, entry, { parent: event.parent_id ?? null });
    this._result(event.tool_call_id, event.output, entry, { failed: Boolean(event.is_error), changes: event.changes ?? [], exitCode: event.exit_code ?? null });
  },
  terminal(event, entry) {
    this._known(event.tool_call_id, entry);
    this._changeCall(event.tool_call_id, { terminal: event.terminal_id });
  },
  subagent(event, entry) {
    const call = this._known(event.id, entry, { name: "Sub-agent", detail: event.label ?? null });
    const state = event.status === "started" ? call.state : event.status === "failed" ? "failed" : "completed";
    this._changeCall(event.id, { subagent: { label: event.label, status: event.status }, ...(OPEN.has(call.state) ? { state } : {}) });
  },
  awaiting(event, entry) {
    this._close(entry.at);
    for (const awaited of event.calls ?? []) {
      this._known(awaited.id, entry);
      this._changeCall(awaited.id, { state: "waiting", wants: awaited.wants, optional: Boolean(awaited.optional) });
    }
    this.waiting = true;
  },
  plan(event, entry) {
    if (this._plan !== null) this._change(this._plan, { entries: event.entries ?? [] });
    else {
      this._close(entry.at);
      this._plan = this._add({ type: "plan", key: `plan:${entry.first ?? entry.id}`, entries: event.entries ?? [] });
    }
  },
  hook(event, entry) {
    const known = this._hooks.get(event.id);
    if (known !== undefined) this._change(known, { status: event.status });
    else this._hooks.set(event.id, this._add({ type: "hook", key: `hook:${entry.id}`, name: event.name, status: event.status }));
  },
  notice(event, entry) {
    this._add({ type: "notice", key: `notice:${entry.id}`, severity: event.severity, text: event.text });
  },
  usage(event) {
    const used = usageOf(event);
    this.usage = addUsage(this.usage, used);
    this._runUsage = addUsage(this._runUsage, used);
  },
  context_use(event) {
    this.context = this._runContext = { used: event.used, size: event.size };
  },
  rate_limit(event, entry) {
    const { status, limit, utilization, resets_at: resetsAt, waiting } = event;
    const found = { status, limit: limit ?? null, utilization: utilization ?? null, resetsAt: resetsAt ?? null, waiting: Boolean(waiting) };
    this.rateLimit = found;
    if (status === "allowed" && !waiting) return;
    if (this._limit !== null) this._change(this._limit, found);
    else this._limit = this._add({ type: "rate_limit", key: `limit:${entry.id}`, ...found });
  },
  compacted(event, entry) {
    this._close(entry.at);
    this._add({
      type: "compacted", key: `compacted:${entry.id}`, summary: event.summary ?? null, kept: event.kept ?? 0, trigger: event.trigger ?? null,
      tokensBefore: event.tokens_before ?? null,
    });
  },
  mode(event, entry) {
    this._close(entry.at);
    this.mode = event.mode;
    this._add({ type: "mode", key: `mode:${entry.id}`, mode: event.mode });
  },
  title(event) {
    this.title = event.text ?? null;
  },
  commands(event) {
    this.commands = event.commands ?? [];
  },
  native_session(event) {
    this.model = event.model ?? this.model;
  },
  stdout(event, entry) {
    raw.call(this, "stdout", event, entry);
  },
  stderr(event, entry) {
    raw.call(this, "stderr", event, entry);
  },
  gap(event, entry) {
    this._close(entry.at);
    this._add({ type: "gap", key: `gap:${entry.id}`, text: event.reason ?? "Events are missing here." });
  },
  error(event, entry) {
    this._close(entry.at);
    if (this.waiting) {
      // The process has ended, as with the daemon. The calls still wait, and their answers start the agent anew.
      this._add({ type: "paused", key: `paused:${entry.id}` });
      return;
    }
    this._runError = true;
    this._add({ type: "error", key: `error:${entry.id}`, message: event.message, resetsAt: event.resets_at ?? null, seq: this._turnMessage?.seq ?? null });
  },
  session_end(event, entry) {
    this._close(entry.at);
    const stopReason = event.stop_reason ?? "end_turn";
    const failed = stopReason === "error" || (event.exit_code !== 0 && stopReason === "end_turn");
    if (failed && !this._runError) {
      const message = `The agent's process ended with exit code ${event.exit_code}.`;
      this._add({ type: "error", key: `error:${entry.id}`, message, resetsAt: null, seq: this._turnMessage?.seq ?? null });
    }
    const [usage, context] = [this._runUsage, this._runContext];
    this._endRun(stopReason === "cancelled" ? "cancelled" : "ended");
    this._add({
      type: "end", key: `end:${entry.id}`, stopReason: failed ? "error" : stopReason, exitCode: event.exit_code, durationMs: event.duration_ms ?? 0,
      usage, context, seq: this._turnMessage?.seq ?? null, prompt: this._turnMessage?.content ?? null,
    });
  },
};

function raw(stream, event, entry) {
  const index = this._items.length - 1;
  const last = this._items[index];
  if (last?.type === "raw" && last.stream === stream && last.turn === this._turn) this._change(index, { text: `${last.text}\n${event.line}` });
  else {
    this._close(entry.at);
    this._add({ type: "raw", key: `raw:${entry.first ?? entry.id}`, stream, text: event.line ?? "" });
  }
}

const MERGED = new Set(["agent_token", "thinking", "tool_output"]);

/** Adds an entry to a list, in which successive deltas of one kind and call are one: what is kept to make the timeline again. */
export function keep(entries, entry) {
  const last = entries[entries.length - 1];
  const event = entry.event;
  if (last && MERGED.has(event.kind) && last.event.kind === event.kind && last.event.tool_call_id === event.tool_call_id) {
    entries[entries.length - 1] = { ...last, first: last.first ?? last.id, id: entry.id, event: { ...last.event, text: last.event.text + event.text } };
  } else entries.push(entry);
}
