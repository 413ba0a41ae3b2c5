/** A button with a menu. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../preact.js";
import { Icon } from "./icon.js";

/**
 * @typedef {{label: string, run?: () => void, icon?: string, hint?: string, danger?: boolean, disabled?: boolean, checked?: boolean}|"separator"|{heading: string}} MenuItem
 * `checked` (true or false) makes it a choice.
 */

/**
 * @param {{label: string, icon?: string, items: MenuItem[]|(() => MenuItem[]), children?: any, class?: string, align?: "start"|"end"}} props
 * With `children` the button shows them, else the icon alone.
 */
export function Menu({ label, icon = "more", items, children, class: extra, align = "end", disabled }) {
  const [open, setOpen] = useState(false);
  const button = useRef(null);
  const toggle = (event) => {
    event.preventDefault();
    event.stopPropagation();
    setOpen(!open);
  };
  const keys = (event) => {
    if (open || !["ArrowDown", "ArrowUp"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    setOpen(true);
  };
  return html`<button
      type="button"
      ref=${button}
      class=${`${children ? "button" : "icon-button"}${extra ? ` ${extra}` : ""}`}
      aria-haspopup="menu"
      aria-expanded=${String(open)}
      aria-label=${children ? undefined : label}
      title=${label}
      disabled=${disabled}
      onClick=${toggle}
      onKeyDown=${keys}
    >
      ${children ?? html`<${Icon} name=${icon} />`}
    </button>
    ${open &&
    html`<${MenuList}
      label=${label}
      anchor=${button.current}
      align=${align}
      items=${typeof items === "function" ? items() : items}
      close=${(focus) => {
        setOpen(false);
        if (focus) button.current?.focus();
      }}
    />`}`;
}

/** Places a fixed element below its anchor, or above where there is more room, inside the window. */
export function place(element, anchor, align = "start") {
  const at = anchor.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = element;
  const left = align === "end" ? at.right - width : at.left;
  const below = innerHeight - at.bottom - 8;
  const top = height <= below || at.top < below ? at.bottom + 4 : at.top - height - 4;
  element.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  element.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
}

function MenuList({ label, anchor, align, items, close }) {
  const list = useRef(null);
  const typed = useRef({ text: "", at: 0 });
  const entries = () => [...list.current.querySelectorAll("[role^=menuitem]:not([aria-disabled=true])")];
  useLayoutEffect(() => {
    // The top layer: above dialogs, and clipped by nothing.
    list.current.showPopover?.();
    place(list.current, anchor, align);
    (list.current.querySelector("[aria-checked=true]") ?? entries()[0] ?? list.current).focus();
  }, []);
  useEffect(() => {
    const outside = (event) => {
      if (!list.current?.contains(event.target) && !anchor.contains(event.target)) close(false);
    };
    // Only what moves the button away: a conversation scrolls by itself while it is streamed.
    const moved = (event) => event.target.contains?.(anchor) && close(false);
    const resized = () => close(false);
    addEventListener("pointerdown", outside, true);
    addEventListener("scroll", moved, true);
    addEventListener("resize", resized);
    return () => {
      removeEventListener("pointerdown", outside, true);
      removeEventListener("scroll", moved, true);
      removeEventListener("resize", resized);
    };
  }, []);
  const keys = (event) => {
    event.stopPropagation();
    const all = entries();
    const at = all.indexOf(document.activeElement);
    const go = (index) => {
      event.preventDefault();
      all[(index + all.length) % all.length]?.focus();
    };
    if (event.key === "ArrowDown") go(at + 1);
    else if (event.key === "ArrowUp") go(at < 0 ? -1 : at - 1);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(-1);
    else if (event.key === "Escape" || event.key === "Tab") {
      event.preventDefault();
      close(true);
    } else if (event.key.length === 1 && /\S/.test(event.key) && !event.ctrlKey && !event.metaKey) {
      const now = Date.now();
      typed.current = { text: (now - typed.current.at < 700 ? typed.current.text : "") + event.key.toLowerCase(), at: now };
      const found = all.findIndex((entry) => entry.dataset.text.startsWith(typed.current.text));
      if (found >= 0) go(found);
    }
  };
  const choose = (item) => (event) => {
    event.stopPropagation();
    event.preventDefault();
    if (item.disabled) return;
    close(true);
    item.run?.();
  };
  return html`<div class="menu" role="menu" aria-label=${label} popover="manual" tabindex="-1" ref=${list} onKeyDown=${keys} onClick=${(e) => e.stopPropagation()}>
    ${items.filter(Boolean).map((item, index) => {
      if (item === "separator") return html`<div class="menu-separator" role="separator" key=${index}></div>`;
      if (item.heading) return html`<div class="menu-heading" role="presentation" key=${index}>${item.heading}</div>`;
      const choice = item.checked !== undefined;
      return html`<button
        type="button"
        key=${index}
        role=${choice ? "menuitemradio" : "menuitem"}
        aria-checked=${choice ? String(item.checked) : undefined}
        aria-disabled=${item.disabled ? "true" : undefined}
        tabindex="-1"
        class=${`menu-item${item.danger ? " danger" : ""}`}
        data-text=${item.label.toLowerCase()}
        onClick=${choose(item)}
      >
        <span class="menu-icon">${choice ? item.checked && html`<${Icon} name="check" />` : item.icon && html`<${Icon} name=${item.icon} />`}</span>
        <span class="menu-label">${item.label}</span>
        ${item.hint && html`<kbd>${item.hint}</kbd>`}
      </button>`;
    })}
  </div>`;
}
