"""Display data of a tool call: its kind, title, file locations and diffs, and the agent's plan. Does no I/O.

What the tools of a CLI are is stated by its driver (`DriverInfo`). A call of an unknown tool is displayed with its input alone.
Protocol page: https://agentclientprotocol.com/protocol/tool-calls
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import Any, Literal

from acp.schema import FileEditToolCallContent, PlanEntry, ToolCallLocation
from pydantic_core import to_json

from drivers.codecs.file_changes import hunks_of_diff
from drivers.contract.driver_info import TOOL_KINDS, DriverInfo, PlanChange, ToolKind
from drivers.contract.events import FileChange
from gateway.protocols.acp.questions import questions_of

MAX_TITLE = 200
"""Characters of a title."""
MAX_COMMAND = 100_000
"""Characters of a command or an input that are repeated in the content of its call; `rawInput` has all of it."""
ID_FIELDS = ("bash_id", "shell_id", "task_id", "taskId")
"""Fields of the input of tools that read or end a command in the background, or a task."""
COMMENT_FIELDS = ("description", "reason")
"""Fields in which the model explains a command or, to codex, why it leaves the sandbox."""
BACKGROUND_FIELDS = ("run_in_background", "is_background")
"""Fields of a command whose process outlives its call, of claude and gemini."""


def title_of(info: DriverInfo, name: str, given: Any, detail: str | None, cwd: str = "") -> str:
    """Return a title of one line for a call of the tool `name` with the input `given`. `detail` is the driver's own, if any.

    The title has the tool's title, and what the call acts on: the first line of its command, its pattern, or its files. Paths
    inside `cwd` are relative to it. A question to the user is its own title. Agents whose tools are known only by their kinds
    name their calls themselves.
    """
    fields = given if isinstance(given, dict) else {}
    executes = info.tool_kind(name) == "execute"
    if name in TOOL_KINDS and detail:
        subject, labelled = detail, False
    elif command := _text(fields, "command"):
        subject, labelled = _first_line(command), not executes
    elif name in info.permissions.question_tools and (questions := questions_of(fields)) and questions[0].text.strip():
        more = f" (and {len(questions) - 1} more)" if len(questions) > 1 else ""
        subject, labelled = questions[0].text + more, False
    else:
        subject = _subject(info, fields, cwd) or detail or _named(fields, *info.display.title_fields, *ID_FIELDS)
        labelled = not (subject and (name in TOOL_KINDS or (executes and subject == detail)))
    title = " ".join((f"{info.tool_title(name)} {subject}" if labelled else subject).split())
    suffix = " (in the background)" if any(fields.get(key) is True for key in BACKGROUND_FIELDS) else ""
    limit = MAX_TITLE - len(suffix)
    return (title if len(title) <= limit else title[: limit - 1] + "…") + suffix


def comments_of(info: DriverInfo, name: str, given: Any) -> list[str]:
    """Return the texts that a call displays beside its title: a command of several lines, and the model's comments."""
    kind = info.tool_kind(name)
    if not isinstance(given, dict) or kind not in ("execute", "edit"):
        return []
    command = _text(given, "command") if kind == "execute" else ""
    texts = [_code_block(command, "sh")] if "\n" in command.strip() or len(command) > MAX_TITLE else []
    # An edit's own `description` may be the text that it writes.
    fields = COMMENT_FIELDS if kind == "execute" else COMMENT_FIELDS[1:]
    return [*texts, *(comment for field in fields if (comment := _text(given, field)))]


def _text(fields: Mapping[str, Any], key: str) -> str:
    """The text of this field; empty if it has none, or only white space."""
    value = fields.get(key)
    return value if isinstance(value, str) and value.strip() else ""


def _named(fields: Mapping[str, Any], *keys: str) -> str:
    return next((text for key in keys if (text := _text(fields, key))), "")


def _first_line(command: str) -> str:
    """The first line of a command that is not empty, with an ellipsis if more follow."""
    first, _, rest = command.strip().partition("\n")
    return f"{first} …" if rest else first


def input_text_of(info: DriverInfo, name: str, given: Any) -> str | None:
    """Return the input of a call that clients cannot display otherwise, such as one of an MCP server's tool, for its approval."""
    if name in TOOL_KINDS or info.tool_kind(name) != "other" or not isinstance(given, dict) or not given:
        return None
    return _code_block(to_json(given, indent=2).decode(), "json")


