/** What waits for the user at the end of a conversation: a card for each call of the stop, and answers to all of them together. */
import { html, useEffect } from "../preact.js";
import { useObservable } from "../observable.js";
import { pendingOf } from "../sessions.js";
import { Button, Icon } from "../ui/index.js";
import { ApprovalCard } from "./approval-card.js";
import { allowAll, canBeAllowed, refuseAll, unanswered } from "./answers.js";
import { seenKey } from "./files-on-disk.js";
import { answerCalls, dismissError, sendAgain, stopOf, stops } from "./pending-stops.js";
import { useSeenSet, wasSeen } from "./seen.js";
import { cardsMoved, useSettled, useSteady } from "./steadiness.js";

/** @param {{session: object, level?: number}} props a session's info, and the level of the cards' headings; nothing is rendered where nothing waits and no answer was refused */
export function Approvals({ session, level }) {
  const stop = stopOf(session, useObservable(stops));
  const calls = pendingOf(session);
  const [settled, steady] = [useSettled(stop.stop), useSteady()];
  const seen = useSeenSet();
  const open = unanswered(calls, stop.answers);
  const permissions = open.filter(canBeAllowed);
  const allSeen = permissions.every((call) => wasSeen(seenKey(session, call), seen));
  const first = calls.length ? session["x-portico"].waitingSince : "";
  if (!calls.length && !stop.error) return null;
  return html`<section class="approvals" role="group" aria-label="Waiting for you">
    ${stop.error && html`<${Refusal} session=${session} stop=${stop} />`}
    ${calls.map((call) => html`<${ApprovalCard} key=${`${first} ${call.toolCallId}`} session=${session} call=${call} level=${level} />`)}
    ${
      calls.length > 1 &&
      html`<div class="approvals-all" role="group" aria-label="All calls">
        <p role="status">
          ${calls.length} calls wait together.${" "}
          ${open.length < calls.length ? `${calls.length - open.length} answered.` : "They are sent when each has an answer."}
        </p>
        ${
          permissions.length > 1 &&
          html`<${Button}
              kind="primary"
              disabled=${stop.sending || !allSeen}
              title=${allSeen ? undefined : "Possible once you have seen all of them"}
              onClick=${() => settled && steady && answerCalls(session, allowAll(calls, stop.answers))}
            >
              Allow ${permissions.length === calls.length ? "all" : "the other"} ${permissions.length}
            <//>
            <${Button}
              kind="danger"
              disabled=${stop.sending}
              onClick=${() => settled && answerCalls(session, refuseAll(calls, stop.answers))}
            >
              Reject ${open.length === calls.length ? "all" : "the others"}
            <//>`
        }
      </div>`
    }
  </section>`;
}

/** Why answers were refused, in the server's words. It stays until it is read, also when nothing waits any more. */
function Refusal({ session, stop }) {
  const kept = Object.keys(stop.answers).length > 0;
  // The cards below have other places.
  useEffect(cardsMoved, []);
  return html`<div class="notice error" role="alert">
    <${Icon} name="error" />
    <span dir="auto">The answer was not taken: ${stop.error}</span>
    ${kept && html`<${Button} small onClick=${() => sendAgain(session)}>Send again<//>`}
    <${Button} small kind="plain" onClick=${() => dismissError(session.sessionId)}>Dismiss<//>
  </div>`;
}
