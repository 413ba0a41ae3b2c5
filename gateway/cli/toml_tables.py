"""Adds and removes the table of an agent in the text of a configuration file. All other lines stay, comments too."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import dropwhile, takewhile
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError


class NotEditable(Exception):
    """The text cannot be edited so that only the table of the agent changes."""


def with_agent(text: str, name: str, table: Mapping[str, str], comment: str) -> str:
    """Return the text with `[agents.NAME]` at its end; `comment` is the first line in it. Raises NotEditable."""
    added = tomlkit.table()
    added.add(tomlkit.comment(comment))
    added.update(table)
    before = f"{text.rstrip()}\n\n" if text.strip() else ""
    # Not into the parsed text: tomlkit would add the table between the comment of a later table and that table.
    changed = before + tomlkit.dumps({"agents": {name: added}})
    return _checked(changed, text, _agents(text) | {name: dict(table)})


def without_agent(text: str, name: str) -> str:
    """Return the text without the table of an agent and the tables in it. Comments that belong to what comes next stay.

    Raises NotEditable.
    """
    try:
        document: Any = tomlkit.parse(text)
        del document["agents"][name]
    except TOMLKitError as error:
        raise NotEditable(str(error)) from None
    without = document.as_string()
    lines = zip(text.split("\n"), without.split("\n"), strict=False)
    start = sum(len(line) + 1 for line, _ in takewhile(lambda pair: pair[0] == pair[1], lines))
    end = start + len(text) - len(without)
    if text[:start] + text[end:] != without:
        raise NotEditable(f"[agents.{name}] does not have lines of its own, one after the other")
    comments = _comments_at_end(text[start:end], is_last=end == len(text))
    changed = text[:start] + comments + text[end:]
    if end == len(text) and not comments:
        changed = changed.rstrip() + "\n"
    agents = {key: value for key, value in _agents(text).items() if key != name}
    return _checked(changed if changed.strip() else "", text, agents)


def _comments_at_end(table: str, *, is_last: bool) -> str:
    """Return the comments after the last key, which tomlkit counts to this table; they belong to the next one.

    Of the last table of a file, comments before the first empty line are its own.
    """
    # Not by `splitlines`, which also ends lines at characters that strings and comments may have.
    lines = table.split("\n")
    end = len(lines)
    # A string of several lines may end with what looks like a comment. It is not closed before that line.
    while lines[end - 1].lstrip()[:1] in ("", "#") and _is_toml("\n".join(lines[: end - 1]) + "\n"):
        end -= 1
    after = lines[end:]
    return "\n".join(dropwhile(lambda line: not line.strip(), dropwhile(str.strip, after) if is_last else after))


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _checked(changed: str, text: str, agents: Mapping[str, Any]) -> str:
    """Return the changed text, if it has exactly these agents, and all else as before."""
    try:
        found = tomllib.loads(changed)
    except tomllib.TOMLDecodeError as error:
        raise NotEditable(str(error)) from None
    if found | {"agents": agents} != tomllib.loads(text) | {"agents": agents} or found.get("agents", {}) != agents:
        raise NotEditable("more than the table of the agent would change")
    return changed


def _agents(text: str) -> dict[str, Any]:
    return dict(tomllib.loads(text).get("agents", {}))
