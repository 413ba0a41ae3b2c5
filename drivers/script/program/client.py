"""What a call of a scenario asks of the session's client: its text files and its terminals."""

from __future__ import annotations

import os

from .wire import InputEnded, Interrupted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .play import Play
    from .scenario import Fields


class ClientRefused(Exception):
    """The client has refused a request. The text is its reason."""


def ask_client(play: Play, call_id: str, fields: Fields) -> tuple[str, bool]:
    """What a call gives that the client does, and whether it failed. Raises Interrupted or InputEnded."""
    [(kind, request)] = fields.items()
    try:
        return _DEEDS[kind](play, call_id, request)
    except ClientRefused as refused:
        return str(refused), True


def _read(play: Play, _: str, fields: Fields) -> tuple[str, bool]:
    lines = {name: fields[name] for name in ("line", "limit") if name in fields}
    return str(_ask(play, "fs/read_text_file", path=_path(play, fields["path"]), **lines)["content"]), False


def _write(play: Play, _: str, fields: Fields) -> tuple[str, bool]:
    _ask(play, "fs/write_text_file", path=_path(play, fields["path"]), content=play.fill(fields["text"]))
    return "done", False


def _terminal(play: Play, call_id: str, fields: Fields) -> tuple[str, bool]:
    """The whole life of a terminal: made, shown in the call, waited for or killed, read, released."""
    params: dict[str, Any] = {"command": play.fill(fields["command"]), "args": [play.fill(arg) for arg in fields.get("args", ())]}
    if "env" in fields:
        params["env"] = [{"name": name, "value": play.fill(value)} for name, value in fields["env"].items()]
    if "output_bytes" in fields:
        params["outputByteLimit"] = fields["output_bytes"]
    terminal = _ask(play, "terminal/create", cwd=_path(play, fields.get("cwd", "")), **params)["terminalId"]
    play.wire.emit("terminal", tool_call_id=call_id, terminal_id=terminal)
    try:
        ended = play.wire.ask("terminal/wait_for_exit", terminalId=terminal)
        if "kill_after" in fields:
            play.wire.pause(fields["kill_after"])
            _ask(play, "terminal/kill", terminalId=terminal)
        [exit_status] = _results(play, [ended])
        output = _ask(play, "terminal/output", terminalId=terminal)["output"]
    except (ClientRefused, Interrupted, InputEnded):
        play.wire.ask("terminal/release", terminalId=terminal)
        raise
    _ask(play, "terminal/release", terminalId=terminal)
    return output, exit_status.get("exitCode") != 0


def _ask(play: Play, method: str, **params: Any) -> dict[str, Any]:
    """The client's result. Raises ClientRefused, Interrupted or InputEnded."""
    if play.wire.once:
        raise ClientRefused(f"{method}: a one-shot task has no client")
    return _results(play, [play.wire.ask(method, **params)])[0]


def _results(play: Play, asked: list[str]) -> list[dict[str, Any]]:
    answers = play.wire.replies(asked)
    for answer in answers:
        if "error" in answer:
            raise ClientRefused(str(answer["error"]))
    return [answer["result"] for answer in answers]


def _path(play: Play, path: str) -> str:
    return os.path.normpath(os.path.join(os.getcwd(), play.fill(path)))


_DEEDS = {"read_file": _read, "write_file": _write, "terminal": _terminal}
