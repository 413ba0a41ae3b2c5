"""What a client is told of a session beside its runs: its mode and config options, its slash commands, its title."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from acp.schema import (
    AvailableCommand,
    AvailableCommandInput,
    AvailableCommandsUpdate,
    BaseModel,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    SessionInfoUpdate,
    UnstructuredCommandInput,
)

from drivers.contract.events import Commands, SlashCommand, Title
from drivers.contract.info import Probe
from drivers.contract.messages import text_of
from gateway.protocols.acp.options import config_options, mode_of, modes, takes_commands
from gateway.runs.session_metadata import SessionMetadata, stored_metadata, title_line
from gateway.sessions.session import Session
from gateway.store import Store

MADE_TITLE_AT_MOST = 80


class SessionInfoUpdates:
    """One session's, for one client; it knows what that has been told. `found` is what the agent's program says of itself."""

    def __init__(self, session: Session, found: Probe, store: Store) -> None:
        self.models: Sequence[str] = found.models
        self._session, self._store = session, store
        self._found_commands = found.commands
        self._notes = SessionMetadata()
        self._first_words: str | None = None
        self._told_commands: tuple[SlashCommand, ...] = ()
        self._told = self._settings()

    def hear_of_program(self, found: Probe) -> None:
        """Its program has answered at last."""
        self.models, self._found_commands = found.models, found.commands

    async def learn(self) -> None:
        """What the agent has told of the session so far."""
        self._notes = await stored_metadata(self._store, self._session.id)

    def settings(self) -> dict[str, Any]:
        """Modes and config options, for an answer."""
        self._told = self._settings()
        return {"modes": modes(self._session.agent.info, self._session.config), "config_options": self._told[1] or None}

    def news(self) -> list[BaseModel]:
        """What has changed of mode, options and commands since the client was told last."""
        found: list[BaseModel] = []
        before, self._told = self._told, self._settings()
        mode, options = self._told
        if before[0] != mode:
            found.append(CurrentModeUpdate(session_update="current_mode_update", current_mode_id=mode))
        if before != self._told:
            found.append(ConfigOptionUpdate(session_update="config_option_update", config_options=options))
        commands = self._commands()
        if commands != self._told_commands:
            self._told_commands = commands
            found.append(commands_update(commands))
        return found

    def heard(self, event: Commands | Title) -> list[BaseModel]:
        """The updates of what the agent tells of the session."""
        if isinstance(event, Commands):
            self._notes = SessionMetadata(self._notes.title, event.commands)
            return self.news()
        self._notes = SessionMetadata(title_line(event), self._notes.commands)
        return [SessionInfoUpdate(session_update="session_info_update", title=self.title)]

    def said(self, content: Any) -> None:
        """The user has said something; the first of it is a title, until the agent has a better one."""
        self._first_words = self._first_words or made_title(content)

    @property
    def title(self) -> str | None:
        return self._notes.title or self._first_words

    def info(self) -> SessionInfoUpdate:
        """The title, and that the session was used just now."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return SessionInfoUpdate(session_update="session_info_update", title=self.title, updated_at=now)

    def _settings(self) -> tuple[str, list[Any]]:
        session = self._session
        return mode_of(session.agent.info, session.config), config_options(session.agent, session.config, self.models)

    def _commands(self) -> tuple[SlashCommand, ...]:
        """The session's own; before it has told them, those that its agent's program tells wherever it is asked."""
        if not takes_commands(self._session.agent, self._session.config):
            return ()
        return self._found_commands if self._notes.commands is None else self._notes.commands


def commands_update(commands: Sequence[SlashCommand]) -> AvailableCommandsUpdate:
    found = [
        AvailableCommand(
            name=command.name,
            description=command.description,
            input=AvailableCommandInput(root=UnstructuredCommandInput(hint=command.hint)) if command.hint else None,
        )
        for command in commands
    ]
    return AvailableCommandsUpdate(session_update="available_commands_update", available_commands=found)


def made_title(content: Any) -> str | None:
    """A title for a session whose agent gives none: how its first prompt begins."""
    line = " ".join(text_of(content).split())
    return (line if len(line) <= MADE_TITLE_AT_MOST else line[: MADE_TITLE_AT_MOST - 1] + "…") or None
