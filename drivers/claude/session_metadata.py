"""What the claude CLI tells of a session beside its runs: its slash commands and its title; pure. Shapes of claude 2.1.329."""

from __future__ import annotations

from typing import Any

from drivers.codecs.deduplication import Deduplicator
from drivers.contract.events import Commands, OutputEvent, SlashCommand, Title

NOTICES = frozenset({"commands_changed", "session_title_changed"})
"""Subtypes of `system` lines: commands that turn up later, such as skills of a folder; a name that is given or found."""


class Notices:
    """The same is not told twice. Commands are told where a `/` is one."""

    def __init__(self, *, tells_commands: bool) -> None:
        self._tells_commands = tells_commands
        self._told = Deduplicator()

    def opened(self, answer: dict[str, Any]) -> list[OutputEvent]:
        """The events of the answer to `initialize`."""
        listed = answer.get("commands")
        return self._commands(listed) if isinstance(listed, list) else []

    def read(self, native: dict[str, Any]) -> list[OutputEvent]:
        """The events of a line of NOTICES."""
        if native["subtype"] == "session_title_changed":
            return self._told.changed(Title(text=native["title"]))
        return self._commands(native["commands"])

    def _commands(self, listed: list[Any]) -> list[OutputEvent]:
        return self._told.changed(Commands(commands=commands_of(listed))) if self._tells_commands else []


def commands_of(listed: list[Any]) -> tuple[SlashCommand, ...]:
    """The CLI's list of commands, without those that are its own business: `__remote-workflow`."""
    return tuple(
        SlashCommand(name=one["name"], description=str(one.get("description") or ""), hint=one.get("argumentHint") or None)
        for one in listed
        if isinstance(one, dict) and one.get("name") and not str(one["name"]).startswith("_")
    )
