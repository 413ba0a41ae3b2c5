/** Edits of files as diffs, unified or side by side. */

import { stored, useObservable } from "../observable.js";
import { html, useEffect, useState } from "../preact.js";
import { Icon } from "../ui/icon.js";
import { ExactText } from "../approvals/exact-text.js";
import { differing, pairsOf } from "./file-changes.js";
import { useFold } from "./fold.js";
import { visibleText } from "./safe-text.js";
import { shortPath } from "./tool-title.js";

export { changesOfCall } from "./file-changes.js";

const FOLDED = 30;
const STEP = 1000;
const LONG_LINE = 1000;
const WORDS = { add: "new file", write: "whole file", replace: "replaces the file", delete: "deleted" };
const MARKS = { "+": "added", "-": "removed", " ": "" };

/** "unified" or "split", in every diff of this browser. */
export const diffView = stored("portico.diffView", "unified");

const wide = matchMedia("(min-width: 821px)");

function useWide() {
  const [value, setValue] = useState(wide.matches);
  useEffect(() => {
    const update = () => setValue(wide.matches);
    wide.addEventListener("change", update);
    return () => wide.removeEventListener("change", update);
  }, []);
  return value;
}

function shown(text, exact) {
  if (exact) return html`<${ExactText} text=${text} />`;
  return visibleText(text.length > LONG_LINE ? `${text.slice(0, LONG_LINE)}… (${(text.length - LONG_LINE).toLocaleString("en")} more characters)` : text);
}

/** A line, with the part marked in which it differs from the line that it replaces. */
function LineText({ line, part, exact }) {
  const text = exact ? line.text : line.text.replace(/\r$/, "");
  if (!part || text.length > LONG_LINE) return html`<code>${shown(text, exact)}</code>`;
  const [start, end] = part;
  return html`<code>${shown(text.slice(0, start), exact)}<mark>${shown(text.slice(start, end), exact)}</mark>${shown(text.slice(end), exact)}</code>`;
}

/** For each line that replaces another one, the part that differs. */
function partsOf(pairs) {
  const parts = new Map();
  for (const [left, right] of pairs) {
    if (!left || !right || left === right || left.text.length + right.text.length > 2 * LONG_LINE) continue;
    const found = differing(left.text, right.text);
    if (found) {
      parts.set(left, found[0]);
      parts.set(right, found[1]);
    }
  }
  return parts;
}

function Unified({ lines, parts, numbers, exact }) {
  return lines.map(
    (line, at) => html`<tr key=${at} class=${MARKS[line.type]}>
      ${numbers && html`<td class="diff-number">${line.old ?? ""}</td><td class="diff-number">${line.new ?? ""}</td>`}
      <td class="diff-mark">${line.type}<span class="visually-hidden">${MARKS[line.type] && ` ${MARKS[line.type]}`}</span></td>
      <td class="diff-text"><${LineText} line=${line} part=${parts.get(line)} exact=${exact} /></td>
    </tr>`,
  );
}

function Side({ line, type, number, parts, numbers, exact }) {
  const kind = !line ? "absent" : line.type === type ? MARKS[type] : "";
  return html`
    ${numbers && html`<td class=${`diff-number ${kind}`}>${line ? (line[number] ?? "") : ""}</td>`}
    <td class=${`diff-mark ${kind}`}>${line && line.type === type ? type : ""}</td>
    <td class=${`diff-text ${kind}`}>${line && html`<${LineText} line=${line} part=${parts.get(line)} exact=${exact} />`}</td>
  `;
}

function Split({ pairs, parts, numbers, exact }) {
  return pairs.map(
    ([left, right], at) => html`<tr key=${at}>
      <${Side} line=${left} type="-" number="old" parts=${parts} numbers=${numbers} exact=${exact} />
      <${Side} line=${right} type="+" number="new" parts=${parts} numbers=${numbers} exact=${exact} />
    </tr>`,
  );
}

