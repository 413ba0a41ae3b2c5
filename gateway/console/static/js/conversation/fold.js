/** What is opened and closed by the reader stays so while its row is out of the page. */

import { useCallback, useReducer } from "../preact.js";

const choices = new Map();
const MAX = 5000;

/** `[open, setOpen]`: the reader's choice for this key, or else what is proposed. */
export function useFold(key, proposed) {
  const [, render] = useReducer((count) => count + 1, 0);
  const set = useCallback(
    (open) => {
      choices.delete(key);
      choices.set(key, open);
      if (choices.size > MAX) choices.delete(choices.keys().next().value);
      render();
    },
    [key],
  );
  return [choices.get(key) ?? proposed, set];
}
