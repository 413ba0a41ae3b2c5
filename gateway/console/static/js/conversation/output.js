/** Output of tools: folded when it is long, and usable when it is huge. */

import { html, useMemo } from "../preact.js";
import { CopyButton } from "../ui/button.js";
import { Ansi } from "./ansi.js";
import { useFold } from "./fold.js";
import { isShownImage, safeLink } from "./markdown.js";
import { visibleText } from "./safe-text.js";

const STEP = 100_000;
const LONG_LINE = 2_000;

const count = (number) => number.toLocaleString("en");

/** At most so many lines and characters of a text: `{text, lines, rest}` with the number of characters that are left out. */
export function excerpt(text, maxLines, maxCharacters, fromEnd) {
  let part = fromEnd ? text.slice(-maxCharacters) : text.slice(0, maxCharacters);
  let at = fromEnd ? part.length : -1;
  for (let line = 0; line < maxLines; line += 1) {
    at = fromEnd ? part.lastIndexOf("\n", at - 1) : part.indexOf("\n", at + 1);
    if (at < 0) break;
  }
  if (at >= 0) part = fromEnd ? part.slice(at + 1) : part.slice(0, at);
  return { text: part, rest: text.length - part.length };
}

/** Lines that are too long to lay out at once are cut. */
function cutLines(text) {
  if (text.length <= LONG_LINE) return text;
  return text.replace(/[^\n]{2001,}/g, (line) => `${line.slice(0, LONG_LINE)}… (${count(line.length - LONG_LINE)} more characters on this line)`);
}

/**
 * @param {{text: string, foldKey: string, live?: boolean, lines?: number, label?: string}} props
 * While it is `live`, its end is shown, otherwise its beginning.
 */
export function Output({ text: given, foldKey, live = false, lines = 12, label = "Output", plain = false }) {
  const [shown, setShown] = useFold(`${foldKey}:shown`, 0);
  const text = given.replace(/(?<!\n)\n+$/, "");
  const part = useMemo(() => {
    if (shown > 0) return excerpt(text, Infinity, shown, false);
    const found = excerpt(text, lines, lines * 400, live);
    // A fold that hides next to nothing is of no use.
    return found.rest < 200 ? { text, rest: 0 } : found;
  }, [text, shown, live, lines]);
  const visible = shown > 0 && part.text.length < 20_000 ? part.text : shown > STEP ? part.text : cutLines(part.text);
  const cut = visible.length < part.text.length && visible.includes("more characters on this line");
  const next = part.rest > 0 ? (shown || 0) + STEP : cut ? STEP * 2 : 0;
  return html`<div class="tool-output">
    <pre class=${`output-text${live ? " live" : ""}`} tabindex="0" role="group" aria-label=${label} dir="ltr">${plain ? visibleText(visible) : html`<${Ansi} text=${visible} />`}</pre>
    <div class="output-actions">
      ${(part.rest > 0 || cut) && next > 0 &&
      html`<button type="button" class="show-more" onClick=${() => setShown(next)}>
        ${part.rest > 0 && text.length <= STEP ? `Show all ${count(text.split("\n").length)} lines` : `Show more of ${count(text.length)} characters`}
      </button>`}
      ${shown > 0 && html`<button type="button" class="show-more" onClick=${() => setShown(0)}>Show less</button>`}
      <${CopyButton} text=${text} label="Copy output" />
    </div>
  </div>`;
}

/** An image of a message or a result: shown if it is in the message itself, else a link to it. */
export function Picture({ url, alt = "Image" }) {
  if (isShownImage(url)) return html`<img class="talk-picture" src=${url} alt=${alt} loading="lazy" />`;
  const link = safeLink(url);
  if (link) return html`<a class="image-link" href=${link} target="_blank" rel="noopener noreferrer" title=${link}>${alt}: ${link.length > 80 ? `${link.slice(0, 80)}…` : link}</a>`;
  return html`<span class="image-link">${alt} that cannot be shown</span>`;
}

/** A value as JSON for people; text stays as it is. */
export function asText(value) {
  if (typeof value === "string") return value;
  try {
    return JSON.stringify(value, null, 2) ?? "";
  } catch {
    return String(value);
  }
}

/** The text and the images of a result: text, content blocks, or any JSON value. */
export function partsOfResult(value) {
  if (value === null || value === undefined || value === "") return { text: "", images: [] };
  if (Array.isArray(value) && value.length && value.every((block) => block && typeof block.type === "string")) {
    const images = value.filter((block) => block.type === "image" && typeof block.url === "string").map((block) => block.url);
    const texts = value.filter((block) => block.type !== "image").map((block) => (block.type === "text" ? String(block.text ?? "") : asText(block)));
    return { text: texts.join("\n"), images };
  }
  return { text: asText(value), images: [] };
}