function HunkRows({ hunk, split, first, limit, numbers, exact }) {
  const pairs = pairsOf(hunk.lines);
  const parts = partsOf(pairs);
  const start = hunk.lines.find((line) => line.new != null)?.new;
  return html`
    ${!(first && !hunk.header) &&
    html`<tr class="diff-hunk"><td colspan=${split ? (numbers ? 6 : 4) : numbers ? 4 : 2}>${numbers && start ? `Line ${start}` : "⋯"} ${hunk.header ? shown(hunk.header, exact) : ""}</td></tr>`}
    ${split ? html`<${Split} pairs=${pairs.slice(0, limit)} parts=${parts} numbers=${numbers} exact=${exact} />` : html`<${Unified} lines=${hunk.lines.slice(0, limit)} parts=${parts} numbers=${numbers} exact=${exact} />`}
  `;
}

function FileDiff({ change, folder, foldKey, split, limit: folded, exact }) {
  const total = change.hunks.reduce((sum, hunk) => sum + hunk.lines.length, 0);
  const [unfolded, setLimit] = useFold(`${foldKey}:limit`, folded);
  const limit = exact ? Infinity : unfolded;
  const numbers = change.hunks.some((hunk) => hunk.lines.some((line) => line.new != null || line.old != null));
  // A side-by-side view of a file that has only one side would be half empty.
  const sides = split && change.added > 0 && change.removed > 0;
  let left = limit;
  const rows = [];
  change.hunks.forEach((hunk, at) => {
    if (left <= 0) return;
    rows.push(html`<${HunkRows} key=${at} hunk=${hunk} split=${sides} first=${at === 0} limit=${left} numbers=${numbers} exact=${exact} />`);
    left -= hunk.lines.length;
  });
  const path = shortPath(change.path, folder);
  return html`<section class="diff-file" role="group" aria-label=${`Changes of ${visibleText(path)}`}>
    <div class="diff-name">
      <${Icon} name=${change.kind === "delete" ? "trash" : "file"} size=${14} />
      <bdi class="diff-path" dir="ltr" title=${visibleText(change.path)}>${shown(path, exact)}${change.movedTo && html` → ${shown(shortPath(change.movedTo, folder), exact)}`}</bdi>
      ${WORDS[change.kind] && html`<span class="diff-kind">${WORDS[change.kind]}</span>`}
      <span class="diff-counts">${change.added > 0 && html`<span class="added">+${change.added}</span>`}${change.removed > 0 && html`<span class="removed">−${change.removed}</span>`}</span>
    </div>
    ${change.note && html`<p class="diff-note">${change.note}</p>`}
    ${rows.length > 0 && html`<div class="diff-scroll" tabindex=${exact ? undefined : 0} role="group" aria-label=${`Diff of ${visibleText(path)}`}><table class=${sides ? "diff-lines split" : "diff-lines"}><tbody>${rows}</tbody></table></div>`}
    ${total > limit && html`<button type="button" class="show-more" onClick=${() => setLimit(limit < STEP ? STEP : limit + STEP)}>Show ${limit < STEP && total <= STEP ? `all ${total}` : `${Math.min(STEP, total - limit)} more`} lines</button>`}
  </section>`;
}

/**
 * Changes of files, as `changesOfCall` returns them.
 * @param {{changes: import("./file-changes.js").Change[], folder?: string, foldKey?: string, limit?: number, exact?: boolean}} props
 *   `exact`: nothing is cut or folded, and every character that cannot be seen is marked
 */
export function DiffView({ changes, folder = "", foldKey = "diff", limit = FOLDED, exact = false }) {
  const view = useObservable(diffView);
  const hasRoom = useWide();
  const split = view === "split" && hasRoom;
  const sided = hasRoom && changes.some((change) => change.added > 0 && change.removed > 0);
  return html`<div class="diff">
    ${sided &&
    html`<div class="diff-views" role="group" aria-label="View of the diff">
      ${["unified", "split"].map((name) => html`<button type="button" key=${name} aria-pressed=${String(view === name)} onClick=${() => (diffView.value = name)}>${name === "unified" ? "Unified" : "Split"}</button>`)}
    </div>`}
    ${changes.map((change, at) => html`<${FileDiff} key=${at} change=${change} folder=${folder} foldKey=${`${foldKey}:${at}`} split=${split} limit=${limit} exact=${exact} />`)}
  </div>`;
}
