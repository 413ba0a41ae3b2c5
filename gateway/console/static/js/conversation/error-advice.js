/** What a person can do about the error of an agent. */

const ADVICE = [
  [/(api[ _-]?key|unauthori[sz]ed|authenticat|log ?in|logged in|\b401\b|\b403\b|credential|oauth)/i, "Check the agent's login or key: the Agents page has the command.", "agents"],
  [/(usage limit|rate.?limit|too many requests|\b429\b|quota|overloaded|\b529\b|credit)/i, "Wait a moment, then retry. Another model may have free capacity.", null],
  [/(context (window|length)|too (many tokens|long)|maximum context|prompt is too long)/i, "The conversation is too long for the model. Compact it (/compact, where the agent has it), or begin a new session.", null],
  [/(not found|no such file|ENOENT|not installed|cannot be started|could not start|does not start)/i, "See the Agents page: it says what is missing and how to install it.", "agents"],
  [/(network|connect|ECONN|ENOTFOUND|timed? ?out|timeout|dns|unreachable|\b50[0-4]\b)/i, "The model's server could not be reached or answered with an error. Check the connection, then retry.", null],
  [/(gateway was stopped|signal|killed|SIG[A-Z]+|exit code|crash|ended unexpectedly|out of memory)/i, "Retry: the agent is started anew and has the conversation so far.", null],
];

/** `{text, page}`: the advice, and the page of the console that helps, if one does. */
export function adviceOf(message) {
  const found = ADVICE.find(([pattern]) => pattern.test(String(message ?? "")));
  return found ? { text: found[1], page: found[2] } : { text: "Retry, or see the session's events for what happened before.", page: null };
}
