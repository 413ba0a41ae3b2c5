"""The items of codex: its calls as tool calls, their outcomes as results. No state.

`codex exec` names an item's type and fields in snake case, `codex app-server` in camel case; both are read here as snake case.
Items of the model's API (`function_call` and the like) have the names of that API.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from drivers.codecs.tool_calls import Call
from drivers.contract.messages import data_uri
from drivers.contract.tool_denials import denied

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")
_EXIT_CODE = re.compile(r"^Process exited with code (-?\d+)$", re.MULTILINE)
_OUTPUT = "\nOutput:\n"
"""What the CLI writes before the output of a command, in the text for the model."""


SCRIPT_TOOL = "exec"
"""The tool of models that write scripts, whose calls of tools have items of their own."""


def snake(native: dict[str, Any]) -> dict[str, Any]:
    """An item with the names of its type and its own fields in snake case."""
    item = {_snake(key): value for key, value in native.items()}
    return {**item, "type": _snake(str(item.get("type")))}


@lru_cache(maxsize=1024)
def _snake(name: str) -> str:
    return _HUMP.sub(lambda found: "_" + found[1].lower(), name)


def call_of(item: dict[str, Any]) -> Call | None:
    """The call of an item (in snake case); None for items that are no calls."""
    read = _CALLS.get(item["type"])
    return read(item) if read else None


def outcome_of(item: dict[str, Any], denial: str | None = None) -> tuple[Any, bool]:
    """The output of a call's completed item, and whether it failed. `denial` is the result of a call that was denied."""
    failed = item.get("status") in ("failed", "declined") or item.get("success") is False
    if item.get("status") == "declined" or (denial is not None and failed):
        return denial or denied(), True
    read = _OUTPUTS.get(item["type"])
    return (read(item) if read else ""), failed


def exit_code_of(item: dict[str, Any]) -> int | None:
    """The exit code of a completed command."""
    code = item.get("exit_code")
    return code if isinstance(code, int) else None


def model_call(item: dict[str, Any], folder: str) -> Call | None:
    """A command, or a script that calls tools, that the model's API has as a call; None for other items.

    `folder` is the working folder of the thread.
    """
    if item["type"] == "function_call" and item["name"] == "exec_command":
        arguments = json.loads(item["arguments"])
        command = arguments["cmd"]
        cwd = posixpath.join(folder, arguments.get("workdir") or folder)
        return Call(item["call_id"], "shell", {"command": command, "cwd": cwd}, command)
    if item["type"] == "custom_tool_call" and item["name"] == SCRIPT_TOOL:
        return Call(item["call_id"], SCRIPT_TOOL, {"script": item["input"]})
    return None


def model_outcome(item: dict[str, Any]) -> tuple[str, int | None]:
    """What the model has been told of the output of its call, and the exit code of a command."""
    output = item["output"]
    text = output if isinstance(output, str) else "\n".join(str(part.get("text") or "").rstrip("\n") for part in output)
    head, found, body = text.partition(_OUTPUT)
    code = _EXIT_CODE.search(head)
    if not found or code is None:
        return text, None
    return _command_output({"aggregated_output": body, "exit_code": int(code[1])}), int(code[1])


def plain_command(command: str) -> str:
    """The command that the model gave, without the shell that the CLI runs it in."""
    if not isinstance(command, str):
        raise TypeError("a command is a string")
    try:
        parts = shlex.split(command)
    except ValueError:
        return command
    return parts[2] if len(parts) == 3 and parts[1] in ("-lc", "-c") else command


def _command(item: dict[str, Any]) -> Call:
    command = plain_command(item["command"])
    given = {"command": command, **({"cwd": item["cwd"]} if item.get("cwd") else {})}
    return Call(item["id"], "shell", given, command)


def _file_change(item: dict[str, Any]) -> Call:
    changes = [_change(change) for change in item.get("changes") or []]
    return Call(item["id"], "apply_patch", {"changes": changes}, ", ".join(change["path"] for change in changes))


def _change(native: dict[str, Any]) -> dict[str, Any]:
    kind = native.get("kind")
    kind = kind if isinstance(kind, dict) else {"type": kind}
    moved = {"move_path": kind["move_path"]} if kind.get("move_path") else {}
    diff = {"diff": native["diff"]} if native.get("diff") else {}
    return {"path": str(native["path"]), "kind": kind.get("type"), **moved, **diff}


def mcp_name(server: str, tool: str) -> str:
    """The name of an MCP server's tool."""
    return f"mcp__{server}__{tool}"


def _mcp(item: dict[str, Any]) -> Call:
    return Call(item["id"], mcp_name(item["server"], item["tool"]), _object(item.get("arguments")))


def _dynamic(item: dict[str, Any]) -> Call:
    return Call(item["id"], item["tool"], _object(item.get("arguments")))


def _web_search(item: dict[str, Any]) -> Call:
    return Call(item["id"], "web_search", {"query": item.get("query") or ""}, item.get("query") or None)


def _todo_list(item: dict[str, Any]) -> Call:
    return Call(item["id"], "update_plan", {"items": item.get("items") or []})


def _image_view(item: dict[str, Any]) -> Call:
    return Call(item["id"], "view_image", {"path": str(item.get("path"))}, str(item.get("path")))


def _collab(item: dict[str, Any]) -> Call:
    return Call(item["id"], str(item["tool"]), {"prompt": item["prompt"]} if item.get("prompt") else {})


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {} if value is None else {"input": value}


def _command_output(item: dict[str, Any]) -> str:
    output = str(item.get("aggregated_output") or "")
    code = item.get("exit_code")
    if code in (0, None):
        return output
    return f"{output.rstrip()}\n[exit code {code}]".lstrip()


def _file_change_output(item: dict[str, Any]) -> str:
    return "\n".join(f"{change['kind']} {change['path']}" for change in _file_change(item).input["changes"])


def _mcp_output(item: dict[str, Any]) -> Any:
    if error := item.get("error"):
        return str(error.get("message") if isinstance(error, dict) else error)
    result = item.get("result")
    content = result.get("content") if isinstance(result, dict) else None
    if not isinstance(content, list):
        return result
    return _blocks(content)


def _blocks(content: list[Any]) -> Any:
    blocks = [_block(part) for part in content if isinstance(part, dict)]
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return blocks


def _block(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "image":
        return {"type": "image", "url": data_uri(str(part.get("mimeType")), str(part.get("data")))}
    return {"type": "text", "text": str(part.get("text", part))}


def _web_search_output(item: dict[str, Any]) -> Any:
    return item.get("results") or ""


_CALLS: dict[str, Callable[[dict[str, Any]], Call]] = {
    "command_execution": _command,
    "file_change": _file_change,
    "mcp_tool_call": _mcp,
    "dynamic_tool_call": _dynamic,
    "web_search": _web_search,
    "todo_list": _todo_list,
    "image_view": _image_view,
    "collab_tool_call": _collab,
    "collab_agent_tool_call": _collab,
}
_OUTPUTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "command_execution": _command_output,
    "file_change": _file_change_output,
    "mcp_tool_call": _mcp_output,
    "web_search": _web_search_output,
}
