"""The discovery of the real claude: its version, its options, and errors if it is missing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.real.aap_client import create_session, user
from tests.real.clis import BIN
from tests.real.conftest import Home
from tests.real.models import Model
from tests.real.processes import processes_of
from tests.support.daemon import KEY, RunningGateway
from tests.support.waiting import wait_until

PACKAGE = json.loads((Path(__file__).parent / "package.json").read_text())
PINNED = PACKAGE["dependencies"]["@anthropic-ai/claude-code"]


async def _agents(portico: RunningGateway) -> dict[str, dict[str, Any]]:
    answer = (await portico.client.get("/meta")).json()
    assert answer["version"] == 1
    return {agent["name"]: agent for agent in answer["agents"]}


async def test_meta_has_the_version_of_the_real_program(portico: RunningGateway, home: Home, model: Model) -> None:
    process = await asyncio.create_subprocess_exec(
        BIN / "claude", "--version", env=home.env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    claude = (await _agents(portico))["claude"]
    assert claude["version"] == PINNED == printed.decode().split()[0]
    assert model.requests == [], "the probe makes no model request"
    await wait_until(lambda: processes_of(home.path) == [], "the probe has ended")


async def test_meta_lists_the_tools_capabilities_and_options(portico: RunningGateway, model: Model) -> None:
    claude = (await _agents(portico))["claude"]
    assert {"Bash", "Read", "Write", "Edit", "WebFetch", "Agent"} <= {tool["name"] for tool in claude["tools"]}
    assert claude["capabilities"] == {
        "history": {"compacted": {}, "full": {}},
        "stream": {"delta": {}, "message": {}, "none": {}},
        "application": {"tools": {}},
        "image": {"http": {}, "data": {}},
        "x-portico": {"cancel": {}, "events": {}, "queue": {}, "steer": {}},
    }
    assert {option["name"]: option["type"] for option in claude["options"]} == {
        "model": "select",
        "api_key": "secret",
        "system_prompt": "select",
        "settings": "select",
        "slash_commands": "select",
        "mode": "select",
        "effort": "select",
        "fast": "select",
        "cwd": "text",
    }
    await create_session(portico.client, "[[plain]] hello")
    assert model.last_request().get("tools", []) == []


async def test_a_missing_cli_is_not_listed_and_its_error_names_the_remedy(home: Home, model: Model) -> None:
    home.env["PATH"] = str(home.work)
    async with home.gateway() as portico:
        assert "claude" not in await _agents(portico)
        answers = [
            await portico.client.put("/session", json={"agent": {"name": "claude"}, "messages": [user("hello")]}),
            await portico.client.post("/v1/execute", json={"driver": "claude", "task": "hello", "idempotency_key": "once"}),
        ]
        for answer in answers:
            assert answer.status_code == 503
            assert "npm install -g @anthropic-ai/claude-code" in answer.json()["error"]
            assert "agents.claude.program" in answer.json()["error"]
        assert (await portico.client.get("/sessions")).json() == {"sessions": []}
        assert list(home.work.iterdir()) == list(home.path.iterdir()) == [] == processes_of(home.path)
        # The rejected request did not use the key: it runs once the CLI is installed.
        (home.work / "claude").symlink_to(BIN / "claude")
        body = {"driver": "claude", "task": "[[plain]]", "idempotency_key": "once"}
        assert "Hello from t" in (await portico.client.post("/v1/execute", json=body)).text
        assert "claude" in await _agents(portico)


async def test_a_session_whose_cli_was_removed_works_after_it_is_installed_again(home: Home) -> None:
    program = home.base / "bin" / "claude"
    program.parent.mkdir()
    program.symlink_to(BIN / "claude")
    home.agent["program"] = str(program)
    daemon = await home.daemon()
    async with daemon.client() as client:
        aap = await create_session(client, "[[plain]] one")
    await daemon.stop()
    program.unlink()
    await daemon.start()
    async with daemon.client() as client:
        answer = await client.post(f"/session/{aap.id}", json={"messages": [user("[[recall]]")]})
        assert answer.status_code == 503 and str(program) in answer.json()["error"]
        aap = aap.with_client(client)
        assert len(await aap.history()) == 2, "the message was not accepted"
        program.symlink_to(BIN / "claude")
        assert await aap.send_turn("[[recall]]") == "I see 2 user texts. Before this one: [[plain]] one"


async def test_requests_without_a_valid_key_do_not_reach_the_agent(portico: RunningGateway, model: Model) -> None:
    body = {"agent": {"name": "claude"}, "messages": [user("hello")]}
    for header in ({"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}):
        assert (await portico.client.put("/session", json=body, headers=header)).status_code == 401
    assert model.requests == []


async def test_drivers_lists_the_login_and_the_models(home: Home, model: Model) -> None:
    (claude,) = await _states(home)
    assert (claude["offered"], claude["version"], claude["logged_in"]) == (True, PINNED, True)
    assert claude["program"] == str(BIN / "claude")
    assert "sonnet" in claude["models"]
    assert model.requests == []


async def test_a_cli_without_a_login_has_a_problem_that_names_the_remedy(home: Home) -> None:
    del home.env["ANTHROPIC_API_KEY"]
    (claude,) = await _states(home)
    assert (claude["installed"], claude["offered"], claude["logged_in"]) == (True, False, False)
    assert "not logged in" in claude["problem"] and "agents.claude.options.api_key" in claude["problem"]
    home.agent["options"] = {"api_key": "sk-ant-option-0123456789"}
    (claude,) = await _states(home)
    assert (claude["offered"], claude["logged_in"], claude["problem"]) == (True, True, None)


async def _states(home: Home) -> list[dict[str, Any]]:
    async with home.gateway() as portico:
        drivers = (await portico.client.get("/v1/drivers")).json()["drivers"]
    return next(driver["agents"] for driver in drivers if driver["driver"] == "claude")
