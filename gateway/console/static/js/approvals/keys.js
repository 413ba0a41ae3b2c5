/**
 * The keys y, a and n are for the current card: that with the focus, else the one that was current, else the first on the page
 * that is open. A card that appears does not become current in the place of another.
 */
import { observable, useObservable } from "../observable.js";
import { useEffect, useRef } from "../preact.js";
import { useShortcuts } from "../shortcuts.js";
import { cardsMoved } from "./steadiness.js";

/** The open cards. @type {Set<HTMLElement>} */
const cards = new Set();
/** The card that the keys answer. */
const current = observable(null);

function find() {
  const visible = [...cards].filter((card) => card.isConnected && card.getClientRects().length);
  visible.sort((one, other) => (one.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
  const before = visible.includes(current.value) ? current.value : visible[0];
  return visible.find((card) => card.contains(document.activeElement)) ?? before ?? null;
}

/** Whether a card's answers can be seen: they are in the window, and nothing is over them. */
function isInView(card) {
  const button = (card.querySelector(".approval-actions") ?? card).querySelector("button");
  // A card that was answered has none.
  if (!button) return false;
  const { left, top, width, height } = button.getBoundingClientRect();
  return button.contains(document.elementFromPoint(left + width / 2, top + height / 2));
}

const update = () => (current.value = find());

document.addEventListener("focusin", update);

/**
 * Answer a card by keys while it is open, and mark the current one with the class `is-current`.
 * @param element a ref of the card
 * @param {boolean} open
 * @param {{y: Function, a: Function, n: Function, isSeen: () => boolean}} actions `y` shows more of a card that was not seen in whole
 */
export function useApprovalKeys(element, open, actions) {
  const latest = useRef(actions);
  latest.current = actions;
  const shown = useObservable(current);
  const run = (key) => () => {
    if (find() !== element.current) return false;
    // A card that is not in view is shown first: nobody answers what they do not see.
    if (isInView(element.current) || (key === "y" && !latest.current.isSeen())) latest.current[key]();
    else element.current.scrollIntoView({ block: element.current.offsetHeight > innerHeight / 2 ? "end" : "center" });
    return undefined;
  };
  useShortcuts(
    [
      { keys: "y", label: "Allow the call once", group: "Approvals", run: run("y") },
      { keys: "a", label: "Other answers, such as always", group: "Approvals", run: run("a") },
      { keys: "n", label: "Reject", group: "Approvals", run: run("n") },
    ],
    open,
  );
  useEffect(() => {
    const card = element.current;
    if (open) {
      cards.add(card);
      cardsMoved();
    }
    update();
    return () => {
      if (cards.delete(card)) cardsMoved();
      update();
    };
  }, [open]);
  useEffect(() => {
    element.current?.classList.toggle("is-current", shown === element.current);
  });
}