def _code_block(code: str, language: str) -> str:
    """A Markdown code block, whose fence is longer than any in the code."""
    if len(code) > MAX_COMMAND:
        code = f"{code[:MAX_COMMAND]}\n… ({len(code) - MAX_COMMAND} more characters)"
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{code.strip()}\n{fence}"


def _subject(info: DriverInfo, fields: Mapping[str, Any], cwd: str) -> str:
    """The pattern and the files that an input names; empty if it names none."""
    path = _named(fields, *info.display.path_fields)
    path = relative_path(path, cwd) if path else ""
    if pattern := _text(fields, "pattern"):
        return pattern if path in ("", ".") else f"{pattern} in {path}"
    if path:
        return path + _lines(fields)
    changes = (change.get("path") for change in _list(fields, "changes") if isinstance(change, dict))
    return ", ".join(relative_path(path, cwd) for path in changes if isinstance(path, str))


def _lines(fields: Mapping[str, Any]) -> str:
    """The range of lines that a reading tool reads, such as ` (10-29)`; empty for the whole file."""
    first, last, count = (_line_number(fields, *keys) for keys in (("offset", "start_line"), ("end_line",), ("limit",)))
    if last is None and count is not None:
        last = (first or 1) + count - 1
    if last is not None:
        return f" ({first or 1}-{last})"
    return "" if first is None else f" (from line {first})"


def _line_number(fields: Mapping[str, Any], *keys: str) -> int | None:
    return next((fields[key] for key in keys if _is_line(fields.get(key))), None)


def relative_path(path: str, cwd: str) -> str:
    """Return a path relative to the folder `cwd` if it is inside, else as it is. Symbolic links are not resolved."""
    if not cwd:
        return path
    whole = os.path.normpath(os.path.join(cwd, path))
    folder = os.path.normpath(cwd)
    if whole == folder:
        return "."
    return whole.removeprefix(folder.rstrip("/") + "/")


def locations_of(info: DriverInfo, given: Any, cwd: str, kind: ToolKind = "read") -> list[ToolCallLocation]:
    """Return the files that the input `given` of a tool of this kind names, with the lines that it names. Paths are relative to
    `cwd`.
    """
    if not isinstance(given, dict):
        return []
    # The `offset` of a search counts its results.
    line = _line_number(given, *(("offset",) if kind != "search" else ()), "start_line", "line")
    named = [given[key] for key in info.display.path_fields if isinstance(given.get(key), str)]
    named += [path for path in _list(given, "paths") if isinstance(path, str)]
    named += [change["path"] for change in _list(given, "changes") if isinstance(change, dict) and "path" in change]
    lines: dict[str, list[int | None]] = {os.path.join(cwd, path): [] for path in named}
    for change in changes_of(info, given, cwd):
        if change.line is not None:
            lines.setdefault(change.path, []).append(change.line)
    return [ToolCallLocation(path=path, line=number) for path, numbers in lines.items() for number in numbers or [line]]


def plan_text_of(info: DriverInfo, name: str, given: Any) -> str | None:
    """Return the plan that a call submits for approval, in Markdown: the field `plan` of a tool that changes the mode."""
    plan = given.get("plan") if isinstance(given, dict) and info.tool_kind(name) == "switch_mode" else None
    return plan if isinstance(plan, str) and plan.strip() else None


def diffs_of(info: DriverInfo, given: Any, cwd: str) -> list[FileEditToolCallContent]:
    """Return the changes of an edit whose input `given` has the texts or a patch. Paths are relative to `cwd`."""
    return [diff_content(change) for change in changes_of(info, given, cwd)]


def diff_content(change: FileChange) -> FileEditToolCallContent:
    """Return a changed part of a file as content of a call."""
    return FileEditToolCallContent(type="diff", path=change.path, old_text=change.old_text, new_text=change.new_text)


