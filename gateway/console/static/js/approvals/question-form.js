/** The agent's questions to the user as a form: choices, an answer of the user's own, or both. */
import { html, useState } from "../preact.js";
import { Button } from "../ui/index.js";
import { answersOf, questionsOf } from "./answers.js";
import { ExactText } from "./exact-text.js";

export function QuestionForm({ call, disabled, onAnswer }) {
  const questions = questionsOf(call.input);
  const [given, setGiven] = useState({});
  const [missing, setMissing] = useState(false);
  const answers = answersOf(questions, given);
  const change = (index, part) => setGiven((known) => ({ ...known, [index]: { chosen: [], own: "", ...known[index], ...part } }));
  const onSubmit = (event) => {
    event.preventDefault();
    setMissing(!answers);
    if (answers) onAnswer({ kind: "answers", answers });
  };
  if (!questions.length) return html`<${OpenQuestion} call=${call} disabled=${disabled} onAnswer=${onAnswer} />`;
  return html`<form class="questions" onSubmit=${onSubmit}>
    ${questions.map(
      (question, index) =>
        html`<${Question}
          question=${question}
          name=${`${call.toolCallId}-${index}`}
          given=${given[index] ?? {}}
          onChange=${(part) => change(index, part)}
        />`,
    )}
    ${missing && !answers && html`<p class="form-error" role="alert">Answer each question, or skip them all.</p>`}
    <${Button} type="submit" kind="primary" disabled=${disabled}>Send ${questions.length > 1 ? "answers" : "answer"}<//>
  </form>`;
}

function Question({ question, name, given, onChange }) {
  const chosen = given.chosen ?? [];
  const toggle = (label, on) => {
    if (question.multiple) return onChange({ chosen: on ? [...chosen, label] : chosen.filter((one) => one !== label) });
    onChange({ chosen: [label], own: "" });
  };
  const own = html`<label class="question-own">
    <span>${question.options.length ? "Other" : "Answer"}</span>
    <input
      type="text"
      dir="auto"
      autocomplete="off"
      value=${given.own ?? ""}
      onInput=${(event) => onChange(question.multiple || !event.target.value ? { own: event.target.value } : { own: event.target.value, chosen: [] })}
    />
  </label>`;
  return html`<fieldset class="question">
    <legend>
      ${question.header && html`<span class="question-header"><${ExactText} text=${question.header} /></span>`}
      <${ExactText} text=${question.text} dir="auto" />
      ${question.multiple && html`<span class="question-hint">Choose any number</span>`}
    </legend>
    ${question.options.map(
      (option) =>
        html`<label class="question-option">
          <input
            type=${question.multiple ? "checkbox" : "radio"}
            name=${name}
            checked=${chosen.includes(option.label)}
            onChange=${(event) => toggle(option.label, event.target.checked)}
          />
          <span
            ><span class="question-label"><${ExactText} text=${option.label} dir="auto" /></span>${
              option.description && html`<span class="question-description"><${ExactText} text=${option.description} dir="auto" /></span>`
            }</span
          >
        </label>`,
    )}
    ${own}
  </fieldset>`;
}

/** A question whose input is not known: its input, and one answer as text. */
function OpenQuestion({ call, disabled, onAnswer }) {
  const [text, setText] = useState("");
  const onSubmit = (event) => {
    event.preventDefault();
    if (text.trim()) onAnswer({ kind: "result", content: text });
  };
  return html`<form class="questions" onSubmit=${onSubmit}>
    <pre class="approval-json"><${ExactText} text=${JSON.stringify(call.input ?? null, null, 2)} /></pre>
    <label class="question-own"
      ><span>Answer</span><input type="text" dir="auto" value=${text} onInput=${(event) => setText(event.target.value)}
    /></label>
    <${Button} type="submit" kind="primary" disabled=${disabled || !text.trim()}>Send answer<//>
  </form>`;
}
