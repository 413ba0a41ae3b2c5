/** A modal dialog. */
import { html, useLayoutEffect, useRef } from "../preact.js";
import { IconButton } from "./button.js";

let lastId = 0;

/** @param {{title: string, onClose: () => void, children: any, footer?: any, wide?: boolean, class?: string, plain?: boolean}} props `plain`: the title is for screen readers only */
export function Dialog({ title, onClose, children, footer, wide, class: extra, plain }) {
  const dialog = useRef(null);
  const id = useRef(null);
  id.current ??= `dialog-${++lastId}`;
  useLayoutEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    // Before the next key: what is typed behind the shortcut is for the field.
    dialog.current.querySelector("[data-autofocus]")?.focus();
    return () => {
      if (before?.isConnected) before.focus();
    };
  }, []);
  return html`<dialog
    ref=${dialog}
    class=${`dialog${wide ? " wide" : ""}${extra ? ` ${extra}` : ""}`}
    aria-labelledby=${id.current}
    onCancel=${(event) => {
      event.preventDefault();
      onClose();
    }}
    onKeyDown=${(event) => event.stopPropagation()}
    onMouseDown=${(event) => event.target === dialog.current && onClose()}
  >
    <div class="dialog-box">
      <header class=${plain ? "visually-hidden" : "dialog-header"}>
        <h2 id=${id.current}>${title}</h2>
        ${!plain && html`<${IconButton} icon="close" label="Close" onClick=${onClose} />`}
      </header>
      <div class="dialog-body">${children}</div>
      ${footer && html`<footer class="dialog-footer">${footer}</footer>`}
    </div>
  </dialog>`;
}
