/** The audit page: decisions about tool calls, with a search, filters, and further pages. */

import { api } from "../api.js";
import { html, useEffect, useRef, useState } from "../preact.js";
import { Link, sessionPath } from "../router.js";
import { useAgents } from "../sessions.js";
import { dateTime, visible } from "./format.js";
import { JsonView } from "./json-view.js";
import { Icon, Select, Spinner } from "../ui/index.js";
import { CopyAs, Field, LoadError, Page } from "./parts.js";

const PAGE = 50;
/** Milliseconds after the last keystroke. */
const TYPING = 250;

/** With the icon of each. */
const OUTCOMES = {
  trusted: "check",
  allowed: "check",
  denied: "close",
  asked: "question",
  granted: "check",
  refused: "close",
  answered: "check",
  timed_out: "clock",
  left: "arrow-right",
  cancelled: "close",
  configured: "settings",
};
const NO_FILTERS = { q: "", agent: "", tool: "", outcome: "", session: "" };

export function AuditPage() {
  const given = new URLSearchParams(location.search);
  const [filters, setFilters] = useState({ ...NO_FILTERS, ...Object.fromEntries([...given].filter(([name]) => name in NO_FILTERS)) });
  const [settled, setSettled] = useState(filters);
  const [state, setState] = useState({ entries: [], next: null, loading: true, error: null, done: false });
  const request = useRef(0);

  useEffect(() => {
    const timer = setTimeout(() => setSettled(filters), TYPING);
    return () => clearTimeout(timer);
  }, [filters]);

  const load = async (before) => {
    const number = ++request.current;
    setState((last) => ({ ...last, loading: true, error: null }));
    const query = new URLSearchParams(Object.entries({ ...settled, limit: String(PAGE) }).filter(([, value]) => value.trim()));
    if (before) query.set("before", before);
    try {
      const answer = await api.get(`/v1/audit?${query}`);
      if (number !== request.current) return;
      setState((last) => ({
        entries: before ? [...last.entries, ...answer.entries] : answer.entries,
        next: answer.next ?? null,
        loading: false,
        error: null,
        done: true,
      }));
    } catch (error) {
      if (number === request.current) setState((last) => ({ ...last, loading: false, error }));
    }
  };
  useEffect(() => {
    const query = new URLSearchParams(Object.entries(settled).filter(([, value]) => value.trim()));
    history.replaceState(history.state, "", query.size ? `${location.pathname}?${query}` : location.pathname);
    load(null);
  }, [settled]);

  const about =
    "Every decision about a tool call, and every MCP server that a client brings, newest first. Decisions stay when their session is deleted.";
  const set = (name) => (event) => setFilters({ ...filters, [name]: event.target.value });
  const agents = [
    ...new Set([...(useAgents() ?? []).map((agent) => agent.name), ...state.entries.map((entry) => entry.agent), filters.agent]),
  ]
    .filter(Boolean)
    .sort();
  const filtered = Object.values(filters).some((value) => value.trim());
  return html`<${Page} title="Audit" about=${about} wide=${true}
    actions=${html`<button type="button" class="button" onClick=${() => load(null)} disabled=${state.loading}>Refresh</button>`}>
    <form class="toolbar filters" role="search" aria-label="Audit" onSubmit=${(event) => (event.preventDefault(), setSettled(filters))}>
      <${Field} label="Search" wide=${true}><input class="input" type="search" value=${filters.q} placeholder="arguments, reasons, tools" onInput=${set("q")} /><//>
      <${Select} label="Agent" hideLabel=${false} value=${filters.agent} onChange=${(agent) => setFilters({ ...filters, agent })}
        options=${[{ value: "", label: "all" }, ...agents.map((name) => ({ value: name }))]} />
      <${Field} label="Tool"><input class="input" type="text" list="audit-tools" value=${filters.tool} placeholder="its whole name" autocomplete="off" spellcheck=${false} onInput=${set("tool")} />
        <datalist id="audit-tools">${[...new Set(state.entries.map((entry) => entry.tool))].map((name) => html`<option value=${name} />`)}</datalist><//>
      <${Select} label="Outcome" hideLabel=${false} value=${filters.outcome} onChange=${(outcome) => setFilters({ ...filters, outcome })}
        options=${[{ value: "", label: "all" }, ...Object.keys(OUTCOMES).map((name) => ({ value: name, label: name.replace("_", " ") }))]} />
      <${Field} label="Session"><input class="input" type="text" value=${filters.session} placeholder="sess_…" autocomplete="off" spellcheck=${false} onInput=${set("session")} /><//>
      ${filtered && html`<button type="button" class="button" onClick=${() => setFilters(NO_FILTERS)}>Clear</button>`}
    </form>
    ${state.error && html`<${LoadError} error=${state.error} reload=${() => load(null)} what="The audit" />`}
    ${!state.done && !state.error && html`<p><${Spinner} label="The audit is being loaded" /></p>`}
    <p class="visually-hidden" aria-live="polite">${state.loading ? "" : `${state.entries.length} decisions are shown${state.next ? ", and there are more" : ""}.`}</p>
    ${state.done && state.entries.length === 0 && !state.loading && html`<p class="page-about">${filtered ? "No decision matches these filters." : "No tool call has been decided about yet."}</p>`}
    ${
      state.entries.length > 0 &&
      html`<ul class="audit" aria-busy=${state.loading}>${state.entries.map(
        (entry) => html`<${Entry} key=${entry.id} entry=${entry}
      onFilter=${(name, value) => setFilters({ ...filters, [name]: value })} />`,
      )}</ul>`
    }
    ${state.next && html`<button type="button" class="button more-button" disabled=${state.loading} onClick=${() => load(state.next)}>${state.loading ? "Loading…" : "Show older decisions"}</button>`}
  <//>`;
}

