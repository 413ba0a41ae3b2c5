/** One tool call: what it is about, how far it is, and what it gave. */

import { html, useEffect, useMemo, useReducer } from "../preact.js";
import { Icon } from "../ui/icon.js";
import { CopyButton } from "../ui/button.js";
import { DiffView } from "./diff.js";
import { changesOfCall } from "./file-changes.js";
import { useFold } from "./fold.js";
import { duration } from "./format.js";
import { Markdown } from "./markdown.js";
import { Output, Picture, asText, partsOfResult } from "./output.js";
import { SafeText, visibleText } from "./safe-text.js";
import { stepsOfCall, Steps } from "./steps.js";
import { titleOfCall } from "./tool-title.js";

const STATES = {
  writing: ["Writing the call", "edit"],
  running: ["Running", null],
  waiting: ["Waiting for you", "hand"],
  completed: ["Done", "check"],
  failed: ["Failed", "error"],
  denied: ["Denied", "close"],
  cancelled: ["Cancelled", "close"],
  abandoned: ["Not called", "close"],
  ended: ["No result", "info"],
};

/** What a state is called: `{word, icon}`; without an icon it is at work. */
export function stateOfCall(call) {
  const [word, icon] = STATES[call.state] ?? STATES.ended;
  if (call.state === "waiting" && call.wants === "result") return { word: "Waiting for the result", icon: "clock" };
  if (call.state === "waiting" && call.wants === "answer") return { word: "Waiting for your answer", icon: "question" };
  if (call.state === "failed" && call.exitCode !== null) return { word: `Exit code ${call.exitCode}`, icon };
  if (call.state === "completed" && call.exitCode) return { word: `Exit code ${call.exitCode}`, icon: "info" };
  return { word, icon };
}

/** The time since a call has started, which counts on while it runs. */
function Elapsed({ call }) {
  const [, tick] = useReducer((count) => count + 1, 0);
  const counting = call.state === "running" && call.startedAt;
  useEffect(() => {
    if (!counting) return undefined;
    const timer = setInterval(tick, 1000);
    return () => clearInterval(timer);
  }, [counting]);
  if (!call.startedAt) return null;
  const took = (call.endedAt ?? (counting ? Date.now() : call.startedAt)) - call.startedAt;
  return took >= 1000 ? html`<span class="tool-time">${duration(took)}</span>` : null;
}

const OPEN_BY_ITSELF = new Set(["running", "failed", "denied"]);

/** Which parts a call has, besides its title. */
function partsOf(call, title) {
  const input = call.input;
  const changes = call.state === "writing" ? [] : changesOfCall(call.name, input, call.state === "completed" ? call.changes : []);
  const steps = call.tasks ? (call.tasks.length ? call.tasks : null) : stepsOfCall(call.name, input);
  const result = partsOfResult(call.result);
  const isObject = input && typeof input === "object" && !Array.isArray(input);
  const questions = isObject && Array.isArray(input.questions) ? input.questions : null;
  const plan = isObject && title.kind === "plan" && typeof input.plan === "string" ? input.plan : null;
  const prompt = isObject && title.kind === "agent" && typeof input.prompt === "string" ? input.prompt : null;
  return { changes, steps, result, questions, plan, prompt };
}

function Questions({ questions, answer }) {
  return html`<div class="tool-questions">
    ${questions.map(
      (one, at) => html`<div key=${at}>
        <p class="tool-question"><${SafeText} text=${one?.question ?? ""} /></p>
        ${Array.isArray(one?.options) && html`<ul>${one.options.map((option, index) => html`<li key=${index}><${SafeText} text=${option?.label ?? asText(option)} />${option?.description && html`<span class="dim"> – <${SafeText} text=${option.description} /></span>`}</li>`)}</ul>`}
      </div>`,
    )}
    ${answer && html`<p class="tool-answer"><strong>Answer:</strong> <${SafeText} text=${answer} /></p>`}
  </div>`;
}

/** The input as text; empty where the title of the call has all of it. */
function inputText(input, subject) {
  if (input === null || input === undefined) return "";
  if (typeof input === "object" && !Array.isArray(input)) {
    const values = Object.values(input);
    if (values.length === 0 || (values.length === 1 && typeof values[0] === "string" && !values[0].includes("\n") && subject.endsWith(values[0].slice(-80)) && values[0].length < 100)) return "";
  }
  return asText(input);
}

