/** Whether all of a call's input was in view: nobody allows what they have not seen. */
import { observable, useObservable } from "../observable.js";
import { useCallback, useLayoutEffect, useRef } from "../preact.js";
import { cardsMoved } from "./steadiness.js";

/** Pixels, less than a line of text. */
const STEP = 14;
/** Milliseconds. What scrolls is looked at in each frame; what opens or closes above it, within this time. */
const INTERVAL = 250;
/** Until then the page finds its place: what is seen in passing is not looked at. */
const FIRST = 150;
/** Where a line is looked at, in parts of its width. */
const PLACES = [0.05, 0.5, 0.95];
const LARGEST = 1000;

/** What was in view in whole in this window. */
const seen = observable(new Set());

export const wasSeen = (key, all = seen.value) => all.has(key);
export const useSeenSet = () => useObservable(seen);

function markSeen(key) {
  seen.value = new Set([...seen.value, key].slice(-LARGEST));
}

/** Whether a line of an element can be seen: it is in the window, and nothing is over it. */
function isVisible(element, { left, width }, y) {
  const view = window.visualViewport;
  if (y < 0 || y >= innerHeight || (view && (y < view.offsetTop || y >= view.offsetTop + view.height))) return false;
  return PLACES.every((part) => element.contains(document.elementFromPoint(left + width * part, y)));
}

/**
 * Watch an element that shows all of something, without scrolling by itself.
 * @param element a ref of it
 * @param {string|null} key what it shows; null while that is not complete
 * @returns {[boolean, () => void]} whether all of it was in view, and a function that brings what was not into view
 */
export function useSeen(element, key) {
  const all = useObservable(seen);
  const isSeen = key !== null && all.has(key);
  const lines = useRef(null);
  useLayoutEffect(() => {
    if (key === null || isSeen) return undefined;
    let size = "";
    let frame = 0;
    const shown = performance.now();
    const look = () => {
      frame = 0;
      const box = element.current?.getBoundingClientRect();
      if (!box?.height || document.hidden || performance.now() < shown + FIRST) return;
      if (size !== `${box.width} ${box.height}`) {
        size = `${box.width} ${box.height}`;
        lines.current = new Uint8Array(Math.ceil(box.height / STEP));
      }
      const at = (line) => box.top + Math.min((line + 0.5) * STEP, box.height - 1);
      const first = Math.max(0, Math.floor(-box.top / STEP) - 1);
      for (let line = first; line < lines.current.length && at(line) < innerHeight; line += 1) {
        if (!lines.current[line] && isVisible(element.current, box, at(line))) lines.current[line] = 1;
      }
      if (!lines.current.includes(0)) markSeen(key);
    };
    const soon = () => (frame ||= requestAnimationFrame(look));
    const resized = new ResizeObserver(() => {
      // What is below has another place.
      cardsMoved();
      soon();
    });
    resized.observe(element.current);
    addEventListener("scroll", soon, true);
    const first = setTimeout(soon, FIRST);
    const timer = setInterval(soon, INTERVAL);
    return () => {
      clearTimeout(first);
      resized.disconnect();
      removeEventListener("scroll", soon, true);
      clearInterval(timer);
      cancelAnimationFrame(frame);
      lines.current = null;
    };
  }, [key, isSeen]);
  const showRest = useCallback(() => {
    const line = lines.current ? lines.current.indexOf(0) : 0;
    const mark = document.createElement("span");
    mark.className = "seen-place";
    mark.style.top = `${Math.max(0, line) * STEP}px`;
    element.current.append(mark);
    mark.scrollIntoView({ block: "start" });
    mark.remove();
  }, []);
  return [isSeen, showRest];
}