function Entry({ entry, onFilter }) {
  const [open, setOpen] = useState(false);
  const text = typeof entry.arguments === "string" ? entry.arguments : JSON.stringify(entry.arguments ?? null);
  return html`<li class="audit-entry">
    <button type="button" class="audit-line" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <time datetime=${entry.at}>${dateTime(entry.at)}</time>
      <span class=${`outcome outcome-${entry.outcome}`}><${Icon} name=${OUTCOMES[entry.outcome] ?? "dot"} size=${14} /> ${entry.outcome.replace("_", " ")}</span>
      <span class="audit-tool">${visible(entry.tool)}</span>
      <code class="audit-arguments" dir="auto">${visible(text)}</code>
      <span class="dim audit-by">${entry.agent} · by ${visible(entry.by)}</span>
    </button>
    ${
      open &&
      html`<div class="audit-detail">
      <dl class="facts">
        ${entry.reason && html`<dt>Reason</dt><dd dir="auto">${visible(entry.reason)}</dd>`}
        <dt>Decided by</dt><dd>${visible(entry.by)}</dd>
        <dt>Agent</dt><dd>${entry.agent} <button type="button" class="link-button" onClick=${() => onFilter("agent", entry.agent)}>only this agent</button></dd>
        <dt>Tool</dt><dd>${visible(entry.tool)} <button type="button" class="link-button" onClick=${() => onFilter("tool", entry.tool)}>only this tool</button></dd>
        <dt>Call</dt><dd><code class="path">${visible(entry.callId ?? "")}</code></dd>
        <dt>Session</dt><dd><${Link} href=${sessionPath(entry.sessionId)}><code class="path">${entry.sessionId}</code><//>
          ${" "}<button type="button" class="link-button" onClick=${() => onFilter("session", entry.sessionId)}>only this session</button></dd>
        <dt>Arguments</dt><dd><${Arguments} text=${text} /></dd>
      </dl>
      <${CopyAs} text=${() => JSON.stringify(entry, null, 2)} label="Copy as JSON" what="this decision" small=${true} />
    </div>`
    }
  </li>`;
}

/** Arguments are stored as a text of JSON that may be cut. */
function Arguments({ text }) {
  try {
    return html`<${JsonView} value=${JSON.parse(text)} />`;
  } catch {
    return html`<code class="audit-cut" dir="auto">${visible(text)}</code>`;
  }
}
