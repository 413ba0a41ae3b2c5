/** A field for a folder, with the folders that the server completes. */
import { AAP, api, query } from "../api.js";
import { html, useEffect, useRef, useState } from "../preact.js";

const PAUSE = 120;
let lastId = 0;

/** @param {{agent: string, value: string, onChange: (folder: string) => void, recent?: string[]}} props `recent` are offered while it is empty */
export function FolderField({
  agent,
  value,
  onChange,
  recent = [],
  id,
  describedBy,
  label,
  placeholder = "The agent's own folder",
}) {
  const [found, setFolders] = useState([]);
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const [problem, setProblem] = useState("");
  const listId = useRef(null);
  listId.current ??= `folders-${++lastId}`;
  useEffect(() => {
    if (!open) return undefined;
    const aborting = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const answer = await api.get(`${AAP}/folders${query({ agent, prefix: value, limit: 50 })}`, { signal: aborting.signal });
        setFolders([...new Set([...recent, ...answer.folders])]);
        setProblem("");
        setAt(-1);
      } catch (error) {
        if (error.name === "AbortError") return;
        setFolders([]);
        setProblem(error.status ? error.message : "");
      }
    }, PAUSE);
    return () => {
      clearTimeout(timer);
      aborting.abort();
    };
  }, [open, agent, value]);
  // Until the folders of this text are known, those of the text before are shown that match it too.
  const folders = found.filter((folder) => folder.startsWith(value) && folder !== value);
  // A chosen folder is completed further: the folders in it come next.
  const choose = (folder) => onChange(folder.endsWith("/") ? folder : `${folder}/`);
  const keys = (event) => {
    if (!open || !folders.length) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((at + step + folders.length) % folders.length);
    } else if (
      (event.key === "Enter" && at >= 0) ||
      (event.key === "Tab" && !event.shiftKey && folders.length && value && at >= 0)
    ) {
      event.preventDefault();
      event.stopPropagation();
      choose(folders[at]);
    } else if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      setOpen(false);
    }
  };
  const shown = open && folders.length > 0;
  return html`<div class="folder-field">
    <input
      type="text"
      class="input"
      id=${id}
      aria-label=${label}
      aria-describedby=${describedBy}
      role="combobox"
      aria-expanded=${String(shown)}
      aria-controls=${listId.current}
      aria-autocomplete="list"
      aria-activedescendant=${shown && at >= 0 ? `${listId.current}-${at}` : undefined}
      autocomplete="off"
      spellcheck=${false}
      placeholder=${placeholder}
      value=${value}
      onFocus=${() => setOpen(true)}
      onBlur=${() => setOpen(false)}
      onClick=${() => setOpen(true)}
      onInput=${(event) => (setOpen(true), onChange(event.target.value))}
      onKeyDown=${keys}
    />
    <div class="folder-list" role="listbox" id=${listId.current} aria-label="Folders" hidden=${!shown}>
      ${
        shown &&
        folders.map(
          (folder, index) =>
            html`<div
              key=${folder}
              role="option"
              id=${`${listId.current}-${index}`}
              class=${`picker-option${index === at ? " is-active" : ""}`}
              aria-selected=${String(index === at)}
              onMouseDown=${(event) => event.preventDefault()}
              onClick=${() => choose(folder)}
            >
              <bdi>${folder}</bdi>
            </div>`,
        )
      }
    </div>
    ${open && problem && html`<p class="form-error" role="alert">${problem}</p>`}
  </div>`;
}
