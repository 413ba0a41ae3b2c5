"""The scenario format: every step with its fields, and the errors of a file that does not follow it."""

from __future__ import annotations

import json
import os
import re

from .checks import (
    GIB,
    ScenarioError,
    amount,
    command_name,
    count,
    described,
    exactly,
    file_path,
    flag,
    keys_of,
    numbered_template,
    objects,
    one_line,
    one_of,
    pattern,
    seconds,
    size,
    template,
    template_json,
    template_object,
    templates,
    word,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    Fields = dict[str, Any]
    Step = tuple[str, Fields]


class Shape:
    """The fields of a step: `main` is the one that a bare value stands for, `needs` those that must be there."""

    def __init__(self, main: str | None = None, needs: tuple[str, ...] = (), **fields: Callable[[Any, str], Any]) -> None:
        self.main, self.fields = main, fields
        self.needs = needs or ((main,) if main else ())


class Turn:
    """One answer to a prompt."""

    def __init__(self, when: re.Pattern[str] | None, steps: list[Step]) -> None:
        self.when, self.steps = when, steps


class Scenario:
    """A checked scenario."""

    def __init__(self, turns: list[Turn], start: list[Step], model: str) -> None:
        self.turns, self.start, self.model = turns, start, model

    def turn_for(self, texts: list[str]) -> Turn | None:
        """The turn that answers the last of these user texts; None if there is none for it."""
        matching = self._matching(texts[-1])
        if matching:
            return matching
        in_order = [turn for turn in self.turns if turn.when is None]
        before = sum(1 for text in texts[:-1] if self._matching(text) is None)
        return in_order[min(before, len(in_order) - 1)] if in_order else None

    def _matching(self, text: str) -> Turn | None:
        return next((turn for turn in self.turns if turn.when and turn.when.search(text)), None)


def _calls(value: Any, path: str) -> list[Step]:
    return _steps(value, path, ("tool_call", "app_tool"))


def _inner_steps(value: Any, path: str) -> list[Step]:
    return _steps(value, path, ("tool_call", "app_tool", "parallel", "delay", "wait_for_file", "hook"))


def _write_file(value: Any, path: str) -> Fields:
    return _fields(SHAPES["write_file"], value, path)


CLIENT = {
    "read_file": Shape("path", path=template, line=size, limit=size),
    "write_file": Shape(None, ("path", "text"), path=template, text=template),
    "terminal": Shape(
        "command", command=template, args=templates, env=template_object, cwd=template, output_bytes=count, kill_after=seconds
    ),
}
"""What a call may ask of the session's client."""


def _client(value: Any, path: str) -> Fields:
    known = keys_of(value, path, tuple(CLIENT), needs=("|".join(CLIENT),))
    return {name: _fields(CLIENT[name], value, f"{path}.{name}") for name, value in known.items()}


SHAPES: dict[str, Shape] = {
    "text": Shape("text", text=template, chunk=size, every=seconds),
    "thinking": Shape("text", text=template, chunk=size, every=seconds),
    "message_end": Shape(discarded=flag),
    "compact": Shape("summary", summary=template, kept=count),
    "usage": Shape(
        input_tokens=count, output_tokens=count, cache_read=count, cache_write=count, reasoning_tokens=count, cost_usd=amount
    ),
    "plan": Shape(
        "entries", entries=objects(
            "content", content=template, priority=one_of("high", "medium", "low"),
            status=one_of("pending", "in_progress", "completed"),
        ),
    ),
    "commands": Shape("commands", commands=objects("name", name=command_name, description=template, hint=template)),
    "title": Shape("text", text=template),
    "tool_call": Shape(
        None, ("name",), name=word, id=template, input=template_object, result=template_json, error=template, detail=template,
        ask=flag, question=flag, takes=seconds, write_file=_write_file, client=_client,
        choices=objects(
            "id", "name", "kind", id=template, name=template,
            kind=one_of("allow_once", "allow_always", "reject_once", "reject_always"),
        ),
    ),
    "app_tool": Shape(None, ("name",), name=word, id=template, input=template_object, detail=template),
    "parallel": Shape("calls", calls=_calls),
    "subagent": Shape("label", label=template, id=template, status=one_of("completed", "failed"), steps=_inner_steps),
    "hook": Shape("name", name=template, id=template, status=template),
    "delay": Shape("seconds", seconds=seconds),
    "wait_for_file": Shape("path", path=file_path),
    "stderr": Shape("line", line=one_line),
    "line": Shape("line", line=one_line),
    "big_line": Shape("bytes", bytes=exactly(32, GIB)),
    "events": Shape("count", count=count, text=numbered_template),
    "exit": Shape("code", ("code|signal",), code=exactly(0, 255), signal=one_of("SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV")),
    "hang": Shape(ignore_interrupt=flag, ignore_eof=flag, ignore_term=flag),
    "spawn": Shape(
        "seconds", seconds=seconds, new_session=flag, hold_stdout=flag, orphan=flag, empty_env=flag, pid_file=file_path
    ),
    "write_file": Shape(None, ("path", "text"), path=file_path, text=template),
    "env": Shape("name", name=word),
    "argv": Shape(),
    "remember": Shape(),
    "stop": Shape("reason", reason=one_of("end_turn", "max_tokens", "refusal", "error"), message=template),
}  # fmt: skip
START_STEPS = ("delay", "wait_for_file", "stderr", "line", "exit", "hang", "spawn", "write_file", "commands", "title")
LAST_STEPS = ("stop", "exit", "hang")


def load(cwd: str, name: str) -> Scenario:
    """Read and check the scenario file. Raises ScenarioError."""
    path = os.path.realpath(os.path.join(cwd, name))
    if os.path.commonpath((path, os.path.realpath(cwd))) != os.path.realpath(cwd):
        raise ScenarioError(f"scenario {name}: outside the agent's working folder {cwd}; put the file into it")
    try:
        with open(path, encoding="utf-8-sig") as file:
            return parse(json.load(file))
    except OSError as error:
        raise ScenarioError(f"scenario {name}: cannot be read in {cwd}: {error.strerror}") from error
    except RecursionError as error:
        raise ScenarioError(f"scenario {name}: nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"scenario {name}: not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise ScenarioError(f"scenario {name}: not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from error
    except ScenarioError as error:
        raise ScenarioError(f"scenario {name}: {error}") from None


def parse(value: Any) -> Scenario:
    """Check a scenario. Raises ScenarioError with the path of what is wrong."""
    known = keys_of(value, "the scenario", ("turns", "start", "model", "comment"), needs=("turns",))
    turns = known["turns"]
    if not isinstance(turns, list) or not turns:
        raise ScenarioError(f"turns: must be a list of at least one turn; it is {described(turns)}")
    return Scenario(
        [_turn(turn, f"turns[{number}]") for number, turn in enumerate(turns)],
        _steps(known.get("start", []), "start", START_STEPS),
        word(known.get("model", "script"), "model"),
    )


def _turn(value: Any, path: str) -> Turn:
    known = keys_of(value, path, ("when", "steps", "comment"), needs=("steps",))
    steps = _steps(known["steps"], f"{path}.steps", tuple(SHAPES))
    seen: set[str] = set()
    for call in _ids(steps):
        if call in seen:
            raise ScenarioError(f"{path}: the id {call!r} is there twice; ids must differ within a turn")
        seen.add(call)
    return Turn(pattern(known["when"], f"{path}.when") if "when" in known else None, steps)


def _steps(value: Any, path: str, allowed: Collection[str]) -> list[Step]:
    if not isinstance(value, list):
        raise ScenarioError(f"{path}: must be a list of steps; it is {described(value)}")
    steps = [_step(step, f"{path}[{number}]", allowed) for number, step in enumerate(value)]
    for number, (name, _) in enumerate(steps[:-1]):
        if name in LAST_STEPS:
            raise ScenarioError(f"{path}[{number + 1}]: is never played, because {name} before it ends the turn; remove one")
    return steps


def _step(value: Any, path: str, allowed: Collection[str]) -> Step:
    if not isinstance(value, dict) or len(value) != 1:
        raise ScenarioError(f'{path}: must be an object with one key, the step, as in {{"delay": 1}}; it is {described(value)}')
    name = next(iter(value))
    if name not in allowed:
        wrong = "cannot be used here" if name in SHAPES else "is not a step"
        raise ScenarioError(f"{path}.{name}: {wrong}; possible are {', '.join(allowed)}")
    return name, _fields(SHAPES[name], value[name], f"{path}.{name}")


def _fields(shape: Shape, value: Any, path: str) -> Fields:
    if not isinstance(value, dict):
        return _bare(shape, value, path)
    known = keys_of(value, path, tuple(shape.fields), needs=shape.needs)
    fields = {key: shape.fields[key](item, f"{path}.{key}") for key, item in known.items()}
    ends = [end for end in ("a result", "an error", "a client") if end.split()[1] in fields]
    if len(ends) > 1:
        raise ScenarioError(f"{path}: has {' and '.join(ends)}; a call ends in one of them")
    if "message" in fields and fields["reason"] != "error":
        raise ScenarioError(f"{path}.message: only goes with the reason error")
    return fields


def _bare(shape: Shape, value: Any, path: str) -> Fields:
    if shape.main:
        return {shape.main: shape.fields[shape.main](value, path)}
    if value is True and not shape.needs:
        return {}
    expected = f"an object with {', '.join(shape.fields)}" if shape.fields else "true"
    also = " (or true)" if shape.fields and not shape.needs else ""
    raise ScenarioError(f"{path}: must be {expected}{also}; it is {described(value)}")


def _ids(steps: list[Step]) -> list[str]:
    found = []
    for _, fields in steps:
        found += [fields["id"]] if "id" in fields else []
        found += _ids(fields.get("calls", [])) + _ids(fields.get("steps", []))
    return found


__all__ = ["SHAPES", "Scenario", "ScenarioError", "Turn", "load", "parse"]
