/** Short messages at the bottom of the window, with an undo where there is one. */
import { html } from "../preact.js";
import { observable, useObservable } from "../observable.js";
import { Icon } from "./icon.js";

const toasts = observable([]);
let lastId = 0;

/**
 * Shows a message. With `undo` it has a button that calls it; `onDone` is called when the message goes without it.
 * @param {string} text
 * @param {{kind?: "info"|"ok"|"error", undo?: () => void, action?: {label: string, run: () => void}, duration?: number, onDone?: () => void}} [options]
 * @returns {() => void} removes the message
 */
export function toast(text, { kind = "info", undo, action, duration = kind === "error" ? 10_000 : 6_000, onDone } = {}) {
  const id = ++lastId;
  const close = () => {
    clearTimeout(timer);
    toasts.value = toasts.value.filter((other) => other.id !== id);
  };
  const end = () => {
    close();
    onDone?.();
  };
  const timer = setTimeout(end, duration);
  const button = undo ? { label: "Undo", run: undo } : action;
  const run = button && (() => (close(), button.run()));
  toasts.value = [...toasts.value, { id, text, kind, label: button?.label, run, end }].slice(-5);
  return close;
}

export function Toasts() {
  const list = useObservable(toasts);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${list.map(
      (item) => html`<div class=${`toast ${item.kind}`} key=${item.id}>
        ${item.kind !== "info" && html`<${Icon} name=${item.kind === "ok" ? "check" : "error"} />`}
        <span class="toast-text">${item.text}</span>
        ${item.run && html`<button type="button" class="button small" onClick=${item.run}>${item.label}</button>`}
        <button type="button" class="icon-button" aria-label="Dismiss" onClick=${item.end}><${Icon} name="close" /></button>
      </div>`,
    )}
  </div>`;
}
