"""How the real claude is found, asked for its version, and missed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.daemon import KEY, Running
from tests.real.conftest import BIN, Home
from tests.real.models import Model
from tests.real.processes import of_home, until
from tests.real.talk import begin, user

PACKAGE = json.loads((Path(__file__).parent / "package.json").read_text())
PINNED = PACKAGE["dependencies"]["@anthropic-ai/claude-code"]


async def _agents(portico: Running) -> dict[str, dict[str, Any]]:
    answer = (await portico.client.get("/meta")).json()
    assert answer["version"] == 1
    return {agent["name"]: agent for agent in answer["agents"]}


async def test_meta_has_the_version_of_the_real_program(portico: Running, home: Home, model: Model) -> None:
    asked = await asyncio.create_subprocess_exec(
        BIN / "claude", "--version", env=home.env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    received_text, _ = await asked.communicate()
    claude = (await _agents(portico))["claude"]
    assert claude["version"] == PINNED == received_text.decode().split()[0]
    assert model.requests == [], "to know the version costs no request"
    await until(lambda: of_home(home.path) == [], "the probe has ended")


async def test_meta_offers_what_a_session_has(portico: Running, model: Model) -> None:
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
        "cwd": "text",
    }
    await begin(portico.client, "[[plain]] hello")
    assert model.asked().get("tools", []) == []


async def test_every_default_of_meta_can_be_sent_back(portico: Running) -> None:
    claude = (await _agents(portico))["claude"]
    await begin(portico.client, "[[plain]] hello", **{option["name"]: option["default"] for option in claude["options"]})


async def test_a_cli_that_is_not_on_path_is_not_offered_and_says_what_to_do(home: Home, model: Model) -> None:
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
        assert list(home.work.iterdir()) == list(home.path.iterdir()) == [] == of_home(home.path)
        # What was refused was not begun: with the CLI in its place the same key runs.
        (home.work / "claude").symlink_to(BIN / "claude")
        body = {"driver": "claude", "task": "[[plain]]", "idempotency_key": "once"}
        assert "Hello from t" in (await portico.client.post("/v1/execute", json=body)).text
        assert "claude" in await _agents(portico)


async def test_a_session_whose_cli_was_removed_waits_for_it(home: Home) -> None:
    program = home.base / "bin" / "claude"
    program.parent.mkdir()
    program.symlink_to(BIN / "claude")
    home.agent["program"] = str(program)
    daemon = await home.daemon()
    async with daemon.client() as client:
        talk = await begin(client, "[[plain]] one")
    await daemon.stop()
    program.unlink()
    await daemon.start()
    async with daemon.client() as client:
        answer = await client.post(f"/session/{talk.id}", json={"messages": [user("[[recall]]")]})
        assert answer.status_code == 503 and str(program) in answer.json()["error"]
        talk = talk.over(client)
        assert len(await talk.history()) == 2, "the message was not taken"
        program.symlink_to(BIN / "claude")
        assert await talk.send_turn("[[recall]]") == "I see 2 user texts. Before this one: [[plain]] one"


async def test_the_gateway_key_guards_the_real_agent(portico: Running, model: Model) -> None:
    body = {"agent": {"name": "claude"}, "messages": [user("hello")]}
    for header in ({"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}):
        assert (await portico.client.put("/session", json=body, headers=header)).status_code == 401
    assert model.requests == []


async def test_drivers_tells_the_login_and_the_models(home: Home, model: Model) -> None:
    (claude,) = await _states(home)
    assert (claude["offered"], claude["version"], claude["logged_in"]) == (True, PINNED, True)
    assert claude["program"] == str(BIN / "claude")
    assert "sonnet" in claude["models"]
    assert model.requests == []


async def test_a_cli_without_a_login_is_told_so(home: Home) -> None:
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
