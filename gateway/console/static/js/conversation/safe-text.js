/** Untrusted text as text that a person can trust to look at: control and bidirectional formatting characters are visible. */

import { html } from "../preact.js";

// C0 and C1 controls but tab and line feed, and the characters that reorder what stands around them (embeddings, overrides,
// isolates), and tags, which are invisible. Marks (U+200E, U+200F) are part of ordinary Hebrew and Arabic text and stay.
const HIDDEN = /\r(?=\n)|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;
const ANY_HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\u{e0000}-\u{e007f}]/u;

function picture(character) {
  const code = character.codePointAt(0);
  if (character === "\r") return "";
  // Caret notation, as terminals show them: fonts often lack the pictures of control characters.
  if (code < 0x20) return `^${String.fromCharCode(0x40 + code)}`;
  if (code === 0x7f) return "^?";
  return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
}

/** The text with each hidden character replaced by a visible one. */
export function visibleText(text) {
  const given = typeof text === "string" ? text : String(text ?? "");
  return ANY_HIDDEN.test(given) ? given.replace(HIDDEN, picture) : given;
}

/** One line or block of untrusted text, isolated from the direction of the text around it. */
export function SafeText({ text, ...rest }) {
  return html`<bdi dir="auto" ...${rest}>${visibleText(text)}</bdi>`;
}
