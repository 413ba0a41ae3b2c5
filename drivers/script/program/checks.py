"""The values that a scenario may hold, one check each; every refusal names the path and what would be right."""

from __future__ import annotations

import json
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

PLACEHOLDER = re.compile(r"\{\{([\w.-]+)\}\}|(\{\{)|\{([\w.-]+)\}")
"""An escaped placeholder, an escaped brace, or a placeholder; every other brace stands for itself."""
PLAIN_NAMES = ("prompt", "turn", "images", "system", "model", "last_result", "steered", "additional_directories")
OPTIONS = ("scenario", "pace", "token")
DAY, GIB = 86_400, 1024**3


class ScenarioError(Exception):
    """The scenario cannot be played. The text has the path in the file and the reason."""


def described(value: Any) -> str:
    """A value for a message: short, and recognisable."""
    if isinstance(value, (dict, list)):
        return f"an object with {', '.join(value) or 'no keys'}" if isinstance(value, dict) else f"a list of {len(value)}"
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def keys_of(value: Any, path: str, allowed: Collection[str], needs: Collection[str] = ()) -> dict[str, Any]:
    """The object, if it has none but the allowed keys and all that it needs (`a|b`: one of them)."""
    if not isinstance(value, dict):
        raise ScenarioError(f"{path}: must be an object with {', '.join(allowed)}; it is {described(value)}")
    for key in value:
        if key not in allowed:
            known = f"known are {', '.join(allowed)}" if allowed else "it has none"
            raise ScenarioError(f"{path}.{key}: no such key; {known}")
    for need in needs:
        if sum(key in value for key in need.split("|")) != 1:
            raise ScenarioError(f"{path}: needs {' or '.join(need.split('|'))}")
    return value


def _refuse(path: str, expected: str, value: Any) -> ScenarioError:
    return ScenarioError(f"{path}: must be {expected}; it is {described(value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def seconds(value: Any, path: str) -> float:
    if not _is_number(value) or not 0 <= value <= DAY:
        raise _refuse(path, f"a number of seconds, 0 to {DAY}", value)
    return float(value)


def amount(value: Any, path: str) -> float:
    if not _is_number(value) or not 0 <= value <= GIB:
        raise _refuse(path, f"a number, 0 to {GIB}", value)
    return float(value)


def exactly(low: int, high: int, expected: str = "a whole number") -> Callable[[Any, str], int]:
    """The check for a whole number in these bounds."""

    def check(value: Any, path: str) -> int:
        if not _is_number(value) or value != value // 1 or not low <= value <= high:
            raise _refuse(path, f"{expected}, {low} to {high}", value)
        return int(value)

    return check


count = exactly(0, GIB)
size = exactly(1, GIB)


def flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _refuse(path, "true or false", value)
    return value


def word(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise _refuse(path, "a text that is not empty", value)
    return value


def template(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _refuse(path, "a text", value)
    for found in PLACEHOLDER.finditer(value):
        _check_placeholder(found.group(3), path)
    return value


def one_line(value: Any, path: str) -> str:
    if not isinstance(value, str) or "\n" in value:
        raise _refuse(path, "a text without a line break", value)
    return template(value, path)


def numbered_template(value: Any, path: str) -> str:
    """A template that may hold `{n}` too; the whole text stays as it is."""
    template(value.replace("{n}", "") if isinstance(value, str) else value, path)
    return str(value)


def template_json(value: Any, path: str) -> Any:
    """Any JSON, whose texts are templates."""
    if isinstance(value, str):
        return template(value, path)
    if isinstance(value, list):
        return [template_json(item, f"{path}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: template_json(item, f"{path}.{key}") for key, item in value.items()}
    return value


def template_object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(path, "an object", value)
    return {key: template_json(item, f"{path}.{key}") for key, item in value.items()}


def templates(value: Any, path: str) -> list[str]:
    if not isinstance(value, list):
        raise _refuse(path, "a list of texts", value)
    return [template(item, f"{path}[{number}]") for number, item in enumerate(value)]


def objects(*needs: str, **fields: Callable[[Any, str], Any]) -> Callable[[Any, str], list[dict[str, Any]]]:
    """The check for a list of objects with these fields, of which some are needed."""

    def check(value: Any, path: str) -> list[dict[str, Any]]:
        if not isinstance(value, list):
            raise _refuse(path, f"a list of objects with {', '.join(fields)}", value)
        known = [keys_of(item, f"{path}[{number}]", tuple(fields), needs=needs) for number, item in enumerate(value)]
        return [
            {key: fields[key](inner, f"{path}[{number}].{key}") for key, inner in item.items()}
            for number, item in enumerate(known)
        ]

    return check


def command_name(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value.strip() or value.startswith("/") or "\n" in value:
        raise _refuse(path, "a command's name on one line, without the / before it", value)
    return template(value, path)


def one_of(*choices: str) -> Callable[[Any, str], str]:
    """The check for one of these texts."""

    def check(value: Any, path: str) -> str:
        if value not in choices:
            raise _refuse(path, f"one of {', '.join(choices)}", value)
        return str(value)

    return check


def pattern(value: Any, path: str) -> re.Pattern[str]:
    try:
        return re.compile(word(value, path))
    except re.error as error:
        raise ScenarioError(f"{path}: not a regular expression: {error}") from error


def file_path(value: Any, path: str) -> str:
    parts = value.split("/") if isinstance(value, str) else []
    if not value or ".." in parts or not parts or os.path.isabs(value) or "\0" in value:
        raise _refuse(path, "a path in the agent's working folder, without ..", value)
    return str(value)


def _check_placeholder(name: str | None, path: str) -> None:
    if name is None or name in PLAIN_NAMES or name.startswith(("results.", "choices.")):
        return
    if name.startswith("options.") and name.removeprefix("options.") in OPTIONS:
        return
    known = ", ".join((*PLAIN_NAMES, "results.ID", "choices.ID", *(f"options.{option}" for option in OPTIONS)))
    raise ScenarioError(f"{path}: {{{name}}} is not known; known are {known}; for a brace itself write {{{{")
