/** Tabs, select, splitter, and what is shown where there is nothing. */
import { html, useRef } from "../preact.js";
import { Icon } from "./icon.js";

let lastId = 0;

/**
 * @param {{label: string, tabs: {id: string, label: string, count?: number}[], value: string, onChange: (id: string) => void, children?: any}} props
 * `children` are the content of the chosen tab.
 */
export function Tabs({ label, tabs, value, onChange, children, class: extra }) {
  const id = useRef(null);
  id.current ??= `tabs-${++lastId}`;
  const list = useRef(null);
  const keys = (event) => {
    const at = tabs.findIndex((tab) => tab.id === value);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const index = (to + tabs.length) % tabs.length;
    onChange(tabs[index].id);
    list.current.children[index].focus();
  };
  return html`<div class=${`tabs${extra ? ` ${extra}` : ""}`}>
    <div class="tab-list" role="tablist" aria-label=${label} ref=${list} onKeyDown=${keys}>
      ${tabs.map(
        (tab) => html`<button
          type="button"
          role="tab"
          key=${tab.id}
          id=${`${id.current}-${tab.id}`}
          aria-selected=${String(tab.id === value)}
          aria-controls=${children ? `${id.current}-panel` : undefined}
          tabindex=${tab.id === value ? 0 : -1}
          onClick=${() => onChange(tab.id)}
        >
          ${tab.label}${tab.count !== undefined && html`<span class="count">${tab.count}</span>`}
        </button>`,
      )}
    </div>
    ${children && html`<div class="tab-panel" role="tabpanel" id=${`${id.current}-panel`} aria-labelledby=${`${id.current}-${value}`}>${children}</div>`}
  </div>`;
}

/**
 * A native select. @param {{label: string, value: string, options: ({value: string, label?: string, disabled?: boolean}|string)[], onChange: (value: string) => void, hideLabel?: boolean}} props
 */
export function Select({ label, value, options, onChange, hideLabel = true, class: extra, ...rest }) {
  const select = html`<span class=${`select${extra ? ` ${extra}` : ""}`}>
    <select value=${value} aria-label=${hideLabel ? label : undefined} title=${hideLabel ? label : undefined} onChange=${(event) => onChange(event.target.value)} ...${rest}>
      ${options.map((option) => {
        const item = typeof option === "string" ? { value: option } : option;
        return html`<option key=${item.value} value=${item.value} disabled=${item.disabled} selected=${item.value === value}>${item.label ?? item.value}</option>`;
      })}
    </select>
    <${Icon} name="chevron-down" size=${14} />
  </span>`;
  return hideLabel ? select : html`<label class="field"><span class="field-label">${label}</span>${select}</label>`;
}

/**
 * A border that is moved by mouse, touch or the arrow keys. @param {{label: string, value: number, min: number, max: number, onChange: (value: number) => void, reverse?: boolean, scale?: number}} props
 * `value` is what it sets, in pixels, or in `scale` units a pixel; `reverse` where it grows to the left.
 */
export function Splitter({ label, value, min, max, onChange, reverse = false, scale = 1, onReset }) {
  const limit = (next) => Math.max(min, Math.min(max, next));
  const sign = (reverse ? -1 : 1) * scale;
  const drag = (event) => {
    if (event.button) return;
    event.preventDefault();
    const from = event.clientX;
    const start = value;
    const element = event.currentTarget;
    element.setPointerCapture(event.pointerId);
    const move = (moved) => onChange(limit(start + sign * (moved.clientX - from)));
    const up = () => {
      element.removeEventListener("pointermove", move);
      element.removeEventListener("pointerup", up);
      element.removeEventListener("pointercancel", up);
    };
    element.addEventListener("pointermove", move);
    element.addEventListener("pointerup", up);
    element.addEventListener("pointercancel", up);
  };
  const keys = (event) => {
    const step = { ArrowLeft: -16, ArrowRight: 16 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    onChange(limit(value + sign * step));
  };
  return html`<div
    class="splitter"
    role="separator"
    aria-orientation="vertical"
    aria-label=${label}
    aria-valuenow=${Math.round(value)}
    aria-valuemin=${min}
    aria-valuemax=${max}
    tabindex="0"
    onPointerDown=${drag}
    onKeyDown=${keys}
    onDblClick=${onReset}
  ></div>`;
}

/** What is shown where there is nothing yet. */
export function Empty({ icon, title, children, action }) {
  return html`<div class="empty">
    ${icon && html`<${Icon} name=${icon} size=${28} />`}
    <p class="empty-title">${title}</p>
    ${children && html`<div class="empty-text">${children}</div>`}
    ${action}
  </div>`;
}

export function Spinner({ label = "Loading" }) {
  return html`<span class="loading" role="status"><span class="spinner" aria-hidden="true"></span><span class="visually-hidden">${label}</span></span>`;
}

/** The head of a page or a pane: a title, and what there is to do. */
export function PaneHeader({ title, children, sub }) {
  return html`<header class="pane-header">
    <h1 class="pane-title" dir="auto">${title}</h1>
    ${sub && html`<div class="pane-sub">${sub}</div>`}
    <div class="pane-actions">${children}</div>
  </header>`;
}
