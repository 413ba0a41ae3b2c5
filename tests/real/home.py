"""An empty home folder for a CLI, a working folder, the configuration of its agent, and gateways with this agent."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import write_config
from tests.support.daemon import Daemon, RunningGateway, gateway_config, run_gateway


@dataclass
class Home:
    """A home folder, the folder `work` and the agent `name`. Changes of `agent` apply to gateways that are started afterwards."""

    name: str
    path: Path
    work: Path
    base: Path
    agent: dict[str, Any]
    daemons: list[Daemon] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        found: dict[str, str] = self.agent["env"]
        return found

    def config(self, **tables: Any) -> dict[str, Any]:
        """A gateway's configuration with this agent."""
        agents = {self.name: self.agent, **tables.pop("agents", {})}
        limits = {"start": 120.0, **tables.pop("limits", {})}
        return gateway_config(self.base, agents=agents, limits=limits, **tables)

    @asynccontextmanager
    async def gateway(self, **tables: Any) -> AsyncIterator[RunningGateway]:
        """A gateway in this process."""
        async with run_gateway(self.config(**tables)) as running:
            running.client.timeout = httpx.Timeout(120)
            yield running

    async def daemon(self, env: dict[str, str] | None = None, **tables: Any) -> Daemon:
        """Start a daemon in its own process. It is stopped after the test if it still runs."""
        daemon = Daemon(write_config(self.base, self.config(**tables)), self.base, env or {})
        self.daemons.append(daemon)
        return await daemon.start()

    def daemon_env(self) -> dict[str, str]:
        """The environment of a gateway process, with its own home folder."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.base), "LANG": "C.UTF-8"}
