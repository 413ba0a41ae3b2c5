/** Messages that are not sent yet, by session: the text in localStorage, images as long as the page is open. */

const PREFIX = "portico.draft.";
const MOST = 100;
const images = new Map();

/** @returns {{text: string, images: object[]}} */
export function draftOf(id) {
  let text = "";
  try {
    text = JSON.parse(localStorage.getItem(PREFIX + id))?.text ?? "";
  } catch {
    // Not a draft, or no storage.
  }
  return { text, images: images.get(id) ?? [] };
}

export function keepDraft(id, draft) {
  if (draft.images.length) images.set(id, draft.images);
  else images.delete(id);
  try {
    if (draft.text) localStorage.setItem(PREFIX + id, JSON.stringify({ text: draft.text, at: Date.now() }));
    else localStorage.removeItem(PREFIX + id);
    if (draft.text) dropOld();
  } catch {
    // Storage is full or switched off: the draft lasts as long as the page.
  }
}

/** Forget all drafts, for the next person who signs in. */
export function forgetDrafts() {
  images.clear();
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
