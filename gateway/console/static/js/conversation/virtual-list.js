/**
 * A list of any length, of which only the rows near the visible part are in the page. Heights are measured; those of rows that were never
 * shown are estimated.
 *
 * What a reader looks at stays where it is when rows above it change their height or are put in. At its end the list follows new rows, until
 * the reader scrolls up.
 */

import { Component, html } from "../preact.js";

const MARGIN = 800;
const NEAR_END = 48;

/** Positions of rows by their measured and estimated heights. No DOM. */
export class RowPositions {
  constructor() {
    this.items = [];
    this.count = 0;
    this.heights = new Map();
    this.offsets = new Float64Array(1);
    this._index = null;
    this._changed = true;
  }

  /** @param {{key: string}[]} items @param {(item: any) => number} estimate */
  update(items, estimate) {
    if (items === this.items && !this._changed) return;
    if (items !== this.items) this._index = null;
    this._changed = false;
    const count = items.length;
    if (this.offsets.length < count + 1) {
      this.offsets = new Float64Array(Math.max(count + 1, this.offsets.length * 2));
    }
    let at = 0;
    for (let index = 0; index < count; index += 1) {
      this.offsets[index] = at;
      at += this.heights.get(items[index].key) ?? estimate(items[index]);
    }
    this.offsets[count] = at;
    this.count = count;
    this.items = items;
  }

  get total() {
    return this.offsets[this.count];
  }

  /** Whether this is another height than the one that is known. */
  measured(key, height) {
    if (Math.abs((this.heights.get(key) ?? -1) - height) < 0.5) return false;
    this.heights.set(key, height);
    this._changed = true;
    return true;
  }

  /** The index of the row at this distance from the top. */
  at(distance) {
    let low = 0;
    let high = Math.max(0, this.count - 1);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offsets[middle] <= distance) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The distance of a row from the top; null without such a row. */
  offsetOf(key) {
    this._index ??= new Map(this.items.map((item, index) => [item.key, index]));
    const index = this._index.get(key);
    return index === undefined ? null : this.offsets[index];
  }

  /** The range of rows, end excluded, between two distances from the top. */
  range(from, to) {
    return this.count ? [this.at(Math.max(0, from)), Math.min(this.count, this.at(Math.max(0, to)) + 1)] : [0, 0];
  }
}

class Row extends Component {
  shouldComponentUpdate(next) {
    return next.item !== this.props.item || next.context !== this.props.context;
  }

  componentDidMount() {
    this.props.observer.observe(this.node);
  }

  componentWillUnmount() {
    this.props.observer.unobserve(this.node);
  }

  render({ item, renderItem, context }) {
    return html`<div class="talk-row" data-key=${item.key} ref=${(node) => (this.node = node)}>${renderItem(item, context)}</div>`;
  }
}

/**
 * Props: `items` (each with a `key`), `renderItem(item, context)`, `contextOf(item)` (what else a row depends on, compared by identity),
 * `estimate(item)` in pixels, `before` and `after` (content above and below the rows), `onNearTop()`, `onFollow(follows, unseen)`: whether the
 * list is at its end and follows new output, `label`.
 */
export class VirtualList extends Component {
  constructor(props) {
    super(props);
    this.positions = new RowPositions();
    this.positions.update(props.items, props.estimate);
    this.start = this.end = 0;
    this.follows = true;
    this.anchors = [];
    this.lastTop = 0;
    this.height = 0;
    this.observer = new ResizeObserver((entries) => this.resized(entries));
  }

  componentDidMount() {
    this.observer.observe(this.scroller);
    this.observer.observe(this.head);
    this.observer.observe(this.tail);
    this.height = this.scroller.clientHeight;
    this.settle();
  }

  componentWillUnmount() {
    this.observer.disconnect();
  }

  componentDidUpdate() {
    this.measure();
    this.settle();
  }

  /** Heights of the rows in the page, before the browser paints them. */
  measure() {
    for (const row of this.scroller.querySelectorAll(":scope > .talk-row")) this.positions.measured(row.dataset.key, row.getBoundingClientRect().height);
  }

  /** The distance from the top of the list to its first row. */
  get headHeight() {
    return this.head?.offsetHeight ?? 0;
  }

  resized(entries) {
    this.catchUp();
    let changed = false;
    for (const { target } of entries) {
      const key = target.dataset.key;
      if (key !== undefined) {
        if (target.isConnected) changed = this.positions.measured(key, target.getBoundingClientRect().height) || changed;
      } else {
        changed = true;
        if (target === this.scroller) this.height = this.scroller.clientHeight;
      }
    }
    if (changed) this.settle();
  }

