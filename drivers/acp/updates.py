"""Translates `session/update` notifications other than tool calls: a run's text, plan and usage, and the session's commands and
title. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AvailableCommandsUpdate,
    UsageUpdate,
)

from drivers.acp.agent_profile import AgentProfile
from drivers.acp.content import text_of_block
from drivers.acp.handshake import SessionState
from drivers.codecs.deduplication import Deduplicator
from drivers.contract.events import (
    AgentToken,
    Commands,
    ContextUse,
    MessageEnd,
    Notice,
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

MAX_KNOWN_COSTS = 10_000
"""Sessions whose last reports are kept."""

_CHUNKS: dict[Any, type[AgentToken] | type[Thinking]] = {"agent_message_chunk": AgentToken, "agent_thought_chunk": Thinking}
_TEXT_BLOCK = {"type", "text"}


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

    def read_text(self, update: Mapping[str, Any]) -> list[OutputEvent] | None:
        """The events of a chunk that has a text and nothing else; None for all others. To validate a model takes 2 us."""
        kind, content = _CHUNKS.get(update["sessionUpdate"]), update.get("content")
        if kind is None or len(update) != 2 or not isinstance(content, dict) or content.keys() != _TEXT_BLOCK:
            return None
        text = content["text"]
        return self._text(kind, text, None) if content["type"] == "text" and isinstance(text, str) else None

    def _chunk(self, update: AgentMessageChunk | AgentThoughtChunk) -> list[OutputEvent]:
        kind = AgentToken if isinstance(update, AgentMessageChunk) else Thinking
        return self._text(kind, text_of_block(update.content), update.message_id)

    def _text(self, kind: type[AgentToken] | type[Thinking], text: str, message_id: str | None) -> list[OutputEvent]:
        if not text:
            return []
        end: list[OutputEvent] = []
        if message_id != self._message_id:
            end = [MessageEnd()] if self._message_id is not None else []
            self._message_id = message_id
        return [*end, kind(text=text)]


class SessionCost:
    """What the runs of a session cost, by the agent's reports of what the session has cost so far.

    `known` has the last reports of the sessions of all processes, by their ids: the count of claude-agent-acp (0.101) goes on
    over restarts. The first report of a `resumed` session that is not known counts for no run.
    """

    def __init__(self, known: MutableMapping[str, float], resumed: str | None) -> None:
        self._known, self._id = known, resumed
        self._before: float | None = known.get(resumed) if resumed is not None else 0.0
        self._now: float | None = None

    def opened(self, session_id: str | None) -> None:
        """The session has this id."""
        self._id = session_id

    def report(self, update: Any) -> None:
        """Read a parsed update. Amounts in other currencies than US dollars are ignored."""
        cost = update.cost if isinstance(update, UsageUpdate) else None
        if cost is not None and cost.currency == "USD":
            self._now = cost.amount
            if self._before is None or self._now < self._before:
                # Not known, or a count that has begun anew.
                self._before = cost.amount if self._before is None else 0.0

    def take(self) -> float | None:
        """The cost since the last call, in US dollars; None if the agent has reported none."""
        if self._now is None or self._before is None:
            return None
        cost, self._before, self._now = max(0.0, self._now - self._before), self._now, None
        if self._id is not None:
            self._known.pop(self._id, None)
            self._known[self._id] = self._before
            if len(self._known) > MAX_KNOWN_COSTS:
                del self._known[next(iter(self._known))]
        return cost


class SessionUpdates:
    """The slash commands and the title of the session, each reported when it has changed; `session` keeps the commands."""

    def __init__(self, session: SessionState, profile: AgentProfile) -> None:
        self._session, self._profile = session, profile
        self._deduplicator = Deduplicator()

    def read(self, update: Mapping[str, Any]) -> list[OutputEvent]:
        """The events of one of SESSION_UPDATES."""
        if update["sessionUpdate"] == "session_info_update":
            # An omitted title is unchanged; null removes it.
            return self._deduplicator.changed(Title(text=update["title"])) if "title" in update else []
        found = tuple(command for command in _commands(update) if self._profile.is_command(command.name))
        self._session.commands = found
        return self._deduplicator.changed(Commands(commands=found)) if self._profile.slash_commands else []


def notice_of(update: Mapping[str, Any]) -> Notice:
    """Read an update of the kind `notice`, which the models of the package acp (0.12.1) lack."""
    severity = update.get("severity")
    text = "\n".join(str(part) for part in (update.get("title"), update.get("description")) if part)
    return Notice(severity=severity if severity in ("info", "warning", "error") else "info", text=text)


def _plan(update: AgentPlanUpdate) -> Plan:
    return Plan(entries=tuple(PlanEntry(content=e.content, priority=e.priority, status=e.status) for e in update.entries))


def _commands(update: Mapping[str, Any]) -> list[SlashCommand]:
    found = AvailableCommandsUpdate.model_validate(update).available_commands
    return [SlashCommand(name=c.name, description=c.description, hint=c.input.root.hint if c.input else None) for c in found]
