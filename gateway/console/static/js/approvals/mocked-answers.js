/**
 * Results with which this browser answers application-side calls: for developers of applications, whose tools do not exist yet.
 *
 * By session id and tool: {content: text, automatic: bool}. An automatic one is sent without a question, once every call of a
 * stop has an answer of its own.
 */
import { stored, useObservable } from "../observable.js";
import { pendingOf, sessions } from "../sessions.js";
import { answerTo, unanswered } from "./answers.js";
import { answerCalls, stopOf } from "./pending-stops.js";

const MOST_SESSIONS = 100;

const mocks = stored("portico.mockedAnswers", {}, { ofPerson: true });

export const useMocks = () => useObservable(mocks);

export const mocksOf = (sessionId) => mocks.value[sessionId] ?? {};

/** Replace a session's mocked answers, by the names of their tools. */
export function setMocks(sessionId, answers) {
  const { [sessionId]: _, ...others } = mocks.value;
  const kept = Object.entries(others).slice(1 - MOST_SESSIONS);
  mocks.value = Object.fromEntries(Object.keys(answers).length ? [...kept, [sessionId, answers]] : kept);
}

export const setMock = (sessionId, tool, answer) => setMocks(sessionId, { ...mocksOf(sessionId), [tool]: answer });

/** The answers to a session's pending calls with those that are mocked and automatic. */
function withMockedAnswers(session, answers) {
  const all = { ...answers };
  const known = mocksOf(session.sessionId);
  for (const call of pendingOf(session)) {
    const mock = known[call.name];
    if (call.wants === "result" && mock?.automatic && !answerTo(answers, call))
      all[call.toolCallId] = { kind: "result", content: mock.content };
  }
  return all;
}

/** Give the automatic answers, until the returned function is called. Two windows that do so send one request, by its idempotency key. */
export function startMockedAnswers() {
  const answerAll = () => {
    for (const session of sessions.value.values()) {
      const stop = stopOf(session);
      if (!pendingOf(session).length || stop.sending || stop.error) continue;
      const answers = withMockedAnswers(session, stop.answers);
      if (Object.keys(answers).length === Object.keys(stop.answers).length) continue;
      const complete = !unanswered(pendingOf(session), answers).length;
      const key = complete && !Object.keys(stop.answers).length ? `mocked ${session.sessionId} ${stop.stop}` : undefined;
      answerCalls(session, answers, key);
    }
  };
  answerAll();
  const ends = [sessions.subscribe(answerAll), mocks.subscribe(answerAll)];
  return () => ends.forEach((end) => end());
}
