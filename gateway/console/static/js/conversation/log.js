/** The log of one session: its newest page, older pages on demand, and live events; always with the timeline of what is loaded. */

import { AAP, api, query, stream } from "../api.js";
import { observable } from "../observable.js";
import { Timeline, keep } from "./timeline.js";

const PAGE = 500;
const SEEDS = 200;
/** A flush that took longer than this many milliseconds makes the next one wait, so that keys and clicks are handled in between. */
const SLOW = 24;

export class ConversationLog {
  constructor(sessionId) {
    this.path = `${AAP}/sessions/${encodeURIComponent(sessionId)}`;
    this.timeline = new Timeline();
    /** Counts changes of anything in here. */
    this.changes = observable(0);
    this.loaded = false;
    this.loadingOlder = false;
    this.error = null;
    this.deleted = false;
    this.entries = [];
    this.seeds = [];
    this.seedsLeft = 0;
    this.first = null;
    this.more = false;
    this.runs = [];
    this.incoming = [];
    this.frame = null;
    this.controller = new AbortController();
  }

  /** Reads the newest page and follows the log from there. */
  async open() {
    try {
      const page = await this.get("/log", { limit: PAGE, merge: "true" });
      if (this.closed) return;
      this.setPage(page);
      this.rebuild();
      this.loaded = true;
      this.notify();
      this.follow();
    } catch (error) {
      if (this.closed || error.name === "AbortError") return;
      this.error = error;
      this.notify();
    }
  }

  close() {
    this.closed = true;
    this.controller.abort();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
  }

  get(rest, values) {
    return api.get(`${this.path}${rest}${query(values)}`, { signal: this.controller.signal });
  }

  setPage(page) {
    this.entries = [...page.events, ...this.entries];
    this.first = page.events.length ? page.first : this.first;
    this.more = Boolean(page.more) && page.events.length > 0;
    this.runs = page.runs ?? this.runs;
    this.seedsLeft = Math.max(0, (page.seeds ?? 0) - this.seeds.length);
    this.last = Math.max(this.last ?? 0, page.last ?? 0);
  }

  rebuild() {
    const version = this.timeline.version + 1;
    this.timeline = new Timeline(this.seeds).append(this.entries);
    this.timeline.version += version;
  }

  notify() {
    this.changes.value += 1;
  }

  /** Whether there is more before what is loaded. */
  get hasOlder() {
    return this.more || this.seedsLeft > 0;
  }

  /** Loads the page before the first event, or stored messages before the first page. */
  async loadOlder(limit = PAGE) {
    if (this.loadingOlder || !this.loaded || !this.hasOlder) return;
    this.loadingOlder = true;
    this.olderError = null;
    this.notify();
    try {
      if (this.more) this.setPage(await this.get("/log", { before: this.first, limit, merge: "true" }));
      else {
        const first = Math.max(0, this.seedsLeft - SEEDS);
        const page = await this.get("/messages", { first, limit: this.seedsLeft - first });
        this.seeds = [...page.messages, ...this.seeds];
        this.seedsLeft = first;
      }
      this.flush();
      this.rebuild();
    } catch (error) {
      if (error.name !== "AbortError") this.olderError = error.message;
    }
    this.loadingOlder = false;
    this.notify();
  }

  /** Loads pages until the event with this number is in one. */
  async loadUntil(seq) {
    while (!this.closed && this.loaded && this.more && this.first > seq) {
      const before = this.first;
      await this.loadOlder(5000);
      if (this.first === before) return;
    }
  }

  follow() {
    stream(`${this.path}/log`, {
      after: this.last ?? 0,
      signal: this.controller.signal,
      onFrames: (frames) => this.receive(frames),
      onEnd: (error) => {
        if (this.closed) return;
        if (error?.status === 404) this.deleted = true;
        else if (error) this.error = error;
        this.notify();
      },
    });
  }

  receive(frames) {
    const at = Date.now();
    for (const { id, event, data } of frames) {
      if (event === "deleted") this.deleted = true;
      else if (data?.kind && Number(id) > (this.last ?? 0)) {
        this.last = Number(id);
        this.incoming.push({ id: Number(id), event: data, at });
      }
    }
    this.schedule();
  }

  /** Events are shown once a frame of the screen, however many come. A hidden page has no frames, so it uses a timer. */
  schedule() {
    if (this.frame !== null || this.timer) return;
    const run = () => {
      this.frame = null;
      this.timer = 0;
      const before = performance.now();
      this.flush();
      this.notify();
      // Rendering is a microtask of this task.
      setTimeout(() => {
        this.pause = Math.min(1000, performance.now() - before > SLOW ? 2 * (performance.now() - before) : 0);
      });
    };
    if (document.hidden) this.timer = setTimeout(run, 1000);
    else if (this.pause) {
      this.timer = setTimeout(() => {
        this.frame = requestAnimationFrame(run);
        this.timer = 0;
      }, this.pause);
    } else this.frame = requestAnimationFrame(run);
  }

  flush() {
    if (!this.incoming.length) return;
    const entries = this.incoming;
    this.incoming = [];
    for (const entry of entries) keep(this.entries, entry);
    this.timeline.append(entries);
  }
}