  /** Brings positions, the rows in the page and the scroll position in line with the items and their heights. */
  settle() {
    if (!this.scroller) return;
    this.positions.update(this.props.items, this.props.estimate);
    const { offsets, count, total } = this.positions;
    this.top.style.height = `${offsets[Math.min(this.start, count)]}px`;
    this.bottom.style.height = `${Math.max(0, total - offsets[Math.min(this.end, count)])}px`;
    if (this.follows) {
      this.scrollTo(this.scroller.scrollHeight);
      this.show(total - this.height);
      return;
    }
    // A row may be gone: one whose beginning was in an older page is part of another one now.
    const anchor = this.anchors.find(({ key }) => this.positions.offsetOf(key) !== null);
    if (!anchor) {
      this.show(this.scroller.scrollTop - this.headHeight);
      return;
    }
    const from = this.positions.offsetOf(anchor.key) - anchor.distance;
    if (Math.abs(from + this.headHeight - this.scroller.scrollTop) >= 1) this.scrollTo(from + this.headHeight);
    this.show(from);
  }

  scrollTo(top) {
    this.scroller.scrollTop = top;
    this.lastTop = this.scroller.scrollTop;
  }

  /** Chooses the rows that are in the page, if the visible part begins so far below the first row. */
  show(from) {
    const [start, end] = this.positions.range(from - MARGIN, from + this.height + MARGIN);
    if (start !== this.start || end !== this.end) {
      this.start = start;
      this.end = end;
      this.setState({});
    }
    if (this.scroller.scrollTop < 600) this.props.onNearTop?.();
  }

  remember(from) {
    if (!this.positions.count) return;
    const { items, offsets } = this.positions;
    const [start, end] = this.positions.range(from, from + this.height);
    this.anchors = items.slice(start, end).map((item, at) => ({ key: item.key, distance: offsets[start + at] - from }));
  }

  onScroll = () => {
    // An event of the list's last layout may come after its end.
    if (!this.scroller) return;
    this.noteScroll();
    this.show(this.scroller.scrollTop - this.headHeight);
  };

  /** The reader may have scrolled, and the event of that has not come yet. Before rows change: then the browser moves the list too. */
  catchUp() {
    if (this.scroller && Math.abs(this.scroller.scrollTop - this.lastTop) >= 1) this.noteScroll();
  }

  noteScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const left = scrollHeight - clientHeight - scrollTop;
    // Output that makes the list longer does not scroll it. Only a reader moves it up.
    if (scrollTop < this.lastTop - 1 && left > 4) this.follow(false);
    else if (left <= NEAR_END && scrollTop >= this.lastTop) this.follow(true);
    this.lastTop = scrollTop;
    if (!this.follows) this.remember(scrollTop - this.headHeight);
  }

  follow(follows) {
    if (this.follows === follows) return;
    this.follows = follows;
    if (!follows) this.remember(this.scroller.scrollTop - this.headHeight);
    this.props.onFollow?.(follows);
  }

  /** Goes to the end and follows it. */
  toEnd() {
    this.follow(true);
    this.settle();
  }

  /** Goes to a row, and marks it for a moment. */
  toKey(key) {
    if (this.positions.offsetOf(key) === null) return;
    this.follow(false);
    this.anchors = [{ key, distance: 60 }];
    this.settle();
    // It is rendered by then, and what is above it has its height.
    requestAnimationFrame(() => {
      const row = [...this.scroller.children].find((one) => one.dataset.key === key);
      row?.classList.add("found");
      setTimeout(() => row?.classList.remove("found"), 2500);
    });
  }

  /** Keeps the same rows in the page when others were put in before them. */
  shiftRange(items) {
    const first = this.positions.items[this.start];
    if (items === this.positions.items || !first || items[this.start]?.key === first.key) return;
    const index = items.findIndex((item) => item.key === first.key);
    if (index < 0) return;
    this.end += index - this.start;
    this.start = index;
  }

  render({ items, renderItem, contextOf, before, after, label }) {
    this.catchUp();
    this.shiftRange(items);
    const last = Math.min(this.end, items.length);
    const rows = [];
    for (let index = Math.min(this.start, last); index < last; index += 1) {
      const item = items[index];
      rows.push(html`<${Row} key=${item.key} item=${item} context=${contextOf?.(item)} renderItem=${renderItem} observer=${this.observer} />`);
    }
    // Heights of the spacers are set after rendering, together with the scroll position.
    return html`<div class="talk-list" tabindex="0" role="group" aria-label=${label} ref=${(node) => (this.scroller = node)} onScroll=${this.onScroll}>
      <div class="talk-head" ref=${(node) => (this.head = node)}>${before}</div>
      <div class="talk-space" ref=${(node) => (this.top = node)}></div>
      ${rows}
      <div class="talk-space" ref=${(node) => (this.bottom = node)}></div>
      <div class="talk-tail" ref=${(node) => (this.tail = node)}>${after}</div>
    </div>`;
  }
}
