"""Adds and removes the table of an agent in a configuration file, as text: all else stays as it is, with comments and order."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[")


class NotEditable(Exception):
    """The text cannot be edited so that only the table of the agent changes."""


def with_agent(text: str, name: str, table: Mapping[str, Any], comment: str) -> str:
    """Return the text with `[agents.NAME]` at its end; `comment` is the first line in it. Raises NotEditable.

    Values are strings, lists of strings, and mappings of strings.
    """
    lines = [f"[agents.{_key(name)}]", f"# {comment}", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]
    before = f"{text.rstrip()}\n\n" if text.strip() else ""
    changed = before + "\n".join(lines) + "\n"
    expected = _agents(tomllib.loads(text)) | {name: dict(table)}
    return _checked(text, changed, expected)


def without_agent(text: str, name: str) -> str:
    """Return the text without `[agents.NAME]` and the tables in it. Comments that belong to what comes next stay.

    Raises NotEditable.
    """
    kept: list[str] = []
    removed: list[str] | None = None
    # Not by `splitlines`, which also ends lines at characters that strings and comments may have.
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        path = _header(line)
        if path is not None and path[:2] == ("agents", name):
            removed = []
        elif path is not None and removed is not None:
            kept += _comments_at_end(removed)
            removed = None
        (kept if removed is None else removed).append(line)
    if removed is not None:
        # At the end of the file only those after an empty line are not the table's.
        comments = _comments_at_end(removed)
        before = removed[-len(comments) - 1] if comments else ""
        kept = [*kept, *comments] if comments and not before.strip() else ["".join(kept).rstrip() + "\n"]
    changed = "".join(kept)
    expected = {key: value for key, value in _agents(tomllib.loads(text)).items() if key != name}
    return _checked(text, changed if changed.strip() else "", expected)


def _comments_at_end(lines: Sequence[str]) -> list[str]:
    """Return the comments after the last key, with the empty lines among and after them."""
    found: list[str] = []
    for line in reversed(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        found.insert(0, line)
    while found and not found[0].strip():
        del found[0]
    return found


def _checked(text: str, changed: str, agents: Mapping[str, Any]) -> str:
    """Return the changed text, if it has exactly these agents and all else as before."""
    try:
        found = tomllib.loads(changed)
    except tomllib.TOMLDecodeError as error:
        raise NotEditable(str(error)) from None
    rest = {key: value for key, value in tomllib.loads(text).items() if key != "agents"}
    if {key: value for key, value in found.items() if key != "agents"} != rest or _agents(found) != agents:
        raise NotEditable("the table is not written as [agents.NAME]")
    return changed


def _agents(document: Mapping[str, Any]) -> dict[str, Any]:
    return dict(document.get("agents", {}))


def _header(line: str) -> tuple[str, ...] | None:
    """The keys of a table's header; None for any other line."""
    if not _HEADER.match(line):
        return None
    try:
        table: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while table:
        [(key, table)] = (table[0] if isinstance(table, list) else table).items()
        path.append(key)
        table = table[0] if isinstance(table, list) else table
    return tuple(path)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    # A string of JSON is one of TOML, but for surrogates, which are not escaped here, and DEL, which TOML does not allow.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    return "[" + ", ".join(map(_value, value)) + "]"
