/** Plans and to-do lists: of plan events, and of the tools that keep such a list. */

import { html } from "../preact.js";
import { Icon } from "../ui/icon.js";
import { SafeText } from "./safe-text.js";

const ICONS = { completed: "check", in_progress: "play", pending: "dot", cancelled: "close" };
const WORDS = { completed: "done", in_progress: "in progress", pending: "to do", cancelled: "cancelled" };

function statusOf(given) {
  const status = String(given ?? "pending").toLowerCase().replace(/[\s-]/g, "_");
  if (status === "done" || status === "complete") return "completed";
  if (status === "active" || status === "inprogress" || status === "running") return "in_progress";
  return status in WORDS ? status : "pending";
}

/** The steps of a list in any of the shapes that agents use; null if it is none. */
export function stepsOf(list) {
  if (!Array.isArray(list) || !list.length) return null;
  const steps = list.map((one) => {
    if (typeof one === "string") return { content: one, status: "pending" };
    if (!one || typeof one !== "object") return null;
    const content = one.content ?? one.step ?? one.text ?? one.description ?? one.subject ?? one.title;
    if (typeof content !== "string") return null;
    return { content, status: typeof one.completed === "boolean" ? (one.completed ? "completed" : "pending") : statusOf(one.status), priority: one.priority };
  });
  return steps.every(Boolean) ? steps : null;
}

/** The steps that a call sets: of TodoWrite, update_plan, write_todos, TaskCreate and TaskUpdate; null for other calls. */
export function stepsOfCall(name, input) {
  if (!input || typeof input !== "object") return null;
  if (/^(todowrite|todo_write|write_todos|update_plan|todo)$/i.test(name)) return stepsOf(input.todos ?? input.plan ?? input.items ?? input.tasks);
  if (/^taskcreate$/i.test(name)) return stepsOf([{ content: input.subject ?? input.description, status: "pending" }]);
  if (/^taskupdate$/i.test(name) && (input.subject || input.taskId)) return stepsOf([{ content: input.subject ?? `Task ${input.taskId}`, status: input.status }]);
  return null;
}

const CREATED = /^Task #(\w+) created/;

/**
 * The change of one task by a call of claude's TaskCreate or TaskUpdate; null for other calls.
 * @param {string} output the text of its result, which names a task that was created
 * @returns {{id: string|null, content?: string, status?: string}|null} an `id` of null is the next number
 */
export function taskOfCall(name, input, output) {
  if (!input || typeof input !== "object") return null;
  const content = [input.subject, input.description].find((text) => typeof text === "string" && text);
  if (/^taskcreate$/i.test(name)) return content ? { id: CREATED.exec(output)?.[1] ?? null, content, status: "pending" } : null;
  if (!/^taskupdate$/i.test(name) || !["string", "number"].includes(typeof input.taskId)) return null;
  const status = input.status === "deleted" ? "deleted" : input.status && statusOf(input.status);
  return { id: String(input.taskId), ...(typeof input.subject === "string" && { content: input.subject }), ...(status && { status }) };
}

export function Steps({ steps }) {
  return html`<ol class="talk-steps">
    ${steps.map(
      (step, at) => html`<li key=${at} class=${step.status}>
        <${Icon} name=${ICONS[step.status]} size=${14} /><span><${SafeText} text=${step.content} /><span class="visually-hidden"> (${WORDS[step.status]})</span>${step.priority === "high" ? html` <span class="step-priority">high</span>` : null}</span>
      </li>`,
    )}
  </ol>`;
}
