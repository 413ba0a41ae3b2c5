/** Keyboard shortcuts. All are listed by `?`. */
import { observable, stored, useObservable } from "./observable.js";
import { html, useLayoutEffect, useRef } from "./preact.js";
import { Dialog } from "./ui/index.js";

/**
 * @typedef {{keys: string, label: string, run: (event: KeyboardEvent) => void|false, group?: string, typing?: boolean}} Shortcut
 * `keys`: "j", "?", "Escape", "mod+k" (ctrl, or cmd on a Mac), "shift+Enter", "g i" (one after the other). `typing`: also in text fields; always so with
 * "mod+". `run` may return false: then the browser, or the shortcut that was registered before, gets the key.
 */

const registered = observable([]);
/** Whether shortcuts of a letter or sign alone are on. Who dictates, or presses keys by accident, switches them off (WCAG 2.1.4). */
export const singleKeys = stored("portico.singleKeys", true);
export const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

/** Has these shortcuts as long as the component is there. `when` false: not now. */
export function useShortcuts(list, when = true) {
  const latest = useRef(list);
  latest.current = list;
  // With the component, not after the next frame: its keys are used as soon as it is seen.
  useLayoutEffect(() => {
    if (!when) return undefined;
    const entries = list.map((shortcut, index) => ({ ...shortcut, run: (event) => latest.current[index]?.run?.(event) }));
    registered.value = [...registered.value, ...entries];
    return () => {
      registered.value = registered.value.filter((entry) => !entries.includes(entry));
    };
  }, [when, list.map((shortcut) => shortcut.keys).join("\n")]);
}

function typingIn(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(TEXTAREA|SELECT)$/.test(target.tagName) || (target.tagName === "INPUT" && !/^(checkbox|radio|button)$/.test(target.type)));
}

function keyOf(event) {
  let key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.shiftKey && event.key.length > 1) key = `shift+${key}`;
  else if (event.shiftKey && /^[A-Z]$/.test(event.key)) key = `shift+${key}`;
  if (event.altKey) key = `alt+${key}`;
  if (isMac ? event.metaKey : event.ctrlKey) key = `mod+${key}`;
  else if (event.metaKey || event.ctrlKey) return null;
  return key;
}

let prefix = null;
let prefixTimer = 0;

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing || event.repeat && /^[a-z?]$/.test(event.key) && !"jk".includes(event.key)) return;
  if (document.querySelector("dialog[open]")) return;
  const key = keyOf(event);
  if (!key) return;
  if (!singleKeys.value && key.length === 1) return;
  const typing = typingIn(event.target);
  const sequence = prefix && !typing ? `${prefix} ${key}` : key;
  prefix = null;
  // The newest first: the component on top.
  for (const shortcut of [...registered.value].reverse()) {
    if (shortcut.keys !== sequence) continue;
    if (typing && !shortcut.typing && !key.startsWith("mod+")) continue;
    if (shortcut.run(event) === false) continue;
    event.preventDefault();
    return;
  }
  if (!typing && registered.value.some((shortcut) => shortcut.keys.startsWith(`${key} `))) {
    prefix = key;
    clearTimeout(prefixTimer);
    prefixTimer = setTimeout(() => (prefix = null), 1200);
  }
});

const NAMES = { mod: isMac ? "⌘" : "Ctrl", shift: isMac ? "⇧" : "Shift", alt: isMac ? "⌥" : "Alt", Escape: "Esc", ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Enter: "Enter" };

/** Keys as they are printed on the keyboard. */
export function Keys({ keys }) {
  return html`<span class="keys">
    ${keys.split(" ").map((chord, index) => html`${index > 0 && html`<span class="dim">then</span>`}${chord.split("+").map((key) => html`<kbd>${NAMES[key] ?? (key.length === 1 ? key.toUpperCase() : key)}</kbd>`)}`)}
  </span>`;
}

/** The list of all shortcuts of what is on the screen. */
export function ShortcutHelp({ onClose }) {
  const list = useObservable(registered);
  const groups = new Map();
  for (const shortcut of list) {
    if (!shortcut.label) continue;
    const group = shortcut.group ?? "General";
    const entries = groups.get(group) ?? new Map();
    entries.set(shortcut.label, [...(entries.get(shortcut.label) ?? []), shortcut.keys].filter((key, at, all) => all.indexOf(key) === at));
    groups.set(group, entries);
  }
  const single = useObservable(singleKeys);
  return html`<${Dialog} title="Keyboard shortcuts" onClose=${onClose} wide=${true}>
    <div class="shortcut-groups">
      ${[...groups].map(
        ([group, entries]) => html`<section key=${group}>
          <h3>${group}</h3>
          <dl>
            ${[...entries].map(([label, keys]) => html`<div key=${label}><dt>${label}</dt><dd>${keys.map((one) => html`<${Keys} keys=${one} />`)}</dd></div>`)}
          </dl>
        </section>`,
      )}
    </div>
    <label class="shortcut-choice">
      <input type="checkbox" checked=${single} onChange=${(event) => (singleKeys.value = event.target.checked)} />
      Shortcuts of a single key
    </label>
  </${Dialog}>`;
}
