/** A list of many rows of one height, of which only those in view are in the page. A row can be expanded. */

import { html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "../preact.js";

const OVERSCAN = 8;
/** Rows above and below the ones in view. */

/** The index of the item with a key among items in ascending order of their keys; -1 if there is none. */
export function indexOfKey(items, keyOf, key) {
  let low = 0;
  let high = items.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const found = keyOf(items[middle]);
    if (found === key) return middle;
    if (found < key) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
}

/**
 * Where rows are, if some have more height than the others.
 * @param {number} count
 * @param {number} rowHeight
 * @param {[number, number][]} extras index and additional height of expanded rows, ascending
 */
export function geometry(count, rowHeight, extras) {
  const offsetOf = (index) => extras.reduce((sum, [at, height]) => (at < index ? sum + height : sum), index * rowHeight);
  const height = offsetOf(count);
  /** The index of the row at a distance from the top. */
  const rowAt = (offset) => {
    let before = 0;
    for (const [at, extra] of extras) {
      const top = at * rowHeight + before;
      if (offset < top + rowHeight) break;
      if (offset < top + rowHeight + extra) return at;
      before += extra;
    }
    return Math.max(0, Math.min(count - 1, Math.floor((offset - before) / rowHeight)));
  };
  return { height, offsetOf, rowAt };
}

/**
 * @param {object} props
 * @param {any[]} props.items in ascending order of their keys
 * @param {number} props.version changes when `items` has changed in place
 * @param {(item: any) => number} props.keyOf
 * @param {(item: any) => any} props.renderRow the cells of a row
 * @param {(item: any) => any} props.renderDetail what an expanded row shows below
 * @param {(item: any) => string} [props.rowClass]
 * @param {string[]} props.columns the names of the cells
 * @param {string} props.label
 * @param {number} props.rowHeight in pixels
 * @param {boolean} props.follow whether the end stays in view while rows are added
 * @param {(follow: boolean) => void} props.onFollow called when the user scrolls to the end or away from it
 */
export function RowList({ items, keyOf, renderRow, renderDetail, rowClass, columns, label, rowHeight, follow, onFollow }) {
  const scroller = useRef(null);
  const anchor = useRef(null);
  const focused = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [expanded, setExpanded] = useState(new Map());
  const [current, setCurrent] = useState(null);
  /** Whether the list has the focus because the row that had it is not in the page any more. */
  const rowLeft = useRef(false);
  const hadFocus = scroller.current?.contains(document.activeElement);

  const extras = [...expanded]
    .map(([key, height]) => [indexOfKey(items, keyOf, key), height])
    .filter(([index]) => index >= 0)
    .sort((one, other) => one[0] - other[0]);
  const places = geometry(items.length, rowHeight, extras);
  const first = Math.max(0, places.rowAt(view.top) - OVERSCAN);
  const last = Math.min(items.length, places.rowAt(view.top + view.height) + OVERSCAN + 1);
  const currentAt = current === null ? -1 : indexOfKey(items, keyOf, current);
  const inView = items.length ? keyOf(items[Math.min(first + OVERSCAN, items.length - 1)]) : null;

  const onScroll = useCallback(
    (event) => {
      // The element of the event: a list that is removed while it scrolls still gets one.
      const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
      setView({ top: scrollTop, height: clientHeight });
      onFollow?.(scrollHeight - scrollTop - clientHeight < 4);
    },
    [onFollow],
  );

  useEffect(() => {
    const observer = new ResizeObserver(() => {
      const { scrollTop, clientHeight } = scroller.current;
      setView({ top: scrollTop, height: clientHeight });
    });
    observer.observe(scroller.current);
    return () => observer.disconnect();
  }, []);

  // Rows that are added above, or whose height changes, do not move what is in view.
  useLayoutEffect(() => {
    const element = scroller.current;
    if (follow) {
      if (element.scrollTop + element.clientHeight < element.scrollHeight) element.scrollTop = element.scrollHeight;
    } else if (anchor.current) {
      const index = indexOfKey(items, keyOf, anchor.current.key);
      const moved = index < 0 ? 0 : places.offsetOf(index) - anchor.current.offset;
      if (moved) element.scrollTop += moved;
    }
    const top = items.length ? places.rowAt(element.scrollTop) : -1;
    anchor.current = top < 0 ? null : { key: keyOf(items[top]), offset: places.offsetOf(top) };
    if (element.scrollTop !== view.top) setView({ top: element.scrollTop, height: element.clientHeight });
  });

  useLayoutEffect(() => {
    // A focused row that leaves the page takes the focus with it: the list keeps it, so that the keys go on from that row.
    if (hadFocus && !scroller.current.contains(document.activeElement)) {
      scroller.current.focus({ preventScroll: true });
      rowLeft.current = true;
    }
    if (focused.current === null) return;
    const button = scroller.current.querySelector(`[data-row="${focused.current}"]`);
    if (button) {
      button.focus({ preventScroll: true });
      focused.current = null;
    }
  });

  const toggle = (key) => {
    const next = new Map(expanded);
    if (!next.delete(key)) next.set(key, 0);
    onFollow?.(false);
    setExpanded(next);
  };
  const measured = useCallback((key, height) => {
    setExpanded((before) => (before.has(key) && before.get(key) !== height ? new Map(before).set(key, height) : before));
  }, []);

  const goTo = (index) => {
    const to = Math.max(0, Math.min(items.length - 1, index));
    if (to < 0) return;
    const element = scroller.current;
    const top = places.offsetOf(to);
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = top + rowHeight - element.clientHeight;
    focused.current = keyOf(items[to]);
    setCurrent(focused.current);
    setView({ top: element.scrollTop, height: element.clientHeight });
  };
  const onKeyDown = (event) => {
    const key = rowLeft.current ? (currentAt >= 0 ? current : inView) : event.target.dataset?.row;
    if (key === undefined || key === null || event.altKey || event.ctrlKey || event.metaKey) return;
    const index = indexOfKey(items, keyOf, Number(key));
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 1);
    const to = { ArrowDown: index + 1, ArrowUp: index - 1, PageDown: index + page, PageUp: index - page, Home: 0, End: items.length - 1 }[
      event.key
    ];
    if (to === undefined) return;
    event.preventDefault();
    onFollow?.(to >= items.length - 1);
    goTo(to);
  };

  // A row that is not in the page cannot be reached by Tab.
  const tabStop = currentAt >= first && currentAt < last ? current : inView;
  return html`<div class="row-list" role="table" aria-label=${label} aria-rowcount=${items.length + 1} aria-colcount=${columns.length}>
    <div role="rowgroup" class="row-list-head">
      <div role="row" class="row-list-row" aria-rowindex="1">${columns.map((name) => html`<span role="columnheader">${name}</span>`)}</div>
    </div>
    <div class="row-list-scroll" role="rowgroup" tabindex="-1" ref=${scroller} onScroll=${onScroll} onKeyDown=${onKeyDown}
      onFocusOut=${(event) => event.target === event.currentTarget && (rowLeft.current = false)}>
      <div class="row-list-space" role="presentation" style=${{ height: `${places.height}px` }}>
        <div class="row-list-rows" role="presentation" style=${{ transform: `translateY(${places.offsetOf(first)}px)` }}>
          ${items.slice(first, last).map((item, offset) => {
            const key = keyOf(item);
            return html`<${Row} key=${key} rowKey=${key} item=${item} index=${first + offset} open=${expanded.has(key)}
              cells=${renderRow} detail=${renderDetail} rowClass=${rowClass} rowHeight=${rowHeight} stop=${key === tabStop}
              onToggle=${toggle} onMeasured=${measured} onFocus=${setCurrent} />`;
          })}
        </div>
      </div>
    </div>
  </div>`;
}

