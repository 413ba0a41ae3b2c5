/** The text that a person approves, with every character that cannot be seen marked: what is approved is what runs. */
import { html } from "../preact.js";

/**
 * Characters that a text does not show, or that look like a space or change the order of what is around them: controls but for
 * tab and line feed, spaces but for the usual one, formats such as bidirectional marks, and what fonts leave out.
 */
const UNSEEN = /(?![\t\n ])[\p{Cc}\p{Cf}\p{Cs}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/gu;

const markOf = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** @returns {({text: string} | {mark: string})[]} the parts of a text; a mark is the number of a character, such as `U+202E` */
function exactParts(text) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (found.index > from) parts.push({ text: text.slice(from, found.index) });
    parts.push({ mark: markOf(found[0]) });
    from = found.index + found[0].length;
  }
  if (from < text.length) parts.push({ text: text.slice(from) });
  return parts;
}

/** The text with the numbers of its unseen characters in their places, where no elements can be. */
export const exactString = (text) => text.replace(UNSEEN, markOf);

/** A text with its unseen characters marked, isolated from the direction of the text around it. */
export function ExactText({ text, dir = "ltr" }) {
  return html`<bdi dir=${dir}>
    ${exactParts(text).map((part) =>
      part.mark ? html`<span class="unseen-character" title="A character that cannot be seen">${part.mark}</span>` : part.text,
    )}
  </bdi>`;
}
