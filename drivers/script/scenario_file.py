"""Reads a scenario and checks it by the schema; every refusal names the path in the file and what would be right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from drivers.contract.errors import AgentUnavailable
from drivers.runtime.confined_files import ConfinedFolders, NotRegularFile, OutsideFolders, regular_file
from drivers.script.schema import SCENARIO, Scenario, Step, described, json_schema

FOR_FILES = frozenset({"write_file", "wait_for_file", "spawn", "env", "argv", "client", "line", "big_line", "events"})
"""Steps, and fields of calls, that a scenario in an option cannot have: they use files, processes, variables of the agent or the
machine of another client (a raw `line` can ask for all of that), or write without a limit. Whoever writes into the agent's folder
may do so anyway, a client may not."""
MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of a scenario file."""


class ScenarioError(AgentUnavailable):
    """The scenario cannot be played. The text has the path in the file and the reason."""


def load(cwd: Path, name: str) -> Scenario:
    """Read and check the scenario file. Raises ScenarioError."""
    try:
        return check(from_json(_content(cwd, name).decode("utf-8-sig")))
    except OutsideFolders:
        raise ScenarioError(f"scenario {name}: outside the agent's working folder {cwd}; put the file into it") from None
    except (OSError, NotRegularFile) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScenarioError(f"scenario {name}: cannot be read in {cwd}: {reason}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"scenario {name}: not UTF-8: {error}") from error
    except ScenarioError as error:
        raise ScenarioError(f"scenario {name}: {error}") from None
    except ValueError as error:
        raise ScenarioError(f"scenario {name}: not JSON: {error}") from error


def read(content: str) -> Scenario:
    """Check a scenario that is the value of an option, which a client may have set. Raises ScenarioError."""
    try:
        scenario = check(from_json(content))
    except ScenarioError as error:
        raise ScenarioError(f"scenario: {error}") from None
    except ValueError as error:
        raise ScenarioError(f"scenario: not JSON: {error}") from error
    lists = [
        ("start", scenario.get("start", [])),
        *((f"turns[{n}].steps", turn["steps"]) for n, turn in enumerate(scenario["turns"])),
    ]
    for path in (path for name, steps in lists for path in _for_files(steps, name)):
        raise ScenarioError(f"scenario: {path}: is possible in a scenario file only; put the scenario into the agent's folder")
    return scenario


def _for_files(steps: Any, path: str) -> Iterator[str]:
    """Yield the paths of what only a file may have."""
    for number, step in enumerate(steps):
        for name, fields in step.items():
            place = f"{path}[{number}].{name}"
            if name in FOR_FILES:
                yield place
            if name == "tool_call":
                yield from (f"{place}.{field}" for field in sorted(FOR_FILES & fields.keys()))
            for inner in ("calls", "steps"):
                yield from _for_files(fields.get(inner, ()), f"{place}.{inner}")


def _content(cwd: Path, name: str) -> bytes:
    descriptor = ConfinedFolders((cwd,)).open(str(cwd / name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with regular_file(descriptor, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise NotRegularFile(f"it has more than {MAX_BYTES} bytes")
    return content


def check(scenario: Any) -> Scenario:
    """Return a scenario in which no bare value stands for an object. Raises ScenarioError with the path of what is wrong."""
    try:
        return SCENARIO.validate_python(scenario)
    except ValidationError as invalid:
        first, *others = invalid.errors(include_url=False)
        # A misspelt key is the reason why another one of its object is missing.
        misspelt = (one for one in others if one["type"] == "extra_forbidden" and one["loc"][:-1] == first["loc"][:-1])
        raise ScenarioError(_explained(next(misspelt, first), scenario)) from None


def _explained(error: ErrorDetails, value: Any) -> str:
    kind, place = error["type"], list(error["loc"])
    key = str(place.pop()) if kind in ("missing", "extra_forbidden") else ""
    schema = json_schema()
    path, node = "", schema
    for part in place:
        shape = _shape(node, schema)
        node = shape["items"] if isinstance(part, int) else shape["properties"][part]
        # A bare value is in the place of its object.
        if isinstance(part, int) or isinstance(value, dict):
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
            value = value[part]
    path, shape = path.lstrip(".") or "the scenario", _shape(node, schema)
    if kind == "refused":
        return f"{path}{error['ctx']['inside']}: {error['msg']}"
    if kind == "missing":
        return f"{path}: needs {key}"
    if kind == "extra_forbidden":
        return f"{path}.{key}: {_unknown(key, shape)}"
    true = {"const": True} in node.get("anyOf", ())
    return f"{path}: must be {_expected(shape, schema, true=true)}; it is {described(value)}"


def _unknown(key: str, shape: dict[str, Any]) -> str:
    known = list(shape["properties"])
    close = get_close_matches(key, known, n=1)
    hint = f"{', '.join(known)}{f'; did you mean {close[0]}?' if close else ''}"
    if shape["title"].endswith("Step"):
        return f"{'cannot be used here' if key in Step.__annotations__ else 'is not a step'}; possible are {hint}"
    return f"no such key; {f'known are {hint}' if known else 'it has none'}"


def _expected(shape: dict[str, Any], schema: dict[str, Any], *, true: bool) -> str:
    """Return what must be in a place whose value has another type. `true` may be there if it is in place of an object."""
    if "enum" in shape:
        return f"one of {', '.join(shape['enum'])}"
    if "minItems" in shape:
        return "a list of at least one turn"
    if shape["type"] == "array" and "minProperties" in shape["items"]:
        return "a list of steps"
    if shape["type"] == "array":
        keys = ", ".join(_shape(shape["items"], schema).get("properties", ()))
        return f"a list of objects with {keys}" if keys else "a list of texts"
    if keys := ", ".join(shape.get("properties", ())):
        return f"an object with {keys}{' (or true)' if true else ''}"
    return "true" if true else "an object"


def _shape(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the object that belongs in a place; a bare value may be there instead."""
    node = node["anyOf"][0] if "anyOf" in node else node
    return dict(schema["$defs"][node["$ref"].rpartition("/")[2]]) if "$ref" in node else node
