"""The steps of a scenario, one function each."""

from __future__ import annotations

import json
import os
import signal
import sys

from .calls import play_calls
from .files import write, write_file
from .play import DELTA, Play, TurnOver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .scenario import Fields, Step

CALL_STEPS = frozenset({"tool_call", "app_tool", "parallel"})
BURST = 4096
"""Events that are written at once."""
POLL_SECONDS = 0.02
TOKEN_HEAD, TOKEN_TAIL = '{"kind":"agent_token","text":"', '"}\n'


def play_steps(play: Play, steps: list[Step]) -> None:
    """Play them all. Raises TurnOver, Interrupted or InputEnded."""
    for step in steps:
        [(name, fields)] = step.items()
        if play.earlier and name not in CALL_STEPS:
            continue
        STEPS[name](play, fields)
        play.wire.poll()


def _text(play: Play, fields: Fields) -> None:
    play.stream("agent_token", play.fill(fields["text"]), fields.get("chunk", DELTA), fields.get("every", 0.0))


def _thinking(play: Play, fields: Fields) -> None:
    play.stream("thinking", play.fill(fields["text"]), fields.get("chunk", DELTA), fields.get("every", 0.0))


def _message_end(play: Play, fields: Fields) -> None:
    play.wire.emit("message_end", **fields)


def _compact(play: Play, fields: Fields) -> None:
    play.wire.emit("compacted", **{**fields, "summary": play.fill(fields["summary"])}, trigger="manual")


def _usage(play: Play, fields: Fields) -> None:
    play.wire.emit("usage", **fields)


def _plan(play: Play, fields: Fields) -> None:
    play.wire.emit("plan", entries=play.fill_all(fields["entries"]))


def _commands(play: Play, fields: Fields) -> None:
    play.wire.emit("commands", commands=play.fill_all(fields["commands"]))


def _title(play: Play, fields: Fields) -> None:
    play.wire.emit("title", text=play.fill(fields["text"]) or None)


def _tool_call(play: Play, fields: Fields) -> None:
    play_calls(play, [{"tool_call": fields}])


def _app_tool(play: Play, fields: Fields) -> None:
    play_calls(play, [{"app_tool": fields}])


def _parallel(play: Play, fields: Fields) -> None:
    play_calls(play, fields["calls"])


def _subagent(play: Play, fields: Fields) -> None:
    label = play.fill(fields["label"])
    name = play.fill(fields["id"]) if "id" in fields else play.new_id("subagent")
    play.wire.emit("subagent", id=name, status="started", label=label)
    play.parent = name
    play_steps(play, fields.get("steps", []))
    play.parent = None
    play.wire.emit("subagent", id=name, status=fields.get("status", "completed"), label=label)


def _hook(play: Play, fields: Fields) -> None:
    name = play.fill(fields["id"]) if "id" in fields else play.new_id("hook")
    play.wire.emit("hook", id=name, name=play.fill(fields["name"]), status=play.fill(fields.get("status", "completed")))


def _delay(play: Play, fields: Fields) -> None:
    play.wire.pause(fields["seconds"])


def _wait_for_file(play: Play, fields: Fields) -> None:
    while not os.path.exists(fields["path"]):
        play.wire.pause(POLL_SECONDS)


def _stderr(play: Play, fields: Fields) -> None:
    play.wire.complain(play.fill(fields["line"]))


def _line(play: Play, fields: Fields) -> None:
    play.wire.write(play.fill(fields["line"]).encode("utf-8", "replace") + b"\n")


def _big_line(play: Play, fields: Fields) -> None:
    frame = len(TOKEN_HEAD) + len(TOKEN_TAIL) - 1
    play.wire.write(b"".join((TOKEN_HEAD.encode(), b"x" * (fields["bytes"] - frame), TOKEN_TAIL.encode())))


def _events(play: Play, fields: Fields) -> None:
    count = fields["count"]
    parts = [json.dumps(play.fill(part))[1:-1] for part in fields.get("text", "event {n} ").split("{n}")]
    parts[0] = TOKEN_HEAD + parts[0]
    parts[-1] += TOKEN_TAIL
    same = parts[0].encode() * min(BURST, count) if len(parts) == 1 else b""
    for start in range(0, count, BURST):
        stop = min(start + BURST, count)
        if same:
            play.wire.write(same if stop - start == BURST else same[: len(parts[0]) * (stop - start)])
        else:
            play.wire.write("".join([str(number).join(parts) for number in range(start, stop)]).encode())
        play.wire.poll()


def _exit(play: Play, fields: Fields) -> None:
    play.wire.flush()
    if "signal" in fields:
        os.kill(os.getpid(), signal.Signals[fields["signal"]])
    os._exit(fields.get("code", 1))


def _hang(play: Play, fields: Fields) -> None:
    stubborn = fields.get("ignore_term", False)
    play.wire.ignores_interrupt = fields.get("ignore_interrupt", False)
    play.wire.ignores_end = play.wire.once or stubborn or fields.get("ignore_eof", False)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN) if stubborn else None
    try:
        play.wire.pause(None)
    finally:
        if stubborn:
            signal.signal(signal.SIGTERM, before)


def _spawn(play: Play, fields: Fields) -> None:
    import subprocess  # here, because its import takes longer than all others together

    nothing, orphan = subprocess.DEVNULL, fields.get("orphan", False)
    code = f"import os, time\ntime.sleep({fields['seconds']})"
    if orphan:
        code = code.replace("\n", "\nif pid := os.fork(): os.write(1, b'%d' % pid); os._exit(0)\nos.close(1)\n")
    with_output = None if fields.get("hold_stdout") else nothing
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        stdin=nothing,
        stdout=subprocess.PIPE if orphan else with_output,
        stderr=nothing,
        start_new_session=fields.get("new_session", False),
        env={} if fields.get("empty_env") else None,
    )
    pid = child.communicate()[0].decode() if orphan else str(child.pid)
    if "pid_file" in fields:
        write(fields["pid_file"], pid)


def _env(play: Play, fields: Fields) -> None:
    name = fields["name"]
    if name == "*":
        listed = " ".join(sorted(os.environ))
    else:
        listed = f"{name}={os.environ[name]}" if name in os.environ else f"{name} is not set"
    play.stream("agent_token", listed)


def _argv(play: Play, fields: Fields) -> None:
    play.stream("agent_token", json.dumps(sys.orig_argv))


def _remember(play: Play, fields: Fields) -> None:
    play.stream("agent_token", json.dumps(play.texts[:-1], ensure_ascii=False))


def _stop(play: Play, fields: Fields) -> None:
    message = fields.get("message", "the scenario ends with an error") if fields["reason"] == "error" else None
    raise TurnOver(fields["reason"], message and play.fill(message))


STEPS: dict[str, Callable[[Play, Fields], None]] = {
    "text": _text,
    "thinking": _thinking,
    "message_end": _message_end,
    "compact": _compact,
    "usage": _usage,
    "plan": _plan,
    "commands": _commands,
    "title": _title,
    "tool_call": _tool_call,
    "app_tool": _app_tool,
    "parallel": _parallel,
    "subagent": _subagent,
    "hook": _hook,
    "delay": _delay,
    "wait_for_file": _wait_for_file,
    "stderr": _stderr,
    "line": _line,
    "big_line": _big_line,
    "events": _events,
    "exit": _exit,
    "hang": _hang,
    "spawn": _spawn,
    "write_file": write_file,
    "env": _env,
    "argv": _argv,
    "remember": _remember,
    "stop": _stop,
}
