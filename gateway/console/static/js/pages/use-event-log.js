/** The event log of a session in a component: stored pages, the live stream, and a replay of the stream from any number. */

import { api, stream } from "../api.js";
import { useEffect, useMemo, useState } from "../preact.js";
import { EventLog, storedEntry } from "./event-log.js";

/** Events of one request for stored ones. */
const PAGE = 2000;
/** Older events are loaded by themselves until there are so many. */
const AUTOMATIC = 100_000;
/** Milliseconds between two events of a replay, and until it looks for further ones. */
const SHORTEST_PAUSE = 4;
const LONGEST_PAUSE = 10_000;
const IDLE = 50;

/** Reads one session's log. `onChange` is called after each change, once a frame of the display at most. */
class LogReader {
  constructor(sessionId, onChange) {
    this._path = `/aap/v3/sessions/${encodeURIComponent(sessionId)}/log`;
    this._onChange = onChange;
    this._abort = new AbortController();
    this._scheduled = null;
    this._arrived = [];
    this._streaming = null;
    /** The numbers that the pages so far cover. */
    this._first = null;
    this._last = null;
    /** All events of the session. */
    this.all = new EventLog();
    /** By the number of each run's first event. */
    this.runs = new Map();
    this.seeds = 0;
    this.more = false;
    this.loading = true;
    this.error = null;
    this.olderError = null;
    this.deleted = false;
    /** What a replay has shown so far, or null. */
    this.replayed = null;
  }

  async start() {
    try {
      await this._loadNewest();
      this._follow();
      await this.loadOlder(AUTOMATIC);
    } catch (error) {
      this._fail(error);
    }
  }

  /** Load older pages until there are `count` events, or all. */
  async loadOlder(count = Infinity) {
    this.loading = true;
    this.olderError = null;
    this._changed();
    try {
      while (this.more && this.all.entries.length < count && !this._abort.signal.aborted) {
        const page = await this._page(`before=${this._first}&limit=${PAGE}`);
        this.all.addOlder(page.events.map(storedEntry));
        this._pageLoaded(page);
        this._changed();
      }
    } catch (error) {
      if (!this._abort.signal.aborted) this.olderError = error.message;
    }
    this.loading = false;
    this._changed();
  }

  /**
   * Read the stream again from an event on, as a client would that has seen the one before it.
   * @param {number} from
   * @param {'instant' | 'live' | 'steps'} speed
   */
  replay(from, speed) {
    this._stopStream();
    this.replayed = { log: this.all.emptyCopy(), from, speed, waiting: [] };
    // With the times of the first arrival, where they are known.
    this._stream(Math.max(0, from - 1), ({ id, event }) => this.replayed.waiting.push(this.all.entryOf(id) ?? storedEntry({ id, event })));
    if (speed === "live") this._playNext();
    this._changed();
  }

  /** Show the next event of a replay in steps. */
  step() {
    const entry = this.replayed?.waiting.shift();
    if (entry) this.replayed.log.addNewer([entry]);
    this._changed();
  }

  stopReplay() {
    this._stopStream();
    clearTimeout(this._timer);
    this.replayed = null;
    this._follow();
    this._changed();
  }

  filter(kinds, text) {
    this.all.filter(kinds, text);
    this.replayed?.log.filter(kinds, text);
    this._changed();
  }

  close() {
    this._abort.abort();
    this._stopStream();
    clearTimeout(this._timer);
    cancelAnimationFrame(this._scheduled);
  }

  async _loadNewest() {
    const page = await this._page(`limit=${PAGE}`);
    this.all.addNewer(page.events.map(storedEntry));
    this.seeds = page.seeds ?? 0;
    this._last = page.last;
    this._pageLoaded(page);
    this._changed();
  }

  _pageLoaded(page) {
    this.more = page.more && page.first !== this._first;
    this._first = page.first;
  }

  async _page(query) {
    const page = await api.get(`${this._path}?${query}`, { signal: this._abort.signal });
    for (const run of page.runs ?? []) this.runs.set(run.firstSeq, run);
    return page;
  }

  _follow() {
    this._stream(Math.max(this._last ?? 0, this.all.last ?? 0), (entry) => this._arrived.push(entry));
  }

  _stream(after, take) {
    this._streaming = new AbortController();
    let last = null;
    stream(this._path, {
      signal: this._streaming.signal,
      after,
      onFrames: (frames) => {
        const at = performance.timeOrigin + performance.now();
        for (const { id, event, data } of frames) {
          if (event === "deleted") this.deleted = true;
          if (event !== "message" || !data) continue;
          take({ id: Number(id), event: data, at, gap: last === null ? null : at - last });
          last = at;
        }
        this._changed();
      },
      onEnd: (error) => error && !this.deleted && this._fail(error),
    });
  }

  _stopStream() {
    this._streaming?.abort();
    this._drain();
  }

  /** Plays on with the pauses with which the events arrived, as far as they are known; those that were stored follow at once. */
  _playNext() {
    const { replayed } = this;
    if (replayed?.speed !== "live") return;
    const { waiting, log } = replayed;
    let due = 0;
    while (due < waiting.length && (waiting[due].gap ?? 0) < SHORTEST_PAUSE) due += 1;
    log.addNewer(waiting.splice(0, due));
    const [next] = waiting;
    this._timer = setTimeout(
      () => {
        if (next) this.step();
        this._playNext();
      },
      next ? Math.min(next.gap, LONGEST_PAUSE) : IDLE,
    );
    if (due) this._changed();
  }

  _drain() {
    if (this._arrived.length) this.all.addNewer(this._arrived.splice(0));
    if (this.replayed?.speed === "instant") this.replayed.log.addNewer(this.replayed.waiting.splice(0));
  }

  _fail(error) {
    if (this._abort.signal.aborted) return;
    this.error = error;
    this.loading = false;
    this._changed();
  }

  _changed() {
    if (this._scheduled !== null || this._abort.signal.aborted) return;
    this._scheduled = requestAnimationFrame(() => {
      this._scheduled = null;
      this._drain();
      this._onChange();
    });
  }
}

/** @returns {LogReader} the same object for a session; the component renders again when it changes */
export function useEventLog(sessionId) {
  const [, render] = useState(0);
  const reader = useMemo(() => new LogReader(sessionId, () => render((count) => count + 1)), [sessionId]);
  useEffect(() => {
    reader.start();
    return () => reader.close();
  }, [reader]);
  return reader;
}
