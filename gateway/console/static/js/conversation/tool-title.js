/** What a tool call is about, in one line: its tool, and its command, path, pattern or address. */

const KINDS = [
  ["command", /^(bash|shell|sh|execute|exec|exec_command|run_shell_command|run_command|terminal|local_shell|powershell|killshell|bashoutput)$/i],
  ["edit", /^(edit|multiedit|write|notebookedit|apply_patch|write_file|replace|write_note|str_replace.*|create_file|delete|move|write_text_file|search_replace)$/i],
  ["read", /^(read|read_file|read_many_files|view_image|view|cat|read_text_file|notebookread)$/i],
  ["search", /^(grep|glob|search|ls|find|list_directory|search_file_content|grep_search|lookup|toolsearch|list_dir)$/i],
  ["web", /^(webfetch|websearch|web_search|web_fetch|fetch|google_web_search)$/i],
  ["todo", /^(todowrite|todo_write|write_todos|update_plan|task(create|update|list|get)|todo)$/i],
  ["agent", /^(agent|task|spawn_agent|delegate.*|sub-?agent)$/i],
  ["question", /^(askuserquestion|request_user_input|ask_user.*)$/i],
  ["plan", /^(exitplanmode|enterplanmode|exit_plan_mode|implement_plan|switch_mode)$/i],
];

const ICONS = { command: "terminal", edit: "edit", read: "file", search: "search", web: "globe", todo: "todo", agent: "agents", question: "question",
  plan: "list", mcp: "tool", tool: "tool" };

const SUBJECTS = [
  "command", "cmd", "script", "pattern", "file_path", "path", "notebook_path", "absolute_path", "url", "query", "skill", "subject",
  "location", "title", "description", "name",
];

/** `command`, `edit`, `read`, `search`, `web`, `todo`, `agent`, `question`, `plan`, `mcp` or `tool`. */
export function kindOfTool(name, input) {
  const given = String(name ?? "");
  const found = KINDS.find(([, pattern]) => pattern.test(given));
  if (found) return found[0];
  if (given.startsWith("mcp__")) return "mcp";
  return input && typeof input === "object" && (typeof input.command === "string" || Array.isArray(input.command)) ? "command" : "tool";
}

function commandText(value) {
  return Array.isArray(value) ? value.map(String).join(" ") : value;
}

/** The path relative to the folder, where it is in it. */
export function shortPath(path, folder) {
  const given = String(path ?? "");
  return folder && folder !== "/" && given.startsWith(`${folder}/`) ? given.slice(folder.length + 1) : given;
}

function subjectOf(input, detail, folder) {
  if (input && typeof input === "object" && !Array.isArray(input)) {
    if (Array.isArray(input.changes)) {
      const paths = input.changes.map((change) => shortPath(change?.path, folder)).filter(Boolean);
      if (paths.length) return paths.length > 2 ? `${paths.slice(0, 2).join(", ")} and ${paths.length - 2} more` : paths.join(", ");
    }
    for (const key of SUBJECTS) {
      const value = commandText(input[key]);
      if (typeof value === "string" && value.trim()) {
        const subject = /path$/.test(key) ? shortPath(value, folder) : value;
        return key === "pattern" && typeof input.path === "string" ? `${subject} in ${shortPath(input.path, folder)}` : subject;
      }
    }
    if (Array.isArray(input.paths) && input.paths.length) return input.paths.map((path) => shortPath(path, folder)).join(", ");
    if (Array.isArray(input.questions)) return input.questions.map((one) => one?.question).filter(Boolean).join(" · ");
  }
  return typeof detail === "string" ? shortPath(detail, folder) : "";
}

/**
 * @returns {{icon: string, kind: string, name: string, server: string|null, subject: string}} `subject` has the whole command or path
 * and may be long; `server` is the MCP server of the tool.
 */
export function titleOfCall(name, input, detail, folder = "") {
  const kind = kindOfTool(name, input);
  const mcp = /^mcp__(.+?)__(.+)$/.exec(String(name ?? ""));
  return {
    kind,
    icon: ICONS[kind],
    name: mcp ? mcp[2] : String(name || "tool"),
    server: mcp ? mcp[1] : null,
    subject: subjectOf(input, detail, folder),
  };
}
