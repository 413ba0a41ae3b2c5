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

from drivers.contract.driver_info import TOOL_KINDS, DriverInfo, PlanChange

MAX_TITLE = 200
"""Characters of a title."""


def title_of(info: DriverInfo, name: str, given: Any, detail: str | None) -> str:
    """Return a title of one line for a call of the tool `name` with the input `given`. `detail` is the driver's own, if any."""
    fields = given if isinstance(given, dict) else {}
    keys = ("command", *info.path_fields, *info.title_fields)
    subject = next((value for key in keys if isinstance(value := fields.get(key), str) and value.strip()), "")
    subject = " ".join((detail or subject).split())
    # The name adds nothing to the kind, which is displayed beside the title.
    without_name = subject and (info.tool_kind(name) == "execute" or name in TOOL_KINDS)
    title = subject if without_name else f"{name} {subject}".strip()
    return title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 1] + "…"


def locations_of(info: DriverInfo, given: Any, cwd: str) -> list[ToolCallLocation]:
    """Return the files that the input `given` names, with a line where it names one. Paths are relative to `cwd`."""
    if not isinstance(given, dict):
        return []
    line = next((given[key] for key in ("offset", "start_line", "line") if _is_line(given.get(key))), None)
    named = [given[key] for key in info.path_fields if isinstance(given.get(key), str)]
    named += [path for path in _list(given, "paths") if isinstance(path, str)]
    named += [change["path"] for change in _list(given, "changes") if isinstance(change, dict) and "path" in change]
    return [ToolCallLocation(path=os.path.join(cwd, path), line=line) for path in dict.fromkeys(named)]


def diffs_of(info: DriverInfo, given: Any, cwd: str) -> list[FileEditToolCallContent]:
    """Return the changes of an edit whose input `given` has the texts or a patch. Paths are relative to `cwd`."""
    if not isinstance(given, dict):
        return []
    path = next((given[key] for key in info.path_fields if isinstance(given.get(key), str)), None)
    if path is not None:
        path = os.path.join(cwd, path)
        edits = [given, *_list(given, "edits")]
        found = [_diff(path, edit.get("old_string"), edit.get("new_string")) for edit in edits if isinstance(edit, dict)]
        written = [_diff(path, None, given.get("content"))]
        return [diff for diff in [*found, *written] if diff is not None] or _patches([{**given, "path": path}], cwd)
    return _patches(_list(given, "changes"), cwd)


def _patches(changes: list[Any], cwd: str) -> list[FileEditToolCallContent]:
    patches = [change for change in changes if isinstance(change, dict) and _is_patch(change)]
    return [_patched(os.path.join(cwd, str(change.get("path"))), change) for change in patches]


def _diff(path: str, old: Any, new: Any) -> FileEditToolCallContent | None:
    if not isinstance(new, str):
        return None
    return FileEditToolCallContent(type="diff", path=path, old_text=old if isinstance(old, str) else None, new_text=new)


def _is_patch(change: Mapping[str, Any]) -> bool:
    """Whether `diff` has hunks, or the text of an added or deleted file. For a large edit, codex has prose there."""
    diff = change.get("diff")
    return isinstance(diff, str) and (change.get("kind") in ("add", "delete") or diff.startswith("@@") or "\n@@" in diff)


def _patched(path: str, change: Mapping[str, Any]) -> FileEditToolCallContent:
    """Return the diff of one file of a patch: the removed and the added lines of its hunks, or the text of the whole file."""
    lines = str(change["diff"]).splitlines()
    if not any(line.startswith("@@") for line in lines):
        deleted = change.get("kind") == "delete"
        texts = {"old_text": change["diff"], "new_text": ""} if deleted else {"new_text": change["diff"]}
        return FileEditToolCallContent(type="diff", path=path, **texts)
    hunks = [line for line in lines if not line.startswith(("@@", "---", "+++"))]
    old = "\n".join(line[1:] for line in hunks if not line.startswith("+"))
    new = "\n".join(line[1:] for line in hunks if not line.startswith("-"))
    return FileEditToolCallContent(type="diff", path=path, old_text=None if change.get("kind") == "add" else old, new_text=new)


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

    def called(self, name: str, given: Any) -> list[PlanEntry] | None:
        """Return the plan after a call of the tool `name`, or None if that is not a planning tool."""
        change = self._plan_tools.get(name)
        if change is None or not isinstance(given, dict):
            return None
        if change == "replace":
            steps = [*_list(given, "todos"), *_list(given, "items"), *_list(given, "plan")]
            self._steps = {str(n): _step(step) for n, step in enumerate(steps, 1) if isinstance(step, dict)}
        elif change == "add":
            self._steps[str(len(self._steps) + 1)] = _step({**given, "status": "pending"})
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
