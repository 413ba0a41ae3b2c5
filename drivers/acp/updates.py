"""What an ACP agent tells by itself: of a run its words and its plan, of the session its commands and its title; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AvailableCommandsUpdate,
    UsageUpdate,
)

from drivers.acp.content import text_of_block
from drivers.acp.handshake import Offer
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

QUIET = frozenset({"user_message_chunk", "current_mode_update", "config_option_update"})
"""Updates that tell nothing of the run: the prompt's echo, and what the session is set to."""
NOTICES = frozenset({"available_commands_update", "session_info_update"})
"""Updates that tell of the session whenever they come."""


class Messages:
    """The words of one run, its plan, and how full the context is. `silent` are texts that say nothing."""

    def __init__(self, silent: Iterable[str]) -> None:
        self._silent = frozenset(silent)
        self._message: str | None = None

    def read(self, update: Any) -> list[OutputEvent] | None:
        """The events of an update; None for one that is not known."""
        match update:
            case AgentMessageChunk() | AgentThoughtChunk():
                return self._chunk(update)
            case UsageUpdate():
                return [ContextUse(used=update.used, size=update.size)] if update.size > 0 else []
            case AgentPlanUpdate():
                return [plan_of(update)]
        return None

    def _chunk(self, update: AgentMessageChunk | AgentThoughtChunk) -> list[OutputEvent]:
        text = text_of_block(update.content)
        if not text or text in self._silent:
            return []
        ended: list[OutputEvent] = []
        if update.message_id != self._message:
            ended = [MessageEnd()] if self._message is not None else []
            self._message = update.message_id
        return [*ended, AgentToken(text=text) if isinstance(update, AgentMessageChunk) else Thinking(text=text)]


class Notices:
    """What holds for the session, in a run or not; the same is not told twice. `offer` keeps the commands."""

    def __init__(self, offer: Offer, *, tells_commands: bool) -> None:
        self._offer, self._tells_commands = offer, tells_commands
        self._told = Deduplicator()

    def read(self, update: Mapping[str, Any]) -> list[OutputEvent]:
        """The events of one of NOTICES."""
        if update["sessionUpdate"] == "session_info_update":
            # Left out it is as it was, null takes it back.
            return self._told.changed(Title(text=update["title"])) if "title" in update else []
        told = commands_of(update)
        self._offer.commands = told.commands
        return self._told.changed(told) if self._tells_commands else []


def plan_of(update: AgentPlanUpdate) -> Plan:
    return Plan(entries=tuple(PlanEntry(content=e.content, priority=e.priority, status=e.status) for e in update.entries))


def commands_of(update: Mapping[str, Any]) -> Commands:
    found = AvailableCommandsUpdate.model_validate(update).available_commands
    return Commands(
        commands=tuple(
            SlashCommand(name=c.name, description=c.description, hint=c.input.root.hint if c.input else None) for c in found
        )
    )
