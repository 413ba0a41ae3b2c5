"""LiveAgent: the agent process of a session. It is started, resumed or seeded when needed, kept between turns, and ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from drivers.contract.agent import Agent
from drivers.contract.agent_specs import SessionSpec
from drivers.contract.client_services import ClientServices
from drivers.contract.errors import AgentUnavailable, ResumeFailed
from drivers.contract.messages import Message, SystemMessage
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import AgentProblem
from gateway.sessions.settings import SessionSettings
from gateway.shared_services import SharedServices

log = logging.getLogger(__name__)


class LiveAgent:
    """`current` is the process, if there is one. The methods are called under the session's lock."""

    def __init__(
        self, session_id: str, agent: ConfiguredAgent, native_id: str | None, shared: SharedServices, services: ClientServices
    ) -> None:
        self.current: Agent | None = None
        self._settings: SessionSettings | None = None
        self._announced: frozenset[str] = frozenset()
        self._session_id, self._agent, self._shared, self._services = session_id, agent, shared, services
        self._native_id = native_id
        self._metrics = shared.metrics.for_agent(agent.name)
        self._started_before = native_id is not None
        self._spawner = shared.transcripts.spawner(shared.spawner, session_id, agent)
        self._forgetting: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None

    def ready(self, settings: SessionSettings) -> Agent | None:
        """The process, where it can take a prompt as it is: it lives, and was started with these settings and client services."""
        if self.current is None or not self.current.alive:
            return None
        return self.current if self._settings == settings and self._announced == self._client_services else None

    async def start(self, settings: SessionSettings, history: Sequence[Message], *, resume: bool) -> Agent:
        """A fresh process that resumes the CLI's own session, or is seeded with the history. Raises AgentProblem.

        Without `resume` it is always a fresh native session that is seeded.
        """
        await self.end()
        await self.forgotten()
        self._forgetting = None
        self._settings, self._announced = settings, self._client_services
        try:
            self.current = await self._open(self._spec(settings, history), resume)
        except AgentUnavailable as error:
            self._metrics.failed_to_start()
            raise AgentProblem(self._shared.redactor.clean(f"agent {self._agent.name!r} cannot start: {error}")) from error
        await self._store_native_id(self.current)
        return self.current

    async def end(self) -> None:
        """End the process, if there is one; what is needed to resume its session is kept."""
        agent, self.current = self.current, None
        if agent is not None:
            await self._store_native_id(agent)
            await agent.close()

    def forget(self) -> None:
        """The process has ended before or during a run: its CLI may have kept less of that run than the history has, or more.

        So the native session is not resumed: the next one is seeded, where the agent can be given a history.
        """
        if self._agent.info.seeds and self._forgetting is None:
            self._native_id = None
            update = self._shared.store.sessions.update(self._session_id, native_id=None)
            self._forgetting = asyncio.create_task(_after(self._recording, update))

    def record_native_id(self) -> None:
        """Store the native id as it is after a run: a CLI with one process a turn reports it in its first."""
        if self._forgetting is None and self.current is not None and self.current.native_id not in (None, self._native_id):
            self._native_id = self.current.native_id
            update = self._shared.store.sessions.update(self._session_id, native_id=self._native_id)
            self._recording = asyncio.create_task(_after(self._recording, update))

    async def forgotten(self) -> None:
        """Wait until the store has what `forget` and `record_native_id` changed."""
        for storing in (self._recording, self._forgetting):
            if storing is not None:
                await storing

    async def _store_native_id(self, agent: Agent) -> None:
        if self._forgetting is None and agent.native_id and agent.native_id != self._native_id:
            self._native_id = agent.native_id
            await self._shared.store.sessions.update(self._session_id, native_id=self._native_id)

    async def _open(self, spec: SessionSpec, resume: bool) -> Agent:
        if self._native_id is not None and resume:
            try:
                return await self._launch(replace(spec, resume=self._native_id, history=()))
            except ResumeFailed:
                log.info("session %s: its native session is gone, a fresh one is seeded with the history", self._session_id)
        return await self._launch(spec)

    async def _launch(self, spec: SessionSpec) -> Agent:
        agent = await self._agent.driver.open(spec, self._spawner, self._shared.limits)
        self._metrics.started(spec, again=self._started_before)
        self._started_before = True
        return agent

    @property
    def _client_services(self) -> frozenset[str]:
        """The services of the session's client, where the CLI must know them from its start."""
        return self._services.supported_methods() if self._agent.info.asks_client else frozenset()

    def _spec(self, settings: SessionSettings, history: Sequence[Message]) -> SessionSpec:
        base = self._agent.spec({**settings.options, **settings.secrets})
        system = "\n\n".join(message.content for message in history if isinstance(message, SystemMessage))
        return SessionSpec(
            base.program,
            base.cwd,
            base.env,
            base.args,
            base.options,
            self._shared.states / self._session_id,
            system=system or None,
            tools=self._agent.policy.effective_grants(settings.tools or ()),
            app_tools=settings.app_tools or (),
            mcp_servers=settings.mcp_servers,
            history=tuple(message for message in history if not isinstance(message, SystemMessage)),
            tool_host=self._shared.tool_host,
            services=self._services,
            additional_directories=self._agent.additional_directories(settings.additional_directories),
        )


async def _after(earlier: asyncio.Task[None] | None, update: Coroutine[Any, Any, None]) -> None:
    if earlier is not None:
        await asyncio.wait([earlier])
    await update
