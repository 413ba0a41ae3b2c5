"""Gateway: everything that the protocols work with, opened and closed in the right order."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from pathlib import Path

from drivers.base import Limits
from drivers.process import Spawner
from gateway.agents import Agents
from gateway.config import Settings
from gateway.discovery import Discovery
from gateway.executions import Executions, forget_executions
from gateway.live_agent import House
from gateway.mcp.host import McpHost
from gateway.recovery import close_open_runs, end_left_behind
from gateway.redaction import Redactor
from gateway.security import Authenticator
from gateway.sessions import Sessions
from gateway.store import Store
from gateway.store.sqlite import sqlite_url
from gateway.vault import Vault, read_or_create

log = logging.getLogger(__name__)

GOING_DOWN = "the gateway was shut down in the middle of this run; send the message again when it is back"


class Gateway:
    """`await open()` before the first request, `await close()` after (or during) the last."""

    store: Store
    sessions: Sessions
    executions: Executions
    discovery: Discovery

    def __init__(self, settings: Settings, keys: tuple[str, ...], redactor: Redactor) -> None:
        self.settings = settings
        self.auth = Authenticator(keys)
        self.agents = Agents(settings)
        self.keep_alive = settings.server.keep_alive
        self.redactor = redactor
        redactor.register(keys)
        for agent in self.agents:
            redactor.register(agent.secrets)
        self._closed = False

    async def open(self) -> None:
        """Open the store, end what a killed daemon left behind, and be ready for requests."""
        settings, data_dir = self.settings, self.settings.data_dir
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.store = await Store.open(settings.store.url or sqlite_url(data_dir))
        instance = _instance(data_dir)
        await end_left_behind(self.store, instance)
        closed = await close_open_runs(self.store)
        if closed:
            log.warning("%d runs were under way when the gateway was stopped; they ended with an error", closed)
        await self.store.forget_executions(time.time() - settings.store.keep_executions_days * 86400)
        spawner = Spawner(instance, self.store)
        chosen = settings.limits
        limits = Limits(chosen.start, chosen.idle, chosen.total, chosen.grace)
        states = data_dir / "state"
        await asyncio.to_thread(forget_executions, states)
        self._mcp = McpHost(self.redactor)
        house = House(self.store, Vault(data_dir), self.redactor, spawner, limits, states, self._mcp.open)
        self.sessions = Sessions(self.agents, house)
        self.sessions.sleep_after, self.sessions.live_agents = chosen.sleep_after, chosen.live_agents
        self.executions = Executions(self.agents, self.store, self.redactor, spawner, limits, states)
        self.discovery = Discovery(self.agents, spawner, data_dir / "discovery.json", self.redactor)
        self.discovery.begin()

    async def stop_runs(self) -> None:
        """End every run with a clean error, so that its readers see how it ends, and every agent."""
        await asyncio.gather(self.sessions.close(GOING_DOWN), self.executions.close(GOING_DOWN), self.discovery.close())

    async def close(self) -> None:
        """Stop what still runs and close the store. Idempotent."""
        if not self._closed:
            self._closed = True
            await self.stop_runs()
            await self._mcp.close()
            await self.store.close()


def _instance(data_dir: Path) -> str:
    """This data directory's name among the processes of the machine."""
    return read_or_create(data_dir / "instance-id", lambda: uuid.uuid4().hex)
