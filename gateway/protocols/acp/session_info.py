"""Updates about a session apart from its runs: mode, config options, slash commands and title.

Protocol pages: https://agentclientprotocol.com/protocol/slash-commands, session-modes and session-config-options beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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

from drivers.contract.driver_info import Probe
from drivers.contract.events import Commands, SlashCommand, Title
from gateway.protocols.acp.modes_and_config_options import commands_enabled, config_options, mode_of, modes
from gateway.runs.session_metadata import SessionMetadata, stored_metadata, title_line, title_of_prompt
from gateway.sessions.session import Session
from gateway.store import Store


class SessionInfoUpdates:
    """The updates of one session for one client. It remembers what was sent, and returns only changes.

    `probe` is what the agent's program reports about itself: models and slash commands.
    """

    def __init__(self, session: Session, probe: Probe, store: Store) -> None:
        self.models: Sequence[str] = probe.models
        self._session, self._store = session, store
        self._probe_commands = probe.commands
        self._metadata = SessionMetadata()
        self._prompt_title: str | None = None
        self._known_title: str | None = None
        self._sent_commands: tuple[SlashCommand, ...] = ()
        self._sent_settings = self._settings()

    def update_probe(self, probe: Probe) -> None:
        """Replace what the agent's program reports about itself."""
        self.models, self._probe_commands = probe.models, probe.commands

    async def load_metadata(self) -> None:
        """Load the title and the commands that the agent has reported for the session."""
        self._metadata = await stored_metadata(self._store, self._session.id)

    async def open(self) -> None:
        """Load what is stored of a session that has a past, and count its title as known."""
        await self.load_metadata()
        self._known_title = self._own_title

    def settings(self) -> dict[str, Any]:
        """Return the modes and config options for an answer, and count them as sent."""
        self._sent_settings = self._settings()
        return {"modes": modes(self._session.agent, self._session.config), "config_options": self._sent_settings[1] or None}

    def changes(self) -> list[BaseModel]:
        """Return the updates about mode, options and commands that differ from what was sent, and count them as sent."""
        updates: list[BaseModel] = []
        before, self._sent_settings = self._sent_settings, self._settings()
        mode, options = self._sent_settings
        if before[0] != mode:
            updates.append(CurrentModeUpdate(session_update="current_mode_update", current_mode_id=mode))
        if before != self._sent_settings:
            updates.append(ConfigOptionUpdate(session_update="config_option_update", config_options=options))
        commands = self._commands()
        if commands != self._sent_commands:
            self._sent_commands = commands
            updates.append(commands_update(commands))
        return updates

    def of_event(self, event: Commands | Title) -> list[BaseModel]:
        """Return the updates for what the agent reports about the session."""
        if isinstance(event, Commands):
            self._metadata = replace(self._metadata, commands=event.commands)
            return self.changes()
        self._metadata = replace(self._metadata, title=title_line(event))
        self._known_title = self._own_title
        return [SessionInfoUpdate(session_update="session_info_update", title=self.title)]

    def record_prompt(self, content: Any) -> None:
        """Make the title from the content of the first prompt. A title of the user or of the agent takes precedence."""
        self._prompt_title = self._prompt_title or title_of_prompt(content)

    @property
    def title(self) -> str | None:
        return self._own_title or self._prompt_title

    @property
    def _own_title(self) -> str | None:
        """The title that the user or the agent has given the session."""
        return self._metadata.chosen_title or self._metadata.title

    def title_change(self) -> list[BaseModel]:
        """Return the update for a title of the user or the agent that the client does not know; none if it knows it."""
        return [self.info()] if self._own_title != self._known_title else []

    def info(self) -> SessionInfoUpdate:
        """Return the update with the title and the current time, and count the title as known."""
        self._known_title = self._own_title
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return SessionInfoUpdate(session_update="session_info_update", title=self.title, updated_at=now)

    async def cost(self) -> float | None:
        """Return what all ended runs of the session cost, in US dollars; None where the agent has not reported it."""
        details = (await self._store.sessions.details([self._session.id])).get(self._session.id)
        return details.usage.cost_usd if details is not None and details.usage is not None else None

    def _settings(self) -> tuple[str, list[Any]]:
        session = self._session
        return mode_of(session.agent, session.config), config_options(session.agent, session.config, self.models)

    def _commands(self) -> tuple[SlashCommand, ...]:
        """Return the commands that the agent has reported for the session; before that, those of the probe."""
        if not commands_enabled(self._session.agent, self._session.config):
            return ()
        return self._probe_commands if self._metadata.commands is None else self._metadata.commands


def commands_update(commands: Sequence[SlashCommand]) -> AvailableCommandsUpdate:
    """Return the update with the complete list of slash commands."""
    available = [
        AvailableCommand(
            name=command.name,
            description=command.description,
            input=AvailableCommandInput(root=UnstructuredCommandInput(hint=command.hint)) if command.hint else None,
        )
        for command in commands
    ]
    return AvailableCommandsUpdate(session_update="available_commands_update", available_commands=available)
