/** A field for a message: text that grows, images, `/` commands, `@` files, the history of what was sent, and the keys that send. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../preact.js";
import { stored, useObservable } from "../observable.js";
import { Icon, IconButton } from "../ui/index.js";
import { complete, fileMention, matchingCommands, triggerAt } from "./completion.js";
import { readImages, whyNoImages } from "./images.js";

/** "enter", or "mod+enter": which keys send a message. The others begin a line. */
export const sendKeys = stored("portico.sendKeys", "enter");

/** A pause in writing after which files are searched. Milliseconds. */
const PAUSE = 100;
const touch = matchMedia("(pointer: coarse)");

/**
 * Whether the focus may go to a field that has just been shown: not while a user writes elsewhere, such as a title or in a search, or is
 * at another session of the list than the one that is open.
 */
const mayTakeFocus = () => !touch.matches && !document.activeElement?.matches("input, textarea, select, .session-row a:not([aria-current])");

/**
 * @param {object} props
 * @param {{text: string, images: object[]}} props.draft what is written
 * @param {(draft: object) => void} props.onDraft
 * @param {() => void} props.onSend
 * @param {object} [props.agent] its capabilities say whether images may be added
 * @param {() => Promise<object[]>} [props.commands] the agent's commands
 * @param {(query: string) => Promise<object[]>} [props.files] files of the working folder that match
 * @param {() => Promise<string[]>} [props.history] what was sent before, the newest last
 * @param {string} props.label
 * @param {(problems: string[]) => void} props.onProblems
 * @param {() => void} [props.onEscape] what Esc does where no menu is open
 */
