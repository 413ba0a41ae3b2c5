"""Agents and tasks of the script driver, closed after the test."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.agent_specs import Limits, SessionSpec, TaskSpec
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Spawner
from drivers.script.driver import ScriptDriver
from tests.drivers.script.script_runs import LIMITS, Open
from tests.support.manual_clock import ManualClock


@pytest.fixture
async def open_agent(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Open]:
    """Opens agents on a scenario (a dict, a list of steps, or a file's name) and closes them after the test."""
    opened: list[CliAgent] = []

    async def start(scenario: Any = None, limits: Limits = LIMITS, **fields: Any) -> CliAgent:
        spec = SessionSpec(
            sys.executable, tmp_path, fields.pop("env", {}), options=_options(tmp_path, scenario, fields), **fields
        )
        agent = await ScriptDriver().open(spec, Spawner(clock=clock), limits)
        assert isinstance(agent, CliAgent)
        opened.append(agent)
        return agent

    yield start
    for agent in opened:
        await agent.close(0.0)


@pytest.fixture
async def execute(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Open]:
    """Starts one-shot tasks on a scenario."""
    opened: list[CliAgent] = []

    async def start(scenario: Any, task: str = "do it", limits: Limits = LIMITS, **fields: Any) -> CliAgent:
        spec = TaskSpec(sys.executable, tmp_path, {}, options=_options(tmp_path, scenario, fields), task=task, **fields)
        agent = await ScriptDriver().execute(spec, Spawner(clock=clock), limits)
        assert isinstance(agent, CliAgent)
        opened.append(agent)
        return agent

    yield start
    for agent in opened:
        await agent.close(0.0)


def _options(folder: Path, scenario: Any, fields: dict[str, Any]) -> dict[str, str]:
    options = dict(fields.pop("options", {}))
    if isinstance(scenario, list):
        scenario = {"turns": [{"steps": scenario}]}
    if isinstance(scenario, dict):
        (folder / "scenario.json").write_text(json.dumps(scenario))
        scenario = "scenario.json"
    return options | ({"scenario": scenario} if scenario else {})
