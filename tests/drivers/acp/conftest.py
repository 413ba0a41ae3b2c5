"""Opens tests.support.acp_agent with the acp driver and the real process runner."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivers.acp.driver import AcpDriver
from drivers.contract.agent_specs import SessionSpec
from drivers.contract.driver_info import ToolGrant
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Spawner
from tests.drivers.acp.small_agent import LIMITS, MARK, Open, agent_args, environment
from tests.drivers.small_programs import marked


@pytest.fixture
async def open_agent(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens agents with the given options and grants ("execute!" is a trusted one); closes them after the test."""
    opened: list[CliAgent] = []

    async def start(*grants: str, flags: str = "", **fields: Any) -> CliAgent:
        tools = tuple(ToolGrant(grant.rstrip("!"), grant.endswith("!")) for grant in grants)
        env = environment(tmp_path, flags)
        options = fields.pop("options", {})
        spec = SessionSpec(sys.executable, tmp_path / "work", env, agent_args(), options, tools=tools, **fields)
        agent = await AcpDriver().open(spec, Spawner(MARK), LIMITS)
        assert isinstance(agent, CliAgent)
        opened.append(agent)
        return agent

    yield start
    for agent in opened:
        await agent.close()
    assert not marked(MARK)
