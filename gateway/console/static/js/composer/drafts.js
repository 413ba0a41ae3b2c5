/** Messages that are not sent yet, by session: the text in localStorage, images as long as the page is open. */
import { useCallback, useLayoutEffect, useState } from "../preact.js";

const PREFIX = "portico.draft.";
const MOST = 100;
const images = new Map();
/** Texts that localStorage did not take. */
const unstored = new Map();
/** The drafts that components of this window show, each with the function that shows another one. */
const shown = new Map();

/** @returns {{text: string, images: object[]}} */
function draftOf(id) {
  let text = unstored.get(id) ?? "";
  try {
    text ||= JSON.parse(localStorage.getItem(PREFIX + id))?.text ?? "";
  } catch {
    // Not a draft, or no storage.
  }
  return { text, images: images.get(id) ?? [] };
}

/**
 * The draft of a session in a component, and a function that changes it.
 *
 * Each change is stored at once. An effect runs after the next frame, and not at all if the page is left or loaded again before it.
 * @returns {[{text: string, images: object[]}, (next: object | ((now: object) => object)) => void]} the function may be called after
 * the component is gone
 */
export function useDraft(id) {
  const [draft, show] = useState(() => draftOf(id));
  useLayoutEffect(() => {
    const entry = { draft, show };
    shown.set(id, entry);
    return () => {
      if (shown.get(id) === entry) shown.delete(id);
    };
  }, [id]);
  const change = useCallback(
    (next) => {
      const entry = shown.get(id);
      const changed = typeof next === "function" ? next(entry?.draft ?? draftOf(id)) : next;
      keepDraft(id, changed);
      if (!entry) return;
      entry.draft = changed;
      entry.show(changed);
    },
    [id],
  );
  return [draft, change];
}

function keepDraft(id, draft) {
  unstored.delete(id);
  if (draft.images.length) images.set(id, draft.images);
  else images.delete(id);
  try {
    if (draft.text) localStorage.setItem(PREFIX + id, JSON.stringify({ text: draft.text, at: Date.now() }));
    else localStorage.removeItem(PREFIX + id);
    if (draft.text) dropOld();
  } catch {
    // Storage is full or switched off: the draft lasts as long as the page.
    unstored.set(id, draft.text);
  }
}

/** Forget all drafts, for the next person who signs in. */
export function forgetDrafts() {
  images.clear();
  unstored.clear();
  for (const key of stored()) localStorage.removeItem(key);
}

const stored = () => Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));

function dropOld() {
  const keys = stored();
  if (keys.length <= MOST) return;
  const age = (key) => JSON.parse(localStorage.getItem(key))?.at ?? 0;
  keys.sort((one, other) => age(one) - age(other));
  for (const key of keys.slice(0, keys.length - MOST)) localStorage.removeItem(key);
}
