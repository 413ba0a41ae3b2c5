/** The result of an application-side call, which the user gives in place of the application. */
import { html, useState } from "../preact.js";
import { Button } from "../ui/index.js";
import { mocksOf, setMock, useMocks } from "./mocked-answers.js";

export function ResultForm({ session, call, disabled, onAnswer }) {
  useMocks();
  const mock = mocksOf(session.sessionId)[call.name];
  const [text, setText] = useState(mock?.content ?? "");
  const [keep, setKeep] = useState(false);
  const onSubmit = (event) => {
    event.preventDefault();
    if (keep) setMock(session.sessionId, call.name, { content: text, automatic: true });
    onAnswer({ kind: "result", content: text });
  };
  return html`<form class="result-form" onSubmit=${onSubmit}>
    <label>
      <span>Result, as text or JSON</span>
      <textarea
        rows="3"
        dir="auto"
        spellcheck=${false}
        value=${text}
        onInput=${(event) => setText(event.target.value)}
      ></textarea>
    </label>
    <label class="check">
      <input type="checkbox" checked=${keep} onChange=${(event) => setKeep(event.target.checked)} />
      <span>Answer later calls of this tool in this session with it</span>
    </label>
    <${Button} type="submit" kind="primary" disabled=${disabled}>Send result<//>
  </form>`;
}
