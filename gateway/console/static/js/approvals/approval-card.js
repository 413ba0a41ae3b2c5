/** One pending call: what it asks for, exactly, and the answers that it can be given. */
import { html, useLayoutEffect, useRef, useState } from "../preact.js";
import { useObservable } from "../observable.js";
import { DiffView, changesOfCall } from "../conversation/diff.js";
import { fieldsInChanges } from "../conversation/file-changes.js";
import { Markdown } from "../conversation/markdown.js";
import { titleOfCall } from "../conversation/tool-title.js";
import { pendingOf } from "../sessions.js";
import { Button, Icon } from "../ui/index.js";
import { allows, answerTo, choicesOf, refusalOf, wordsOf } from "./answers.js";
import { fieldText, inputParts } from "./call-input.js";
import { ExactText } from "./exact-text.js";
import { useApprovalKeys } from "./keys.js";
import { answerCall, stopOf, stops } from "./pending-stops.js";
import { QuestionForm } from "./question-form.js";
import { ResultForm } from "./result-form.js";
import { useSettled, useSteady } from "./steadiness.js";

const WANTS = { permission: "asks for permission", answer: "asks you", result: "waits for its result" };

/** @param {{session: object, call: object, level?: number}} props a session's info, one of its `pendingCalls`, and the heading's level */
export function ApprovalCard({ session, call, level = 2 }) {
  const stop = stopOf(session, useObservable(stops));
  const answer = answerTo(stop.answers, call);
  const [ready, steady] = [useSettled(call.toolCallId), useSteady()];
  const element = useRef(null);
  const [reason, setReason] = useState(null);
  const open = !answer && !stop.sending;
  const give = (given) => open && ready && answerCall(session, call, given);
  const choices = call.wants === "permission" ? choicesOf(call) : [];
  const first = (kind) => choices.find((choice) => choice.kind === kind);
  const choose = (choice) => choice && (steady || choice.kind.startsWith("reject")) && give({ kind: "choice", choice });
  useApprovalKeys(element, open, {
    y: () => reason === null && choose(first("allow_once")),
    a: () => reason === null && choose(first("allow_always")),
    n: () => open && setReason((known) => known ?? ""),
  });
  const title = titleOfCall(call.name, call.input, call.title, session["x-portico"].cwd ?? "");
  const id = `approval-${session.sessionId}-${call.toolCallId}`;
  return html`<article
    class=${`approval approval-${call.wants}${answer ? " is-answered" : ""}`}
    ref=${element}
    tabindex="-1"
    aria-labelledby=${id}
    data-call=${call.toolCallId}
    data-ready=${String(ready && steady)}
  >
    <header class="approval-header">
      <${Icon} name=${title.icon ?? "tool"} />
      <${`h${level}`} id=${id}>
        <bdi class="approval-tool">${title.name}</bdi>
        <span class="approval-wants">${WANTS[call.wants]}${call.optional ? " (an answer is optional)" : ""}</span>
      <//>
    </header>
    ${
      call.wants === "answer"
        ? html`<${QuestionForm} call=${call} disabled=${!open} onAnswer=${give} />`
        : html`<${CallInput} call=${call} />`
    }
    ${call.wants === "result" && html`<${ResultForm} session=${session} call=${call} disabled=${!open} onAnswer=${give} />`}
    ${
      answer
        ? html`<${Given} session=${session} call=${call} answer=${answer} sending=${stop.sending} />`
        : html`<footer class="approval-actions" role="group" aria-label="Answers">
            ${choices.map((choice) => html`<${Choice} choice=${choice} choices=${choices} disabled=${!open} onChoose=${choose} />`)}
            ${
              call.wants !== "permission" &&
              html`<${Button} disabled=${!open} onClick=${() => give(refusalOf(call))}>
                ${call.wants === "answer" ? "Skip the question" : "Refuse"}
              <//>`
            }
            <${Button}
              kind="plain"
              disabled=${!open}
              aria-expanded=${String(reason !== null)}
              onClick=${() => setReason(reason === null ? "" : null)}
            >
              ${call.wants === "answer" ? "Skip with a reason…" : call.wants === "result" ? "Refuse with a reason…" : "Reject with a reason…"}<kbd
                >n</kbd
              >
            <//>
          </footer>`
    }
    ${
      reason !== null &&
      !answer &&
      html`<${ReasonForm}
        value=${reason}
        disabled=${!open}
        onInput=${setReason}
        onCancel=${() => setReason(null)}
        onSend=${() => give(refusalOf(call, reason))}
      />`
    }
  </article>`;
}

