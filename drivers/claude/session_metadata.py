"""What claude reports of a session beside its runs: its slash commands and its title. Shapes of claude 2.1.329."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drivers.codecs.deduplication import Deduplicator
from drivers.contract.events import Commands, OutputEvent, SlashCommand, Title

METADATA = frozenset({"commands_changed", "session_title_changed"})
"""Subtypes of `system` lines: commands that were found later, such as skills of a folder; a title that was set or generated."""


class SessionMetadata:
    """Makes events of metadata that have changed.

    Parameters:
        is_command: Whether a prompt may be the command of this name. Only those become events, and without any there is none.
    """

    def __init__(self, is_command: Callable[[str], bool] | None) -> None:
        self._is_command = is_command
        self._last = Deduplicator()

    def initialized(self, response: dict[str, Any]) -> list[OutputEvent]:
        """The events of the response to `initialize`."""
        listed = response.get("commands")
        return self._commands(listed) if isinstance(listed, list) else []

    def read(self, message: dict[str, Any]) -> list[OutputEvent]:
        """The events of a line whose subtype is in METADATA."""
        if message["subtype"] == "session_title_changed":
            return self._last.changed(Title(text=message["title"]))
        return self._commands(message["commands"])

    def _commands(self, listed: list[Any]) -> list[OutputEvent]:
        if self._is_command is None:
            return []
        return self._last.changed(Commands(commands=tuple(one for one in commands_of(listed) if self._is_command(one.name))))


def commands_of(listed: list[Any]) -> tuple[SlashCommand, ...]:
    """The CLI's list of commands, without its internal ones, such as `__remote-workflow`."""
    return tuple(
        SlashCommand(name=one["name"], description=str(one.get("description") or ""), hint=one.get("argumentHint") or None)
        for one in listed
        if isinstance(one, dict) and one.get("name") and not str(one["name"]).startswith("_")
    )
