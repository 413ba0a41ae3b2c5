/** What the composer reads of a session's log: the commands of its agent, and the messages that its users have sent. */
import { AAP, api, query } from "../api.js";

const textOf = (content) =>
  typeof content === "string"
    ? content
    : (content ?? [])
        .filter((block) => block.type === "text")
        .map((block) => block.text)
        .join("");

/** @returns {Promise<{commands: {name: string, description: string, hint?: string}[], sent: string[]}>} of the newest events */
export async function readLog(sessionId) {
  const page = await api.get(`${AAP}/sessions/${encodeURIComponent(sessionId)}/log${query({ limit: 500, merge: true })}`);
  const sent = [];
  let commands = [];
  for (const { event } of page.events) {
    if (event.kind === "commands") commands = event.commands;
    const messages = event.kind === "turn_start" ? (event.messages ?? []) : event.kind === "steered" ? [event.message] : [];
    for (const message of messages)
      if (message.role === "user" && textOf(message.content).trim()) sent.push(textOf(message.content));
  }
  return { commands, sent };
}