const KEYS = { allow_once: "y", allow_always: "a" };

function Choice({ choice, choices, disabled, onChoose }) {
  const kind = allows(choice) ? (choice.kind === "allow_once" ? "primary" : "default") : "danger";
  const key = choices.find((other) => other.kind === choice.kind) === choice ? KEYS[choice.kind] : null;
  return html`<${Button}
    kind=${kind}
    data-kind=${choice.kind}
    data-choice=${choice.id}
    disabled=${disabled}
    aria-keyshortcuts=${key}
    onClick=${() => onChoose(choice)}
  >
    <${ExactText} text=${choice.name} />${key && html`<kbd>${key}</kbd>`}
  <//>`;
}

/** An answer that waits for the answers to the other calls of the stop, or is being sent. */
function Given({ session, call, answer, sending }) {
  const others = pendingOf(session).length > 1;
  return html`<footer class="approval-given">
    <span role="status"
      ><${ExactText} text=${wordsOf(answer)} />${sending ? " · sending…" : others ? " · waits for the other answers" : ""}</span
    >
    ${!sending && html`<${Button} kind="plain" small onClick=${() => answerCall(session, call, null)}>Change<//>`}
  </footer>`;
}

function ReasonForm({ value, disabled, onInput, onCancel, onSend }) {
  const field = useRef(null);
  // Before the next key: letters of the reason must not be keys that answer.
  useLayoutEffect(() => field.current.focus(), []);
  const onKeyDown = (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    onCancel();
  };
  const onSubmit = (event) => {
    event.preventDefault();
    onSend();
  };
  return html`<form class="approval-reason" onSubmit=${onSubmit}>
    <label>
      <span>Reason, which the agent reads</span>
      <input
        type="text"
        ref=${field}
        value=${value}
        dir="auto"
        autocomplete="off"
        onInput=${(event) => onInput(event.target.value)}
        onKeyDown=${onKeyDown}
      />
    </label>
    <${Button} type="submit" kind="danger" disabled=${disabled}>Reject<kbd>Enter</kbd><//>
    <${Button} kind="plain" onClick=${onCancel}>Cancel<//>
  </form>`;
}

/** The input of a call: its command, its changes as a diff, a plan, all other fields, and the whole input as JSON. */
function CallInput({ call }) {
  const changes = changesOfCall(call.name, call.input);
  const inChanges = fieldsInChanges(call.name, call.input, changes);
  const { command, path, plan, comments, fields } = inputParts(call.input, changes, inChanges);
  return html`<div class="approval-input">
    ${command && html`<${ExactBlock} label="Command" text=${command} />`}
    ${comments.map((comment) => html`<p class="approval-comment"><${ExactText} text=${comment} dir="auto" /></p>`)}
    ${path && !changes.length && html`<p class="approval-path"><${ExactText} text=${path} /></p>`}
    ${changes.length > 0 && html`<${DiffView} changes=${changes} />`}
    ${plan && html`<div class="approval-plan"><${Markdown} text=${plan} /></div>`}
    ${
      fields.length > 0 &&
      html`<dl class="approval-fields">
        ${fields.map(([name, value]) => {
          const text = fieldText(value);
          return html`<div>
            <dt><${ExactText} text=${name} /></dt>
            <dd>
              ${text.length > 80 || text.includes("\n") ? html`<${ExactBlock} label=${name} text=${text} />` : html`<code><${ExactText} text=${text} /></code>`}
            </dd>
          </div>`;
        })}
      </dl>`
    }
    <details class="approval-json">
      <summary>Full input</summary>
      <${ExactBlock} label="Input as JSON" text=${JSON.stringify(call.input ?? null, null, 2)} />
    </details>
  </div>`;
}

/** A text of several lines in whole. A long one scrolls, and says how many lines it has. */
function ExactBlock({ label, text }) {
  const lines = text.split("\n").length;
  return html`<figure class="exact-block">
    <pre tabindex="0" aria-label=${label}><code><${ExactText} text=${text} /></code></pre>
    ${lines > 12 && html`<figcaption>${lines} lines</figcaption>`}
  </figure>`;
}
