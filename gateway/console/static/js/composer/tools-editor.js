/** The editor for application-side tools with mocked answers, for those who develop applications and protocols. */
import { html, useState } from "../preact.js";
import { Button } from "../ui/index.js";
import { EXAMPLE, parseTools } from "./application-tools.js";

/** @param {{text: string, supported: boolean, onApply: (found: {tools: object[], mocks: object}) => void}} props */
export function ToolsEditor({ text: given, supported, onApply }) {
  const [text, setText] = useState(given);
  const [problem, setProblem] = useState("");
  const [applied, setApplied] = useState(false);
  const apply = () => {
    try {
      onApply(parseTools(text));
      setProblem("");
      setApplied(true);
    } catch (error) {
      setProblem(error.message);
      setApplied(false);
    }
  };
  return html`<div class="tools-editor">
    <p class="dim">
      Tools that your application would answer: the agent calls them, and waits for the result. Each is an object with a
      <code>name</code>, a <code>description</code> and its <code>parameters</code> as a JSON schema, as in a turn of AAP. The
      <code>answer</code> is a mocked result, which the card of a call offers; with <code>"automatic": true</code> this browser
      sends it at once.
    </p>
    ${!supported && html`<p class="notice warn">This agent does not support application-side tools.</p>`}
    <label>
      <span class="visually-hidden">Tools as JSON</span>
      <textarea
        class="input code"
        rows="14"
        spellcheck=${false}
        autocapitalize="off"
        placeholder=${EXAMPLE}
        value=${text}
        aria-invalid=${String(Boolean(problem))}
        onInput=${(event) => (setText(event.target.value), setApplied(false))}
      ></textarea>
    </label>
    ${problem && html`<p class="form-error" role="alert">${problem}</p>`}
    <div class="tools-editor-actions">
      <${Button} kind="primary" onClick=${apply}>Use these tools<//>
      ${!text.trim() && html`<${Button} kind="plain" onClick=${() => setText(EXAMPLE)}>Insert an example<//>`}
      ${applied && html`<span role="status" class="ok">Used from the next message on</span>`}
    </div>
  </div>`;
}
