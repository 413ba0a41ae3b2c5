/** The text that a person approves, with every character that cannot be seen marked: what is approved is what runs. */
import { html } from "../preact.js";

/**
 * Characters that a text does not show, or that look like a space or change the order of what is around them: controls but for
 * tab and line feed, spaces but for the usual one, soft hyphens, zero-width characters, bidirectional marks, and tags.
 */
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** @returns {({text: string} | {mark: string})[]} the parts of a text; a mark is the number of a character, such as `U+202E` */
function exactParts(text) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (found.index > from) parts.push({ text: text.slice(from, found.index) });
    parts.push({ mark: `U+${found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}` });
    from = found.index + found[0].length;
  }
  if (from < text.length) parts.push({ text: text.slice(from) });
  return parts;
}

/** A text with its unseen characters marked, isolated from the direction of the text around it. */
export function ExactText({ text, dir = "ltr" }) {
  return html`<bdi dir=${dir}>
    ${exactParts(text).map((part) =>
      part.mark ? html`<span class="unseen-character" title="A character that cannot be seen">${part.mark}</span>` : part.text,
    )}
  </bdi>`;
}
