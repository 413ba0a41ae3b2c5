/** Buttons. */
import { html, useEffect, useRef, useState } from "../preact.js";
import { Icon } from "./icon.js";
import { toast } from "./toast.js";

/** @param {{kind?: "primary"|"danger"|"plain"|"default", small?: boolean, icon?: string, busy?: boolean, label?: string}} props */
export function Button({ kind = "default", small, icon, busy, children, class: extra, buttonRef, ...rest }) {
  return html`<button
    type="button"
    ref=${buttonRef}
    class=${`button ${kind}${small ? " small" : ""}${extra ? ` ${extra}` : ""}`}
    aria-busy=${busy ? "true" : undefined}
    ...${rest}
    disabled=${rest.disabled || busy}
  >
    ${busy ? html`<span class="spinner" aria-hidden="true"></span>` : icon && html`<${Icon} name=${icon} />`}${children}
  </button>`;
}

/** A button of an icon alone. `label` is its name, and its tooltip. */
export function IconButton({ icon, label, size = 16, pressed, class: extra, buttonRef, ...rest }) {
  return html`<button
    type="button"
    ref=${buttonRef}
    class=${`icon-button${extra ? ` ${extra}` : ""}`}
    aria-label=${label}
    title=${label}
    aria-pressed=${pressed === undefined ? undefined : String(Boolean(pressed))}
    ...${rest}
  >
    <${Icon} name=${icon} size=${size} />
  </button>`;
}

/** Copies `text`, which may be a function that makes it (also a promise of it). */
export async function copyText(text) {
  const value = await (typeof text === "function" ? text() : text);
  if (navigator.clipboard) return navigator.clipboard.writeText(value);
  // Without https on another host than loopback there is no clipboard API.
  const area = document.createElement("textarea");
  area.value = value;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("The browser does not allow copying");
}

/** A button that copies `text` and says so. */
export function CopyButton({ text, label = "Copy", ...rest }) {
  const [copied, setCopied] = useState(false);
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    try {
      await copyText(text);
      setCopied(true);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => setCopied(false), 1500);
    } catch (error) {
      toast(`Not copied: ${error.message}`, { kind: "error" });
    }
  };
  return html`<${IconButton} icon=${copied ? "check" : "copy"} label=${copied ? "Copied" : label} onClick=${copy} ...${rest} />`;
}
