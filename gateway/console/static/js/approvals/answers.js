/**
 * The answers to the calls of one stop, as the messages of a turn. Pure.
 *
 * A call is an entry of `x-portico.pendingCalls` of a session. An answer is one of
 *   {kind: "choice", choice: {id, name, kind}, reason?}   a permission, granted or not
 *   {kind: "result", content}                             the result of an application-side call
 *   {kind: "answers", answers: {QUESTION: text | [text]}} the user's answers to the agent's questions
 *   {kind: "refusal", reason?}                            a refused call, a declined question
 */

/** The choices of a call for which the server names none. */
const DEFAULT_CHOICES = [
  { id: "allow_once", name: "Allow", kind: "allow_once" },
  { id: "reject_once", name: "Reject", kind: "reject_once" },
];

export const allows = (choice) => choice.kind.startsWith("allow");

export const choicesOf = (call) => (call.choices?.length ? call.choices : DEFAULT_CHOICES);

/** The first choice of a kind, such as `allow_once`; undefined if the call has none. */
export const choiceOf = (call, kind) => choicesOf(call).find((choice) => choice.kind === kind);

/** All choices but the first that allows once and the first that rejects once: those have buttons. */
export const otherChoices = (call) =>
  choicesOf(call).filter((choice) => choice !== choiceOf(call, "allow_once") && choice !== rejectionOf(call));

/** The choice by which a call is rejected. */
const rejectionOf = (call) => choiceOf(call, "reject_once") ?? choiceOf(call, "reject_always");

/** The message that answers a call. `since` is when the calls began to wait: the server refuses it for later ones of the same ids. */
function messageOf(call, answer, since) {
  const id = call.toolCallId;
  switch (answer.kind) {
    case "result":
      return { role: "tool", toolCallId: id, content: answer.content };
    case "answers":
      return { role: "tool", toolCallId: id, content: JSON.stringify({ answers: answer.answers }) };
    case "refusal":
      return { role: "tool_permission", toolCallId: id, granted: false, ...(answer.reason ? { reason: answer.reason } : {}), "x-portico": { waitingSince: since } };
    default:
      return {
        role: "tool_permission",
        toolCallId: id,
        granted: allows(answer.choice),
        ...(answer.reason ? { reason: answer.reason } : {}),
        "x-portico": { ...(call.choices?.length ? { choice: answer.choice.id } : {}), waitingSince: since },
      };
  }
}

/** The answer to a call, undefined without one. Agents choose the ids of calls, which may be "constructor" too. */
export const answerTo = (answers, call) => (Object.hasOwn(answers, call.toolCallId) ? answers[call.toolCallId] : undefined);

/** The calls that the server needs an answer to and that have none in `answers` (by call id). */
export const unanswered = (calls, answers) => calls.filter((call) => !call.optional && !answerTo(answers, call));

/** The messages of the turn that answers all calls. */
export const messagesOf = (calls, answers, since) =>
  calls.filter((call) => answerTo(answers, call)).map((call) => messageOf(call, answerTo(answers, call), since));

/** Whether a call can be allowed this once, and no longer. */
export const canBeAllowed = (call) => call.wants === "permission" && choiceOf(call, "allow_once") !== undefined;

/** Answers that allow each call once that can be allowed so and has no answer yet. Others stay open. */
export function allowAll(calls, answers) {
  const all = { ...answers };
  for (const call of calls) {
    if (canBeAllowed(call) && !answerTo(answers, call)) all[call.toolCallId] = { kind: "choice", choice: choiceOf(call, "allow_once") };
  }
  return all;
}

/** Answers that refuse each call without an answer. */
export function refuseAll(calls, answers, reason = "") {
  const all = { ...answers };
  for (const call of calls) if (!answerTo(answers, call)) all[call.toolCallId] = refusalOf(call, reason);
  return all;
}

/** The answer that refuses a call: by its choice to reject once, where it has one. */
export function refusalOf(call, reason = "") {
  const choice = call.wants === "permission" ? rejectionOf(call) : undefined;
  return { ...(choice ? { kind: "choice", choice } : { kind: "refusal" }), ...(reason.trim() ? { reason: reason.trim() } : {}) };
}

/** What an answer says, in a few words, for a card whose answer waits for those to other calls. */
export function wordsOf(answer) {
  const reason = answer.reason ? `: ${answer.reason}` : "";
  switch (answer.kind) {
    case "result":
      return "Result given";
    case "answers":
      return "Answered";
    case "refusal":
      return `Declined${reason}`;
    default:
      return (
        (answer.choice.kind.endsWith("_once") ? (allows(answer.choice) ? "Allowed" : "Rejected") : answer.choice.name) + reason
      );
  }
}

/** The questions in a call's input, each {text, header, options: [{label, description}], multiple}. */
export function questionsOf(input) {
  const listed = Array.isArray(input?.questions) ? input.questions : [];
  return listed.filter(isObject).map((question) => ({
    text: String(question.question ?? ""),
    header: question.header ? String(question.header) : "",
    options: (Array.isArray(question.options) ? question.options : [])
      .filter((option) => isObject(option) && option.label)
      .map((option) => ({ label: String(option.label), description: option.description ? String(option.description) : "" })),
    multiple: question.multiSelect === true,
  }));
}

/**
 * The answers by the texts of their questions, from what the form has: for each question {chosen: [label], own: text}.
 * An answer of the user's own is beside several choices and instead of a single one. Null while a question has no answer.
 */
export function answersOf(questions, given) {
  const answers = [];
  for (const [index, question] of questions.entries()) {
    const { chosen = [], own = "" } = given[index] ?? {};
    const text = own.trim();
    const picked = question.multiple ? [...chosen, ...(text ? [text] : [])] : text ? [text] : chosen.slice(0, 1);
    if (!picked.length) return null;
    answers.push([question.text, question.multiple ? picked : picked[0]]);
  }
  return Object.fromEntries(answers);
}

const isObject = (value) => typeof value === "object" && value !== null;
