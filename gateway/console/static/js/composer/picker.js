/** A button with a list of values to choose from, which may be searched, and where the agent accepts more, a value of the user's own. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../preact.js";
import { Icon, place } from "../ui/index.js";

/** From so many options on there is a field to search them. */
const SEARCHED = 9;
let lastId = 0;

/**
 * @param {{label: string, value: string, options: {value: string, label?: string, description?: string}[], onChange: (value: string) => void,
 *   icon?: string, free?: boolean, changed?: boolean, shown?: string}} props `free`: other values may be written; `shown` is
 *   what the button shows instead of the value
 */
export function Picker({ label, value, options, onChange, icon, free = false, changed = false, shown, disabled }) {
  const [open, setOpen] = useState(false);
  const button = useRef(null);
  const close = (focus) => {
    setOpen(false);
    if (focus) button.current?.focus();
  };
  const text = shown ?? options.find((option) => option.value === value)?.label ?? value;
  return html`<button
      type="button"
      ref=${button}
      class=${`picker${changed ? " is-changed" : ""}`}
      aria-haspopup="listbox"
      aria-expanded=${String(open)}
      aria-label=${`${label}: ${text || "default"}${changed ? ", from the next message on" : ""}`}
      title=${`${label}${changed ? " (from the next message on)" : ""}`}
      disabled=${disabled}
      onClick=${() => setOpen(!open)}
      onKeyDown=${(event) => {
        if (!open && ["ArrowDown", "ArrowUp"].includes(event.key)) {
          event.preventDefault();
          setOpen(true);
        }
      }}
    >
      ${icon && html`<${Icon} name=${icon} size=${14} />`}<bdi class="picker-value">${text || "default"}</bdi
      ><${Icon} name="chevron-down" size=${12} />
    </button>
    ${
      open &&
      html`<${PickerList}
        label=${label}
        anchor=${button.current}
        value=${value}
        options=${options}
        free=${free}
        close=${close}
        choose=${(chosen) => {
          close(true);
          onChange(chosen);
        }}
      />`
    }`;
}

function PickerList({ label, anchor, value, options, free, close, choose }) {
  const [query, setQuery] = useState("");
  const wanted = query.trim().toLowerCase();
  const matching = options.filter((option) =>
    `${option.label ?? ""} ${option.value} ${option.description ?? ""}`.toLowerCase().includes(wanted),
  );
  const own =
    free && wanted && !options.some((option) => option.value === query.trim())
      ? [{ value: query.trim(), label: `Use “${query.trim()}”` }]
      : [];
  const shown = [...matching, ...own];
  const [at, setAt] = useState(() =>
    Math.max(
      0,
      options.findIndex((option) => option.value === value),
    ),
  );
  const index = Math.min(at, shown.length - 1);
  const box = useRef(null);
  const field = useRef(null);
  const id = useRef(null);
  id.current ??= `picker-${++lastId}`;
  const searched = free || options.length >= SEARCHED;
  useLayoutEffect(() => {
    box.current.showPopover?.();
    place(box.current, anchor);
    (field.current ?? box.current).focus();
  }, []);
  useLayoutEffect(() => {
    box.current.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  });
  useEffect(() => {
    const outside = (event) => !box.current?.contains(event.target) && !anchor.contains(event.target) && close(false);
    addEventListener("pointerdown", outside, true);
    return () => removeEventListener("pointerdown", outside, true);
  }, []);
  const keys = (event) => {
    event.stopPropagation();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      if (shown.length) setAt((index + step + shown.length) % shown.length);
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      if (shown[index]) choose(shown[index].value);
    } else if (event.key === "Escape" || event.key === "Tab") {
      event.preventDefault();
      close(true);
    }
  };
  const optionId = (position) => `${id.current}-${position}`;
  const active = shown.length ? optionId(index) : undefined;
  return html`<div
    class="picker-list"
    popover="manual"
    ref=${box}
    tabindex="-1"
    onKeyDown=${keys}
    role=${searched ? undefined : "listbox"}
    aria-label=${searched ? undefined : label}
    aria-activedescendant=${searched ? undefined : active}
  >
    <p class="picker-title" aria-hidden="true">${label}</p>
    ${
      searched &&
      html`<input
        type="text"
        ref=${field}
        role="combobox"
        aria-label=${`Search ${label}`}
        aria-expanded="true"
        aria-controls=${id.current}
        aria-activedescendant=${active}
        autocomplete="off"
        spellcheck=${false}
        placeholder=${free ? "Search, or write a value" : "Search"}
        value=${query}
        onInput=${(event) => (setQuery(event.target.value), setAt(0))}
      />`
    }
    <div
      class="picker-options"
      id=${id.current}
      role=${searched ? "listbox" : "presentation"}
      aria-label=${searched ? label : undefined}
    >
      ${shown.map(
        (option, position) =>
          html`<div
            key=${option.value}
            id=${optionId(position)}
            role="option"
            class=${`picker-option${position === index ? " is-active" : ""}`}
            aria-selected=${String(position === index)}
            onClick=${() => choose(option.value)}
            onPointerMove=${() => position !== index && setAt(position)}
          >
            <span class="picker-check">${option.value === value && html`<${Icon} name="check" size=${14} />`}</span>
            <span class="picker-text"
              ><bdi>${option.label ?? option.value}</bdi
              >${option.description && html`<span class="picker-description">${option.description}</span>`}</span
            >
          </div>`,
      )}
      ${!shown.length && html`<p class="picker-none">Nothing matches</p>`}
    </div>
  </div>`;
}
