/** JSON that can be folded. Texts are shown as texts only; characters that would not be visible are escaped. */

import { html, useState } from "../preact.js";
import { visible } from "./format.js";

/** Members of an object or list, and characters of a text, that are shown at first. */
const MEMBERS = 100;
const CHARACTERS = 2000;

/**
 * @param {object} props
 * @param {any} props.value
 * @param {string} [props.name] the member that it is of its object
 * @param {number} [props.open] how many levels are open at first
 */
export function JsonView({ value, name, open = 2 }) {
  const label = name === undefined ? null : html`<span class="json-name">${visible(name)}</span>: `;
  if (value === null || typeof value !== "object") return html`<div class="json-line">${label}<${Scalar} value=${value} /></div>`;
  const list = Array.isArray(value);
  const members = list ? value.map((item, index) => [String(index), item]) : Object.entries(value);
  if (!members.length) return html`<div class="json-line">${label}<span class="json-mark">${list ? "[]" : "{}"}</span></div>`;
  return html`<${Branch} label=${label} members=${members} list=${list} open=${open} />`;
}

function Branch({ label, members, list, open }) {
  const [shown, setShown] = useState(open > 0);
  const [count, setCount] = useState(MEMBERS);
  const size = `${members.length} ${list ? (members.length === 1 ? "item" : "items") : members.length === 1 ? "member" : "members"}`;
  return html`<details class="json-branch" open=${shown} onToggle=${(event) => setShown(event.currentTarget.open)}>
    <summary>${label}<span class="json-mark">${list ? "[" : "{"}</span><span class="json-size">${size}</span></summary>
    ${
      shown &&
      html`<div class="json-members">
      ${members.slice(0, count).map(([name, value]) => html`<${JsonView} key=${name} name=${name} value=${value} open=${open - 1} />`)}
      ${
        count < members.length &&
        html`<button type="button" class="link-button" onClick=${() => setCount(count + 10 * MEMBERS)}>
        Show more (${members.length - count} are left)</button>`
      }
    </div>`
    }
    <span class="json-mark">${shown ? (list ? "]" : "}") : ""}</span>
  </details>`;
}

function Scalar({ value }) {
  const [whole, setWhole] = useState(false);
  if (typeof value !== "string") return html`<span class=${`json-${value === null ? "null" : typeof value}`}>${String(value)}</span>`;
  const cut = !whole && value.length > CHARACTERS;
  // Line ends stay what they are, so that a text can be read; the quotes show where it begins and ends.
  return html`<span class="json-string" dir="auto">"${visible(cut ? value.slice(0, CHARACTERS) : value)}${cut ? "…" : '"'}</span>${
    cut &&
    html` <button type="button" class="link-button" onClick=${() => setWhole(true)}>Show all ${value.length.toLocaleString("en")} characters</button>`
  }`;
}