function Row({ rowKey, item, index, open, cells, detail, rowClass, rowHeight, stop, onToggle, onMeasured, onFocus }) {
  const below = useRef(null);
  useEffect(() => {
    if (!open) return undefined;
    const observer = new ResizeObserver(() => onMeasured(rowKey, below.current.offsetHeight));
    observer.observe(below.current);
    return () => observer.disconnect();
  }, [open, rowKey]);
  const [name, ...rest] = cells(item);
  return html`<div role="row" aria-rowindex=${index + 2} class=${`row-list-row ${open ? "open" : ""} ${rowClass?.(item) ?? ""}`}>
    <div class="row-list-cells" role="presentation" style=${{ height: `${rowHeight}px` }} onClick=${() => onToggle(rowKey)}>
      <span role="cell"><button type="button" class="row-list-toggle" data-row=${rowKey} aria-expanded=${open} tabindex=${stop ? 0 : -1}
        onClick=${(event) => (event.stopPropagation(), onToggle(rowKey))} onFocus=${() => onFocus(rowKey)}>${name}</button></span>
      ${rest.map((cell) => html`<span role="cell">${cell}</span>`)}
    </div>
    ${open && html`<div class="row-list-detail" role="cell" ref=${below}>${detail(item)}</div>`}
  </div>`;
}