export function MessageBox({
  draft,
  onDraft,
  onSend,
  agent,
  commands,
  files,
  history,
  label,
  placeholder,
  onProblems,
  autoFocus,
  onEscape,
  fieldRef,
  children,
}) {
  const own = useRef(null);
  const field = fieldRef ?? own;
  const [caret, setCaret] = useState(0);
  const [dropping, setDropping] = useState(false);
  const [dismissed, setDismissed] = useState("");
  const [recalled, setRecalled] = useState(null);
  const keys = useObservable(sendKeys);
  const trigger = triggerAt(draft.text, caret);
  const triggerId = trigger ? `${trigger.kind} ${trigger.from}` : "";
  const menu = useMenu(triggerId && triggerId !== dismissed ? trigger : null, commands, files);

  useLayoutEffect(() => {
    const area = field.current;
    const around = area.parentElement;
    // The field is measured at its smallest height. Without this the list above would grow for that moment, and the browser would scroll it.
    around.style.minHeight = `${around.offsetHeight}px`;
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight + 2}px`;
    around.style.minHeight = "";
  }, [draft.text]);
  useLayoutEffect(() => {
    if (autoFocus && mayTakeFocus()) field.current.focus();
  }, []);

  const setText = (text, at) => {
    onDraft({ ...draft, text });
    if (at === undefined) return;
    setCaret(at);
    // At once, not when the text is rendered: a key that is pressed before would be written elsewhere.
    field.current.value = text;
    field.current.setSelectionRange(at, at);
  };
  const choose = (item) => {
    const { value, caret: at } = complete(draft.text, trigger, item.inserted);
    setText(value, at);
    field.current.focus();
  };
  const addFiles = async (given) => {
    const list = [...given];
    if (!list.length) return;
    const { images, problems } = await readImages(list, draft.images, agent);
    onProblems(problems);
    if (images.length) onDraft((now) => ({ ...now, images: [...now.images, ...images] }));
  };

  const recall = async (step, event) => {
    const area = event.target;
    const before = area.value.slice(0, area.selectionStart);
    const after = area.value.slice(area.selectionEnd);
    if (!history || (step < 0 ? before.includes("\n") : recalled === null || after.includes("\n"))) return;
    if (step < 0 && recalled === null && draft.text && area.selectionStart > 0) return;
    event.preventDefault();
    const sent = recalled?.sent ?? (await history());
    const at = (recalled?.at ?? sent.length) + step;
    if (at < 0 || !sent.length) return;
    const written = recalled?.written ?? draft.text;
    const text = at >= sent.length ? written : sent[at];
    setRecalled(at >= sent.length ? null : { sent, at, written });
    setText(text, text.length);
  };

  const onKeyDown = (event) => {
    if (event.isComposing || event.keyCode === 229) return;
    if (menu.items.length) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && !event.shiftKey) {
        event.preventDefault();
        menu.move(step);
        return;
      }
      if ((event.key === "Enter" && !event.shiftKey) || event.key === "Tab") {
        event.preventDefault();
        choose(menu.items[menu.at]);
        return;
      }
    }
    if (event.key === "Escape" && menu.open) {
      event.preventDefault();
      event.stopPropagation();
      setDismissed(triggerId);
      return;
    }
    if (event.key === "Escape" && onEscape) {
      event.preventDefault();
      event.stopPropagation();
      onEscape();
      return;
    }
    if (event.key === "ArrowUp" && !event.shiftKey && !event.altKey) recall(-1, event);
    else if (event.key === "ArrowDown" && !event.shiftKey && !event.altKey) recall(1, event);
    else if (event.key === "Enter") {
      const mod = event.ctrlKey || event.metaKey;
      const sends = mod || (keys === "enter" && !event.shiftKey && !event.altKey && !touch.matches);
      if (!sends) return;
      event.preventDefault();
      onSend();
    }
  };
  const onPaste = (event) => {
    const images = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));
    if (!images.length) return;
    event.preventDefault();
    addFiles(images);
  };
  const onDrop = (event) => {
    setDropping(false);
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    addFiles(event.dataTransfer.files);
  };
  const onDragOver = (event) => {
    if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
    event.preventDefault();
    setDropping(true);
  };
  const follow = (event) => setCaret(event.target.selectionStart);

  return html`<div
    class=${`message-box${dropping ? " is-dropping" : ""}`}
    onDragOver=${onDragOver}
    onDragLeave=${(event) => !event.currentTarget.contains(event.relatedTarget) && setDropping(false)}
    onDrop=${onDrop}
  >
    ${menu.open && html`<${CompletionMenu} menu=${menu} kind=${trigger.kind} choose=${choose} />`}
    ${
      draft.images.length > 0 &&
      html`<ul class="message-images" aria-label="Images">
        ${draft.images.map(
          (image) =>
            html`<li key=${image.id}>
              <img src=${image.url} alt=${image.name} />
              <${IconButton}
                icon="close"
                size=${12}
                label=${`Remove ${image.name}`}
                onClick=${() => onDraft({ ...draft, images: draft.images.filter((other) => other !== image) })}
              />
            </li>`,
        )}
      </ul>`
    }
    <textarea
      ref=${field}
      rows="1"
      dir="auto"
      aria-label=${label}
      placeholder=${placeholder}
      value=${draft.text}
      aria-autocomplete="list"
      aria-controls=${menu.open ? menu.id : undefined}
      aria-activedescendant=${menu.items.length ? `${menu.id}-${menu.at}` : undefined}
      enterkeyhint=${touch.matches ? "enter" : "send"}
      onInput=${(event) => {
        setRecalled(null);
        if (!triggerId) setDismissed("");
        setCaret(event.target.selectionStart);
        onDraft({ ...draft, text: event.target.value });
      }}
      onKeyDown=${onKeyDown}
      onKeyUp=${follow}
      onClick=${follow}
      onPaste=${onPaste}
    ></textarea>
    <div class="message-actions">
      <${AddImages} agent=${agent} onFiles=${addFiles} />
      ${children}
    </div>
    ${dropping && html`<div class="message-drop" aria-hidden="true"><${Icon} name="image" /> ${whyNoImages(agent) || "Drop images here"}</div>`}
  </div>`;
}

function AddImages({ agent, onFiles }) {
  const input = useRef(null);
  const refused = whyNoImages(agent);
  return html`<input
      type="file"
      ref=${input}
      hidden
      multiple
      accept="image/png,image/jpeg,image/gif,image/webp"
      aria-label="Images to add"
      onChange=${(event) => {
        onFiles(event.target.files);
        event.target.value = "";
      }}
    />
    <${IconButton}
      icon="image"
      label=${refused || "Add images"}
      disabled=${Boolean(refused)}
      onClick=${() => input.current.click()}
    />`;
}

let lastId = 0;

/** The commands or files that match what is being written. */
function useMenu(trigger, commands, files) {
  const [found, setFound] = useState({ key: "", items: [], note: "" });
  const [at, setAt] = useState(0);
  const id = useRef(null);
  id.current ??= `completion-${++lastId}`;
  const source = trigger && { command: commands, file: files }[trigger.kind];
  const key = source ? `${trigger.kind} ${trigger.query}` : "";
  useEffect(() => {
    if (!key) return undefined;
    let over = false;
    const search = async () => {
      try {
        const items =
          trigger.kind === "command" ? commandItems(await commands(), trigger.query) : (await files(trigger.query)).map(fileItem);
        if (!over)
          setFound({ key, items, note: items.length ? "" : trigger.kind === "command" ? "No such command" : "No such file" });
      } catch (error) {
        if (!over) setFound({ key, items: [], note: error.message });
      }
      if (!over) setAt(0);
    };
    const timer = setTimeout(search, trigger.kind === "file" && trigger.query ? PAUSE : 0);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [key]);
  // Until the items of this text are known, those of the text before stay that match it too, so that the menu does not flicker.
  const current = key && found.key.split(" ")[0] === key.split(" ")[0] ? found : { items: [], note: "" };
  const items = found.key === key ? current.items : current.items.filter((item) => matches(item, trigger.query));
  const index = Math.min(at, Math.max(0, items.length - 1));
  return {
    id: id.current,
    open: Boolean(key) && (items.length > 0 || (Boolean(current.note) && found.key === key)),
    items,
    note: current.note,
    at: index,
    move: (step) => setAt((index + step + items.length) % items.length),
    point: setAt,
  };
}

const matches = (item, query) => `${item.label} ${item.description}`.toLowerCase().includes(query.toLowerCase());

const commandItems = (commands, query) =>
  matchingCommands(commands, query).map((command) => ({
    key: command.name,
    icon: "terminal",
    label: `/${command.name}`,
    hint: command.hint,
    description: command.description,
    inserted: `/${command.name}`,
  }));

const fileItem = ({ path, type }) => ({
  key: path,
  icon: type === "folder" || type === "directory" ? "folder" : "file",
  label: path.split("/").filter(Boolean).at(-1) ?? path,
  description: path,
  inserted: fileMention(path),
});

function CompletionMenu({ menu, kind, choose }) {
  const list = useRef(null);
  useLayoutEffect(() => list.current.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }));
  return html`<div
    class="completion-menu"
    role="listbox"
    id=${menu.id}
    ref=${list}
    aria-label=${kind === "command" ? "Commands" : "Files"}
  >
    ${menu.items.map(
      (item, index) =>
        html`<div
          key=${item.key}
          id=${`${menu.id}-${index}`}
          role="option"
          class=${`completion-item${index === menu.at ? " is-active" : ""}`}
          aria-selected=${String(index === menu.at)}
          onMouseDown=${(event) => event.preventDefault()}
          onPointerMove=${() => index !== menu.at && menu.point(index)}
          onClick=${() => choose(item)}
        >
          <${Icon} name=${item.icon} size=${14} />
          <bdi class="completion-label">${item.label}</bdi>
          ${item.hint && html`<bdi class="completion-hint">${item.hint}</bdi>`}
          <bdi class="completion-description">${item.description}</bdi>
        </div>`,
    )}
    ${!menu.items.length && html`<p class="completion-none" role="status">${menu.note}</p>`}
  </div>`;
}
