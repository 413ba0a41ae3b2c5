/**
 * What a tool call asks for, from its input: the command, the path, a plan, and all other fields. Pure.
 *
 * The names of the fields are those of claude, codex, gemini and the script driver; everything of an unknown tool is in `fields`.
 * File changes are those of js/conversation/diff.js.
 */

const COMMAND_FIELDS = ["command", "cmd"];
const PATH_FIELDS = ["file_path", "path", "notebook_path", "dir_path", "absolute_path"];
/**
 * @param input the call's input
 * @param {{path: string}[]} changes the changes of files that a diff shows
 * @param {string[]} inChanges the fields of the input that the diff shows
 * @returns {{command: string, path: string, plan: string, comments: string[], fields: [string, any][]}} `comments` are the agent's
 *   explanations of a command; `fields` are the members of the input that neither the others nor the diff show
 */
export function inputParts(input, changes = [], inChanges = []) {
  if (!isObject(input))
    return { command: "", path: "", plan: "", comments: [], fields: isEmpty(input) ? [] : [["input", input]] };
  const shown = new Set(inChanges);
  const take = (names) => {
    const found = names.find((key) => typeof input[key] === "string" && input[key] !== "");
    if (found) shown.add(found);
    return found ? input[found] : "";
  };
  const isList = Array.isArray(input.command) && input.command.every((word) => typeof word === "string");
  if (isList) shown.add("command");
  const command = isList ? input.command.map(quoted).join(" ") : take(COMMAND_FIELDS);
  const paths = PATH_FIELDS.filter((key) => !changes.length || changes.some((one) => one.path === input[key]));
  const [path, plan] = [take(paths), take(["plan"])];
  const comments = command ? [take(["description"]), take(["reason", "justification"])].filter(Boolean) : [];
  return {
    command,
    path,
    plan,
    comments,
    fields: Object.entries(input).filter(([key, value]) => !shown.has(key) && !isEmpty(value)),
  };
}

/** A field's value as text: a string as it is, else JSON. */
export const fieldText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
const isEmpty = (value) => value === null || value === undefined;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