function Body({ call, title, parts, folder, foldKey, open }) {
  const { changes, steps, result, questions, plan, prompt } = parts;
  const live = call.state === "running" || (call.state === "waiting" && call.output);
  const outputText = call.result === null ? call.output : result.text;
  const isEdit = changes.length > 0;
  const isError = call.state === "failed" || call.state === "denied";
  // The result of an edit that was made says no more than its diff.
  const showOutput = outputText && !questions && (!isEdit || isError || open) && (!steps || isError || open) && (!plan || isError);
  const long = title.kind === "command" && (title.subject.length > 100 || title.subject.includes("\n"));
  const text = open && !isEdit && !steps && !questions && !plan && title.kind !== "command" ? inputText(call.input, title.subject) : "";
  return html`<div class="tool-body">
    ${call.decision?.granted === false && html`<p class="tool-decision"><${Icon} name="close" size=${14} /> You denied this call${call.decision.reason ? ": " : "."}${call.decision.reason && html`<${SafeText} text=${call.decision.reason} />`}</p>`}
    ${long && html`<${Output} text=${title.subject} foldKey=${`${foldKey}:command`} lines=${open ? 200 : 6} label="Command" plain=${true} />`}
    ${open && typeof call.input?.cwd === "string" && call.input.cwd !== folder && html`<p class="tool-folder dim">in <bdi dir="ltr">${visibleText(call.input.cwd)}</bdi></p>`}
    ${prompt && open && html`<div class="tool-section"><p class="tool-heading">Task</p><${Output} text=${prompt} foldKey=${`${foldKey}:prompt`} lines=${20} label="Task" plain=${true} /></div>`}
    ${text && html`<div class="tool-section"><p class="tool-heading">Input</p><${Output} text=${text} foldKey=${`${foldKey}:input`} lines=${30} label="Input" plain=${true} /></div>`}
    ${plan && html`<${Markdown} text=${plan} />`}
    ${steps && html`<${Steps} steps=${steps} />`}
    ${questions && html`<${Questions} questions=${questions} answer=${result.text} />`}
    ${isEdit && html`<${DiffView} changes=${changes} folder=${folder} foldKey=${foldKey} limit=${open ? 400 : 24} />`}
    ${call.children.length > 0 &&
    html`<div class="tool-children" role="group" aria-label="Calls of the sub-agent">
      ${call.children.map((child) => html`<${ToolCard} key=${child.key} call=${child} folder=${folder} />`)}
    </div>`}
    ${showOutput &&
    html`<div class=${`tool-section${isError ? " tool-error" : ""}`}>
      ${(open || isError) && !live && html`<p class="tool-heading">${isError ? "Error" : call.byClient ? "Result of the client" : "Result"}</p>`}
      ${title.kind === "agent" && !isError
        ? html`<${AgentReport} text=${outputText} foldKey=${foldKey} />`
        : html`<${Output} text=${outputText} foldKey=${`${foldKey}:output`} live=${Boolean(live)} lines=${open ? 40 : live || isError ? 12 : 4} label=${`Output of ${call.name || "the tool"}`} />`}
    </div>`}
    ${result.images.map((url, at) => html`<${Picture} key=${at} url=${url} alt=${`Image ${at + 1} of the result`} />`)}
    ${open && html`<div class="tool-foot">${long || title.kind === "command" ? html`<${CopyButton} text=${title.subject} label="Copy command" />` : null}</div>`}
  </div>`;
}

function AgentReport({ text, foldKey }) {
  const [open, setOpen] = useFold(`${foldKey}:report`, text.length < 1500);
  if (open) return html`<${Markdown} text=${text} />`;
  return html`<button type="button" class="show-more" onClick=${() => setOpen(true)}>Show the report (${text.length.toLocaleString("en")} characters)</button>`;
}

/** @param {{call: object, folder?: string}} props `call` is an item of the timeline */
export function ToolCard({ call, folder = "" }) {
  const title = useMemo(() => titleOfCall(call.name, call.input, call.detail, folder), [call.name, call.input, call.detail, folder]);
  const parts = useMemo(() => partsOf(call, title), [call, title]);
  const { word, icon } = stateOfCall(call);
  const [open, setOpen] = useFold(call.key, OPEN_BY_ITSELF.has(call.state) && title.kind !== "command");
  const label = call.subagent?.label && title.kind !== "agent" ? call.subagent.label : "";
  const subject = title.subject.split("\n")[0].slice(0, 400);
  return html`<section class=${`tool ${call.state} kind-${title.kind}`} role="group" aria-label=${`Tool ${visibleText(title.name)}: ${word}`} data-call=${call.id}>
    <button type="button" class="tool-title" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      <span class="tool-icon"><${Icon} name=${title.icon} /></span>
      <span class="tool-name">${title.server && html`<span class="dim">${visibleText(title.server)} / </span>`}<bdi>${visibleText(title.name)}</bdi></span>
      <span class="tool-subject" title=${visibleText(title.subject.slice(0, 2000))}><bdi dir="ltr">${visibleText(subject || label)}</bdi></span>
      <${Elapsed} call=${call} />
      <span class=${`tool-state ${call.state}`}>${icon ? html`<${Icon} name=${icon} size=${14} />` : html`<span class="spinner" aria-hidden="true"></span>`}<span class="tool-word">${word}</span></span>
      <${Icon} name=${open ? "chevron-down" : "chevron-right"} size=${14} />
    </button>
    <${Body} call=${call} title=${title} parts=${parts} folder=${folder} foldKey=${call.key} open=${open} />
  </section>`;
}