def changes_of(info: DriverInfo, given: Any, cwd: str) -> list[FileChange]:
    """Return the changed parts of files that the input `given` of an edit states: the hunks of a patch, else the texts."""
    if not isinstance(given, dict):
        return []
    path = next((given[key] for key in info.display.path_fields if isinstance(given.get(key), str)), None)
    if path is not None:
        path = os.path.join(cwd, path)
        if patched := _patches([{**given, "path": path}], cwd):
            return patched
        edits = [given, *_list(given, "edits")]
        found = [_replaced(path, edit.get("old_string"), edit.get("new_string")) for edit in edits if isinstance(edit, dict)]
        written = [_replaced(path, None, given.get("content"))]
        return [change for change in [*found, *written] if change is not None]
    return _patches(_list(given, "changes"), cwd)


def _replaced(path: str, old: Any, new: Any) -> FileChange | None:
    if not isinstance(new, str):
        return None
    return FileChange(path=path, old_text=old if isinstance(old, str) else None, new_text=new)


def _patches(changes: list[Any], cwd: str) -> list[FileChange]:
    patches = [change for change in changes if isinstance(change, dict) and _is_patch(change)]
    return [hunk for change in patches for hunk in _patched(os.path.join(cwd, str(change.get("path"))), change)]


def _is_patch(change: Mapping[str, Any]) -> bool:
    """Whether `diff` has hunks, or the text of an added or deleted file. For a large edit, codex has prose there."""
    diff = change.get("diff")
    return isinstance(diff, str) and (change.get("kind") in ("add", "delete") or diff.startswith("@@") or "\n@@" in diff)


def _patched(path: str, change: Mapping[str, Any]) -> list[FileChange]:
    """Return the hunks of one file of a patch, or the text of the whole file."""
    diff = str(change["diff"])
    if not (diff.startswith("@@") or "\n@@" in diff):
        deleted = change.get("kind") == "delete"
        return [FileChange(path=path, old_text=diff, new_text="")] if deleted else [FileChange(path=path, new_text=diff)]
    added = change.get("kind") == "add"
    return [hunk.model_copy(update={"old_text": None}) if added else hunk for hunk in hunks_of_diff(path, diff)]


def _list(given: Mapping[str, Any], key: str) -> list[Any]:
    value = given.get(key)
    return value if isinstance(value, list) else []


def _is_line(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class Plan:
    """The agent's plan, from its calls of the driver's `plan_tools`, which have the whole list or one step."""

    def __init__(self, plan_tools: Mapping[str, PlanChange]) -> None:
        self._plan_tools = plan_tools
        self._steps: dict[str, PlanEntry] = {}
        self._added = 0

    def called(self, name: str, given: Any, output: Any = None) -> list[PlanEntry] | None:
        """Return the plan after a successful call of the tool `name`, or None if it does not change the plan.

        The `output` of a call that adds a step may name it: `Task #3 created …`.
        """
        change = self._plan_tools.get(name)
        if change is None or not isinstance(given, dict):
            return None
        if change == "replace":
            steps = [*_list(given, "todos"), *_list(given, "items"), *_list(given, "plan")]
            self._steps = {str(n): _step(step) for n, step in enumerate(steps, 1) if isinstance(step, dict)}
        elif change == "add":
            self._added += 1
            named = _TASK.match(output) if isinstance(output, str) else None
            self._steps[named[1] if named else str(self._added)] = _step({**given, "status": "pending"})
        elif given.get("taskId") in self._steps:
            self._update(str(given["taskId"]), given)
        else:
            return None
        return list(self._steps.values())

    def _update(self, step_id: str, given: Mapping[str, Any]) -> None:
        if given.get("status") == "deleted":
            del self._steps[step_id]
            return
        before = self._steps[step_id]
        self._steps[step_id] = _step({"content": before.content, "status": before.status, **given})


_TASK = re.compile(r"Task #(\w+) created")
_DONE = re.compile(r"complete|done", re.IGNORECASE)
_IN_PROGRESS = re.compile(r"progress", re.IGNORECASE)


def _step(step: Mapping[str, Any]) -> PlanEntry:
    content = next((step[key] for key in ("subject", "content", "step", "text", "description") if step.get(key)), "")
    reported = "completed" if step.get("completed") is True else str(step.get("status") or "pending")
    status: Literal["pending", "in_progress", "completed"] = "pending"
    if _DONE.search(reported):
        status = "completed"
    elif _IN_PROGRESS.search(reported):
        status = "in_progress"
    return PlanEntry(content=str(content), priority="medium", status=status)
