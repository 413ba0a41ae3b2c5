/** One pending call: what it asks for, exactly, and the answers that it can be given. */
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../preact.js";
import { useObservable } from "../observable.js";
import { DiffView } from "../conversation/diff.js";
import { changesOnDisk, fieldsInChanges } from "../conversation/file-changes.js";
import { Markdown } from "../conversation/markdown.js";
import { titleOfCall } from "../conversation/tool-title.js";
import { pendingOf } from "../sessions.js";
import { Button, Icon, Menu, Spinner } from "../ui/index.js";
import { allows, answerTo, choiceOf, choicesOf, otherChoices, refusalOf, wordsOf } from "./answers.js";
import { fieldText, inputParts } from "./call-input.js";
import { ExactText, exactString } from "./exact-text.js";
import { changesFiles, filesOf, filesOnDisk, loadFiles, seenKey } from "./files-on-disk.js";
import { useApprovalKeys } from "./keys.js";
import { answerCall, stopOf, stops } from "./pending-stops.js";
import { QuestionForm } from "./question-form.js";
import { ResultForm } from "./result-form.js";
import { useSeen } from "./seen.js";
import { useSettled, useSteady } from "./steadiness.js";

const WANTS = { permission: "asks for permission", answer: "asks you", result: "waits for its result" };
const REFUSALS = { permission: "Reject", answer: "Skip the question", result: "Refuse" };

/** @param {{session: object, call: object, level?: number}} props a session's info, one of its `pendingCalls`, and the heading's level */
export function ApprovalCard({ session, call, level = 2 }) {
  const stop = stopOf(session, useObservable(stops));
  const answer = answerTo(stop.answers, call);
  const [ready, steady] = [useSettled(call.toolCallId), useSteady()];
  const [element, input] = [useRef(null), useRef(null)];
  const [reason, setReason] = useState(null);
  const asks = call.wants === "permission";
  const files = useFiles(session, call);
  const [isSeen, showRest] = useSeen(input, asks ? seenKey(session, call) : null);
  // What has just come into view was not read yet.
  const viewIsSettled = useSettled(isSeen);
  const open = !answer && !stop.sending;
  const give = (given) => open && ready && answerCall(session, call, given);
  const canAllow = open && ready && steady && isSeen && viewIsSettled;
  const choose = (choice) => choice && (canAllow || !allows(choice)) && give({ kind: "choice", choice });
  const allow = asks ? choiceOf(call, "allow_once") : undefined;
  useApprovalKeys(element, open, {
    y: () => reason === null && allow && (isSeen ? choose(allow) : showRest()),
    a: () => reason === null && element.current.querySelector(".approval-others")?.click(),
    n: () => open && setReason((known) => known ?? ""),
    isSeen: () => !allow || isSeen,
  });
  const title = titleOfCall(call.name, call.input, call.title, session["x-portico"].cwd ?? "");
  const id = `approval-${session.sessionId}-${call.toolCallId}`;
  return html`<article
    class=${`approval approval-${call.wants}${answer ? " is-answered" : ""}`}
    ref=${element}
    tabindex="-1"
    aria-labelledby=${id}
    data-call=${call.toolCallId}
    data-ready=${String(ready && steady && files !== undefined && viewIsSettled)}
    data-seen=${asks ? String(isSeen) : undefined}
  >
    <header class="approval-header">
      <${Icon} name=${title.icon ?? "tool"} />
      <${`h${level}`} id=${id}>
        <span class="approval-tool">${title.server && html`<span class="dim"><${ExactText} text=${title.server} /> / </span>`}<${ExactText} text=${title.name} /></span>
        <span class="approval-wants">${WANTS[call.wants]}${call.optional ? " (an answer is optional)" : ""}</span>
      <//>
    </header>
    ${
      call.wants === "answer"
        ? html`<${QuestionForm} call=${call} disabled=${!open} onAnswer=${give} />`
        : html`<${CallInput} call=${call} files=${files} exactRef=${input} onRetry=${() => loadFiles(session, call)} />`
    }
    ${call.wants === "result" && html`<${ResultForm} session=${session} call=${call} disabled=${!open} onAnswer=${give} />`}
    ${
      answer
        ? html`<${Given} session=${session} call=${call} answer=${answer} sending=${stop.sending} />`
        : reason !== null
          ? html`<${ReasonForm}
              label=${REFUSALS[call.wants]}
              value=${reason}
              disabled=${!open}
              onInput=${setReason}
              onCancel=${() => setReason(null)}
              onSend=${() => give(refusalOf(call, reason))}
            />`
          : html`<footer class="approval-actions" role="group" aria-label="Answers">
              ${
                asks &&
                open &&
                !isSeen &&
                files !== undefined &&
                html`<p class="approval-unseen">
                  <span role="status">It can be allowed once you have seen all of it.</span>
                  <${Button} small kind="plain" icon="arrow-down" onClick=${showRest}>Show the rest<//>
                </p>`
              }
              ${
                allow &&
                html`<${Button}
                  kind="primary"
                  data-kind=${allow.kind}
                  data-choice=${allow.id}
                  disabled=${!open || !isSeen}
                  aria-keyshortcuts="y"
                  onClick=${() => choose(allow)}
                >
                  <${ExactText} text=${allow.name} /><kbd>y</kbd>
                <//>`
              }
              ${asks && html`<${Others} call=${call} open=${open} isSeen=${isSeen} onChoose=${choose} />`}
              <${Button} kind="danger" disabled=${!open} aria-keyshortcuts="n" onClick=${() => setReason("")}>
                ${REFUSALS[call.wants]}<kbd>n</kbd>
              <//>
            </footer>`
    }
  </article>`;
}

