/** What a text's caret stands in: a `/` command at its beginning, or an `@` file. Pure. */

/**
 * @returns {{kind: "command"|"file", query: string, from: number, to: number}|null} what is being written before the caret;
 *   `from` and `to` are what a choice replaces
 */
export function triggerAt(text, caret) {
  const before = text.slice(0, caret);
  const command = /^\s*\/([^\s/]*)$/.exec(before);
  if (command)
    return {
      kind: "command",
      query: command[1],
      from: before.lastIndexOf("/"),
      to: caret + /^\S*/.exec(text.slice(caret))[0].length,
    };
  const file = /(?:^|\s)@("?)([^\s"]*|(?<=@")[^"\n]*)$/.exec(before);
  if (!file) return null;
  const from = before.length - file[2].length - file[1].length - 1;
  return { kind: "file", query: file[2], from, to: caret };
}

/** A text with a choice in place of what was being written, and the caret behind it. */
export function complete(text, trigger, inserted) {
  const rest = text.slice(trigger.to);
  const space = /^\s/.test(rest) ? "" : " ";
  const value = text.slice(0, trigger.from) + inserted + space + rest;
  return { value, caret: trigger.from + inserted.length + 1 };
}

/** How a file is named in a message. A path with spaces is quoted. */
export const fileMention = (path) => (/[\s"]/.test(path) ? `@"${path.replaceAll('"', "")}"` : `@${path}`);

/** Commands that match: by the beginning of their names first, then by any part of name or description. */
export function matchingCommands(commands, query) {
  const wanted = query.toLowerCase();
  const rank = ({ name, description }) => {
    const at = name.toLowerCase().indexOf(wanted);
    return at === 0 ? 0 : at > 0 ? 1 : (description ?? "").toLowerCase().includes(wanted) ? 2 : 3;
  };
  return commands
    .map((command) => [rank(command), command])
    .filter(([found]) => found < 3)
    .sort(([one], [other]) => one - other)
    .map(([, command]) => command);
}
