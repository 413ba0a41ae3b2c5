/** A dialog with a text field and a list below it: arrows choose, Enter opens. */
import { html, useEffect, useRef, useState } from "./preact.js";
import { Dialog, Icon, Spinner } from "./ui/index.js";

let lastId = 0;

/**
 * @param {{title: string, placeholder: string, text: string, onText: (text: string) => void, onClose: () => void, busy?: boolean, stale?: boolean, note?: any,
 *   items: {key: string, content: any, run: (event: Event) => void}[], onEnd?: () => void}} props
 * `stale`: the items are those of an earlier text; Enter opens the first of the next ones. `onEnd` is called when the end of the list comes into view.
 */
export function Palette({ title, placeholder, text, onText, items, onClose, busy, stale = false, note, onEnd }) {
  const [active, setActive] = useState(0);
  const list = useRef(null);
  const id = useRef(null);
  id.current ??= `palette-${++lastId}`;
  const at = Math.min(active, items.length - 1);
  useEffect(() => setActive(0), [text]);
  useEffect(() => {
    list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [at, items]);
  const choose = (item, event) => {
    onClose();
    item.run(event);
  };
  const entered = useRef(null);
  useEffect(() => {
    if (stale || !entered.current) return;
    const event = entered.current;
    entered.current = null;
    if (items[0]) choose(items[0], event);
  }, [stale, items]);
  const keys = (event) => {
    if (event.isComposing) return;
    entered.current = null;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
    if (step !== undefined) setActive(Math.max(0, Math.min(items.length - 1, at + step)));
    else if (event.key === "Enter" && stale) entered.current = event;
    else if (event.key === "Enter" && items[at]) choose(items[at], event);
    else return;
    event.preventDefault();
  };
  const scrolled = (event) => {
    const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
    if (scrollTop + clientHeight > scrollHeight - 200) onEnd?.();
  };
  return html`<${Dialog} title=${title} plain=${true} wide=${true} class="palette" onClose=${onClose}>
    <div class="palette-field">
      <${Icon} name="search" size=${18} />
      <input
        role="combobox"
        aria-label=${title}
        aria-expanded="true"
        aria-autocomplete="list"
        aria-controls=${id.current}
        aria-activedescendant=${items[at] ? `${id.current}-${at}` : undefined}
        data-autofocus
        type="text"
        enterkeyhint="go"
        autocomplete="off"
        autocapitalize="off"
        spellcheck=${false}
        maxlength="400"
        placeholder=${placeholder}
        value=${text}
        onInput=${(event) => onText(event.target.value)}
        onKeyDown=${keys}
      />
      ${busy && html`<${Spinner} label="Searching" />`}
      <button type="button" class="button small plain" onClick=${onClose}>Close</button>
    </div>
    <div class="palette-list" role="listbox" aria-label="Results" id=${id.current} ref=${list} onScroll=${onEnd && scrolled} tabindex="-1">
      ${items.map(
        (item, index) => html`<div
          key=${item.key}
          role="option"
          id=${`${id.current}-${index}`}
          class="palette-item"
          aria-selected=${String(index === at)}
          onMouseMove=${() => index !== at && setActive(index)}
          onClick=${(event) => choose(item, event)}
        >
          ${item.content}
        </div>`,
      )}
    </div>
    <p class="palette-note" role="status">${note}</p>
  </${Dialog}>`;
}
