"""Translates `session/update` notifications other than tool calls: a run's text, plan and usage, and the session's commands and
title. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AvailableCommandsUpdate,
    UsageUpdate,
)

from drivers.acp.content import text_of_block
from drivers.acp.handshake import SessionState
from drivers.codecs.deduplication import Deduplicator
from drivers.contract.events import (
    AgentToken,
    Commands,
    ContextUse,
    MessageEnd,
    OutputEvent,
    Plan,
    PlanEntry,
    SlashCommand,
    Thinking,
    Title,
)

IGNORED_UPDATES = frozenset({"user_message_chunk", "current_mode_update", "config_option_update"})
"""Updates without an event: the echo of the prompt, and the session's mode and config options."""
SESSION_UPDATES = frozenset({"available_commands_update", "session_info_update"})
"""Updates about the session, which may come at any time."""


class RunUpdates:
    """The text, plan and context usage of one run."""

    def __init__(self) -> None:
        self._message_id: str | None = None

    def read(self, update: Any) -> list[OutputEvent] | None:
        """The events of an update; None for an unknown one."""
        match update:
            case AgentMessageChunk() | AgentThoughtChunk():
                return self._chunk(update)
            case UsageUpdate():
                return [ContextUse(used=update.used, size=update.size)] if update.size > 0 else []
            case AgentPlanUpdate():
                return [_plan(update)]
        return None

    def _chunk(self, update: AgentMessageChunk | AgentThoughtChunk) -> list[OutputEvent]:
        text = text_of_block(update.content)
        if not text:
            return []
        end: list[OutputEvent] = []
        if update.message_id != self._message_id:
            end = [MessageEnd()] if self._message_id is not None else []
            self._message_id = update.message_id
        return [*end, AgentToken(text=text) if isinstance(update, AgentMessageChunk) else Thinking(text=text)]


class SessionUpdates:
    """The slash commands and the title of the session, each reported when it has changed; `session` keeps the commands."""

    def __init__(self, session: SessionState, *, report_commands: bool) -> None:
        self._session, self._report_commands = session, report_commands
        self._deduplicator = Deduplicator()

    def read(self, update: Mapping[str, Any]) -> list[OutputEvent]:
        """The events of one of SESSION_UPDATES."""
        if update["sessionUpdate"] == "session_info_update":
            # An omitted title is unchanged; null removes it.
            return self._deduplicator.changed(Title(text=update["title"])) if "title" in update else []
        commands = _commands(update)
        self._session.commands = commands.commands
        return self._deduplicator.changed(commands) if self._report_commands else []


def _plan(update: AgentPlanUpdate) -> Plan:
    return Plan(entries=tuple(PlanEntry(content=e.content, priority=e.priority, status=e.status) for e in update.entries))


def _commands(update: Mapping[str, Any]) -> Commands:
    found = AvailableCommandsUpdate.model_validate(update).available_commands
    return Commands(
        commands=tuple(
            SlashCommand(name=c.name, description=c.description, hint=c.input.root.hint if c.input else None) for c in found
        )
    )
