/** What several pages have: their frame, notices, commands with a copy button, and the loading of an answer. */

import { api } from "../api.js";
import { html, useCallback, useEffect, useRef, useState } from "../preact.js";
import { Button, CopyButton, Dialog, Icon, PaneHeader, Spinner, copyText, toast } from "../ui/index.js";

/** A page with its heading, a sentence about it, and its actions. */
export function Page({ title, about, actions, children, wide = false }) {
  return html`<div class="page">
    <${PaneHeader} title=${title}>${actions}<//>
    <div class="page-scroll"><div class=${`page-body ${wide ? "page-wide" : ""}`}>
      ${about && html`<p class="page-about">${about}</p>`}
      ${children}
    </div></div>
  </div>`;
}

/**
 * A message of its own block. `kind` is ok, info, warning or error; the word before the text says it too.
 */
export function Notice({ kind = "info", title, children }) {
  return html`<div class=${`notice notice-${kind}`} role=${kind === "error" ? "alert" : "note"}>
    ${title && html`<strong>${title}</strong>`}<span>${children}</span>
  </div>`;
}

/** What a named key is told about what only the administrator's keys may do. */
export function AdministratorOnly({ what }) {
  return html`<${Notice} title="Only for the administrator">
    ${what} You are signed in with a named key, which sees its own sessions only. Sign in with the default key, which <code>portico key</code> prints.
  <//>`;
}

/** A button with words that copies a text, or what a function makes when it is pressed. `what` goes on with its name for screen readers. */
export function CopyAs({ text, label = "Copy", what = "", small = false }) {
  const [done, setDone] = useState(false);
  const timer = useRef(null);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    try {
      await copyText(text);
      setDone(true);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => setDone(false), 1500);
    } catch (error) {
      toast(`Not copied: ${error.message}`, { kind: "error" });
    }
  };
  return html`<${Button} small=${small} icon=${done ? "check" : "copy"} onClick=${copy} aria-label=${what ? `${label} ${what}` : undefined}>
    ${done ? "Copied" : label}<span class="visually-hidden" aria-live="polite">${done ? "Copied" : ""}</span>
  <//>`;
}

/** A shell command with a copy button. */
export function Command({ command, what = "the command" }) {
  return html`<div class="command"><code>${command}</code><${CopyButton} text=${command} label=${`Copy ${what}`} /></div>`;
}

/** A field of a form with its name above. */
export function Field({ label, wide = false, children }) {
  return html`<label class=${`field ${wide ? "field-wide" : ""}`}><span class="field-label">${label}</span>${children}</label>`;
}

const MARKS = { ok: "check", info: "dot", warn: "warning", error: "error", run: "play", ask: "hand" };

/** A state in words with a mark. `kind` is ok, info, warn, error, run or ask. */
export function Status({ kind, children }) {
  return html`<span class=${`page-status ${kind}`}><${Icon} name=${MARKS[kind]} size=${15} /> ${children}</span>`;
}

/**
 * The answer to a GET, loaded again by `reload` and whenever the path changes; with a path of null nothing is loaded.
 * What was loaded stays while it is loaded again.
 * @returns {{data: any, error: any, loading: boolean, reload: () => Promise<void>}}
 */
export function useAnswer(path) {
  const [state, setState] = useState({ data: null, error: null, loading: path !== null, path });
  const latest = useRef(0);
  const load = useCallback(
    async (other) => {
      const wanted = typeof other === "string" ? other : path;
      if (wanted === null) return;
      const request = ++latest.current;
      setState((before) => ({ ...before, loading: true }));
      try {
        const data = await api.get(wanted);
        if (request === latest.current) setState({ data, error: null, loading: false, path });
      } catch (error) {
        if (request === latest.current) setState((before) => ({ ...before, error, loading: false }));
      }
    },
    [path],
  );
  useEffect(() => {
    load();
    return () => {
      latest.current += 1;
    };
  }, [load]);
  return { data: state.data, error: state.error, loading: state.loading, reload: load };
}

/** Call a function now and every few milliseconds while the page is in view. */
export function useInterval(call, milliseconds) {
  const newest = useRef(call);
  newest.current = call;
  useEffect(() => {
    const tick = () => document.hidden || newest.current();
    const timer = setInterval(tick, milliseconds);
    document.addEventListener("visibilitychange", tick);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", tick);
    };
  }, [milliseconds]);
}

/** What stands in the place of an answer that is not there yet, and why it does not come. */
export function Waiting({ answer, what }) {
  if (answer.error) return html`<${LoadError} error=${answer.error} reload=${answer.reload} what=${what} />`;
  return answer.data ? null : html`<p><${Spinner} label=${`${what} are being loaded`} /></p>`;
}

/** Why something could not be loaded, for people. */
export function LoadError({ error, reload, what }) {
  return html`<${Notice} kind="error" title=${`${what} cannot be loaded.`}>
    ${error.message} <button type="button" class="button small" onClick=${() => reload()}>Try again</button>
  <//>`;
}

/** A question before something that cannot be undone. Escape and the first button cancel. */
export function Confirm({ title, action, onConfirm, onCancel, children }) {
  const footer = html`<button type="button" class="button" data-autofocus onClick=${onCancel}>Cancel</button>
    <button type="button" class="button danger" onClick=${onConfirm}>${action}</button>`;
  return html`<${Dialog} title=${title} onClose=${onCancel} footer=${footer}>${children}<//>`;
}

/** A choice of one of a few, as buttons in a row. `options` are pairs of value and name. */
export function Segmented({ name, legend, options, value, onChange }) {
  return html`<fieldset class="segmented"><legend class="visually-hidden">${legend}</legend>
    ${options.map(([option, text]) => html`<label key=${option}><input type="radio" name=${name} checked=${option === value} onChange=${() => onChange(option)} /><span>${text}</span></label>`)}
  </fieldset>`;
}

/** Whether a media query holds. */
export function useMedia(query) {
  const [holds, setHolds] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const changed = () => setHolds(list.matches);
    list.addEventListener("change", changed);
    return () => list.removeEventListener("change", changed);
  }, [query]);
  return holds;
}
