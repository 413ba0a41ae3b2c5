/** The keys y, a and n answer the current card: that with the focus, else the first on the page that is open. */
import { observable, useObservable } from "../observable.js";
import { useEffect, useRef } from "../preact.js";
import { useShortcuts } from "../shortcuts.js";

/** The open cards. @type {Set<HTMLElement>} */
const cards = new Set();
/** The card that the keys answer. */
const current = observable(null);

function find() {
  const visible = [...cards].filter((card) => card.isConnected && card.getClientRects().length);
  visible.sort((one, other) => (one.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
  return visible.find((card) => card.contains(document.activeElement)) ?? visible[0] ?? null;
}

const update = () => (current.value = find());

document.addEventListener("focusin", update);

/**
 * Answer a card by keys while it is open, and mark the current one with the class `is-current`.
 * @param element a ref of the card
 * @param {boolean} open
 * @param {{y: Function, a: Function, n: Function}} actions
 */
export function useApprovalKeys(element, open, actions) {
  const latest = useRef(actions);
  latest.current = actions;
  const shown = useObservable(current);
  const run = (key) => () => (find() === element.current ? void latest.current[key]() : false);
  useShortcuts(
    [
      { keys: "y", label: "Allow the call once", group: "Approvals", run: run("y") },
      { keys: "a", label: "Allow always", group: "Approvals", run: run("a") },
      { keys: "n", label: "Reject with a reason", group: "Approvals", run: run("n") },
    ],
    open,
  );
  useEffect(() => {
    const card = element.current;
    if (open) cards.add(card);
    update();
    return () => {
      cards.delete(card);
      update();
    };
  }, [open]);
  useEffect(() => {
    element.current?.classList.toggle("is-current", shown === element.current);
  });
}
