"""A scenario that comes with the request of a client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.agents.configured_agents import Agents
from gateway.config import parse
from gateway.errors import InvalidSettings
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import expect_error, user_message

SESSIONS = "/aap/v3/sessions"


def agent(*steps: Any) -> dict[str, Any]:
    return {"name": "script", "options": {"scenario": json.dumps({"turns": [{"steps": steps}]})}}


async def test_a_client_brings_a_scenario_and_replaces_it(portico: RunningGateway) -> None:
    created = await portico.client.post(SESSIONS, json={"agent": agent({"text": "one"})})
    path = f"{SESSIONS}/{created.json()['sessionId']}/turns"

    async def turn(**fields: Any) -> str:
        answer = await portico.client.post(path, json={"messages": [user_message()], **fields})
        return str(answer.json()["messages"][-1]["content"])

    assert await turn() == "one"
    wrong = await expect_error(
        portico.client.post(path, json={"messages": [user_message()], "agent": agent({"env": "HOME"})}), 400
    )
    assert wrong.startswith("agent 'script': scenario: turns[0].steps[0].env: is possible in a scenario file only")
    assert await turn() == "one"
    assert await turn(agent={"options": agent({"text": "two"})["options"]}) == "two"


async def test_a_scenario_that_is_wrong_creates_no_session(portico: RunningGateway) -> None:
    wrong = await expect_error(portico.client.post(SESSIONS, json={"agent": agent({"txt": "one"})}), 400)
    assert wrong.startswith("agent 'script': scenario: turns[0].steps[0].txt: is not a step; possible are ")
    long = await expect_error(portico.client.post(SESSIONS, json={"agent": agent({"text": "x" * 65_536})}), 400)
    assert "options.scenario: " in long and "characters are too many" in long
    assert (await portico.client.get(SESSIONS)).json()["sessions"] == []


async def test_a_locked_scenario_stays_that_of_the_configuration(tmp_path: Path) -> None:
    entry = {"driver": "script", "locked": ["scenario"]}
    async with run_gateway(gateway_config(tmp_path, agents={"script": entry})) as portico:
        refused = await expect_error(portico.client.post(SESSIONS, json={"agent": agent({"text": "one"})}), 403)
    assert "option 'scenario' of agent 'script' is locked" in refused


def test_the_configuration_may_have_the_content_too(tmp_path: Path) -> None:
    def agents(*steps: Any) -> Agents:
        return Agents(parse({"agents": {"demo": {"driver": "script", "options": agent(*steps)["options"]}}}), {}, tmp_path)

    assert agents({"text": "hi"}).get("demo")
    with pytest.raises(InvalidSettings, match=r"agents\.demo\.options: agent 'demo': scenario: turns\[0\]\.steps\[0\]\.txt"):
        agents({"txt": "hi"})