/** The files on the disk that a call would change, which are read with its card; undefined until then, null for a call that changes none. */
function useFiles(session, call) {
  const known = filesOf(session, call, useObservable(filesOnDisk));
  const wanted = changesFiles(call);
  useEffect(() => {
    if (wanted && !known) loadFiles(session, call);
  }, [wanted, !known]);
  return wanted ? known : null;
}

/** A menu of the answers that hold for more than this call, and of all others but the first to allow and to reject it. */
function Others({ call, open, isSeen, onChoose }) {
  const choices = otherChoices(call);
  if (!choices.length) return null;
  const item = (choice) => ({
    label: exactString(choice.name),
    disabled: !open || (allows(choice) && !isSeen),
    danger: !allows(choice),
    run: () => onChoose(choice),
  });
  const [allowing, rejecting] = [choices.filter(allows), choices.filter((choice) => !allows(choice))];
  const name = choices.every((choice) => choice.kind.endsWith("_always")) ? "Always" : "Others";
  return html`<${Menu}
    class="approval-others"
    label=${name === "Always" ? "Answers for later calls too" : "Other answers"}
    items=${[...allowing.map(item), allowing.length && rejecting.length && "separator", ...rejecting.map(item)]}
    align="start"
    disabled=${!open}
  >
    ${name}<${Icon} name="chevron-down" size=${14} /><kbd>a</kbd>
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

function ReasonForm({ label, value, disabled, onInput, onCancel, onSend }) {
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
      <span>Reason, which the agent reads (optional)</span>
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
    <${Button} type="submit" kind="danger" disabled=${disabled}>${label}<kbd>Enter</kbd><//>
    <${Button} kind="plain" onClick=${onCancel}>Cancel<//>
  </form>`;
}

/**
 * The input of a call: its command, its changes as a diff against the disk, a plan, all other fields, and the whole input as JSON.
 * `exactRef` gets the element with all of it but the JSON.
 */
function CallInput({ call, files, exactRef, onRetry }) {
  const changes = useMemo(() => (files ? changesOnDisk(call.name, call.input, files.files) : []), [call.name, call.input, files]);
  if (files === undefined) return html`<div class="approval-input" ref=${exactRef}><${Spinner} label="Reading the files" /></div>`;
  const inChanges = fieldsInChanges(call.name, call.input, changes);
  const { command, path, plan, comments, fields } = inputParts(call.input, changes, inChanges);
  return html`<div class="approval-input">
    <div class="approval-exact" ref=${exactRef}>
      ${command && html`<${ExactBlock} label="Command" text=${command} />`}
      ${comments.map((comment) => html`<p class="approval-comment"><${ExactText} text=${comment} dir="auto" /></p>`)}
      ${path && !changes.length && html`<p class="approval-path"><${ExactText} text=${path} /></p>`}
      ${
        files?.error &&
        html`<p class="approval-disk" role="status">
          <span>The files on the disk could not be read: <${ExactText} text=${files.error} dir="auto" /></span>
          <${Button} small onClick=${onRetry}>Try again<//>
        </p>`
      }
      ${changes.length > 0 && html`<${DiffView} changes=${changes} exact=${true} />`}
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
      ${isEmptyInput(call.input) && html`<p class="approval-comment">It has no input.</p>`}
    </div>
    <details class="approval-json">
      <summary>Full input</summary>
      <${ExactBlock} label="Input as JSON" text=${JSON.stringify(call.input ?? null, null, 2)} />
    </details>
  </div>`;
}

const isEmpty = (value) => value === null || value === undefined;
const isEmptyInput = (input) => isEmpty(input) || (typeof input === "object" && Object.values(input).every(isEmpty));

/** A text in whole. One of many lines says how many. */
function ExactBlock({ label, text }) {
  const lines = text.split("\n").length;
  return html`<figure class="exact-block" aria-label=${label}>
    <pre><code><${ExactText} text=${text} /></code></pre>
    ${lines > 12 && html`<figcaption>${lines} lines</figcaption>`}
  </figure>`;
}
