"""`GET /meta`: what it says of each agent. Its shape is in tests/documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema

from drivers.contract.driver_info import Option, Probe
from gateway.agents.configured_agents import Agents
from gateway.config import parse
from gateway.security.authentication import ADMINISTRATOR
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import expect_error, session_body


async def _agents(portico: RunningGateway) -> dict[str, dict[str, Any]]:
    return {agent["name"]: agent for agent in (await portico.client.get("/meta")).json()["agents"]}


async def test_meta_lists_agents_capabilities_and_options(portico: RunningGateway) -> None:
    agents = await _agents(portico)
    assert agents["script"]["capabilities"] == {
        "history": {"compacted": {}, "full": {}},
        "stream": {"delta": {}, "message": {}, "none": {}},
        "application": {"tools": {}},
        "image": {"http": {}, "data": {}},
        "x-portico": {"cancel": {}, "events": {}, "queue": {}, "steer": {}},
    }
    assert {tool["name"] for tool in agents["script"]["tools"]} == {"lookup", "write_note", "shell"}
    for tool in agents["script"]["tools"]:
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
    assert "application" not in agents["echo"]["capabilities"]
    assert "image" not in agents["echo"]["capabilities"]
    # Options have the three types.
    options = {option["name"]: option for option in (await _agents(portico))["script"]["options"]}
    assert {name: option["type"] for name, option in options.items()} == {
        "scenario": "text",
        "pace": "select",
        "token": "secret",
        "cwd": "text",
    }
    assert options["pace"]["options"] == ["recorded", "fast"]
    assert options["pace"]["default"] == "recorded"
    # Secret that was never set is empty.
    for given, shown in (({"token": ""}, {"token": ""}), ({"token": "tok-1234"}, {"token": "***"})):
        body = {"agent": {"name": "script", "options": given}}
        session = (await portico.client.post("/aap/v3/sessions", json=body)).json()["sessionId"]
        assert (await portico.client.get(f"/aap/v3/sessions/{session}")).json()["agent"]["options"] == shown


async def test_the_configuration_sets_titles_and_defaults(tmp_path: Path) -> None:
    # The configuration sets names and defaults.
    entry = {
        "driver": "script",
        "title": "My demo",
        "description": "For me.",
        "options": {"pace": "fast", "token": "configured-secret"},
    }
    async with run_gateway(gateway_config(tmp_path, agents={"demo": entry})) as portico:
        demo = (await _agents(portico))["demo"]
    options = {option["name"]: option["default"] for option in demo["options"]}
    assert (demo["title"], demo["description"]) == ("My demo", "For me.")
    assert options["pace"] == "fast"
    assert options["token"] == "***"
    # Agents without a title are named by their entries.
    entries = {"one": {"driver": "script"}, "two": {"driver": "script"}}
    async with run_gateway(gateway_config(tmp_path, agents=entries)) as portico:
        found = await _agents(portico)
    assert {name: agent["title"] for name, agent in found.items() if name in ("one", "two", "script", "echo")} == {
        "one": "one",
        "two": "two",
        "script": "Script",
        "echo": "Echo",
    }


def test_agents_for_tests_come_last() -> None:
    drivers = {"demo": "script", "reviewer": "claude", "codex": "codex", "echo": "echo"}
    agents = Agents(parse({"agents": {name: {"driver": driver} for name, driver in drivers.items()}}))
    assert [agent.name for agent in agents] == ["reviewer", "codex", "claude", "gemini", "demo", "echo"]


async def test_unknown_agent_is_an_error_that_names_those_of_meta(tmp_path: Path) -> None:
    missing = {"driver": "claude", "program": "/nowhere/claude"}
    entries = {"away": missing, "out": {"driver": "script"}}
    async with run_gateway(gateway_config(tmp_path, agents=entries)) as portico:
        known = list(await _agents(portico))
        # A program that is found, and that the CLI reports not to be logged in.
        portico.gateway.agents.get("out").apply_probe(Probe(logged_in=False))
        text = await expect_error(portico.client.put("/session", json=session_body("nothing")), 400)
    assert "away" not in known and known[-1] == "echo"
    assert text == f"there is no agent 'nothing' here; choose from: {', '.join(name for name in known if name != 'out')}"


async def test_empty_value_of_a_select_has_a_name(portico: RunningGateway) -> None:
    for models, name in ((("sonnet", "opus"), "default"), (("default", "opus"), "CLI default")):
        await _agents(portico)
        options = (
            Option("model", "Model", "A model."),
            Option("effort", "Effort", "An effort."),
            Option("mode", "Mode", "A mode.", choices=("", "plan")),
        )
        portico.gateway.agents.get("script").apply_probe(Probe(options=options, models=models, efforts=("low", "high")))
        found = {option["name"]: option for option in (await _agents(portico))["script"]["options"]}
        assert (found["model"]["options"], found["model"]["default"]) == ([name, *models], name), (models, name)
        assert (found["effort"]["options"], found["effort"]["default"]) == (["default", "low", "high"], "default"), (models, name)
        assert (found["mode"]["options"], found["mode"]["default"]) == (["default", "plan"], "default"), (models, name)
        # As UIs do that have a form with all options.
        defaults = {option["name"]: option["default"] for option in found.values()}
        created = await portico.client.post("/aap/v3/sessions", json={"agent": {"name": "script", "options": defaults}})
        assert created.status_code == 201, created.text
        session = await portico.gateway.sessions.get(ADMINISTRATOR, created.json()["sessionId"])
        assert [session.config.options[name] for name in ("model", "effort", "mode")] == ["", "", ""], (models, name)
        shown = (await portico.client.get(f"/aap/v3/sessions/{session.id}")).json()["agent"]["options"]
        assert shown == defaults, (models, name)
