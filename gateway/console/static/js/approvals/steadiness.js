/** Whether the cards stand still: a click or key may have been meant for the card that was there before. */
import { observable, useObservable } from "../observable.js";
import { useEffect, useState } from "../preact.js";

/** Milliseconds. */
const SETTLING = 350;

/** Counts the cards that have come, have changed their size, were answered or have disappeared: others then have other places, or their keys. */
const moves = observable(0);

export function cardsMoved() {
  moves.value += 1;
}

/** Whether `shown` (an id) has been the same for a while. */
export function useSettled(shown) {
  const [settled, setSettled] = useState(null);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(shown), SETTLING);
    return () => clearTimeout(timer);
  }, [shown]);
  return settled === shown;
}

/** Whether no card has been answered or has disappeared for a while. */
export const useSteady = () => useSettled(useObservable(moves));
