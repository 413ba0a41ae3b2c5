"""`GET /v1/diagnosis`: the daemon reports about itself and its agents what `portico doctor` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.diagnosis.report import Report
from tests.support.daemon import Daemon, RunningGateway, gateway_config, http_client, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import expect_error


async def diagnosis(running: RunningGateway, query: str = "") -> dict[str, Any]:
    answer = await running.client.get(f"/v1/diagnosis{query}")
    assert answer.status_code == 200, answer.text
    found = dict(answer.json())
    assert found.pop("problems") == Report.model_validate(found).problems
    return found


def checks(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["status"], one["text"]) for one in found["checks"]}


async def test_daemon_and_agents_are_checked_and_tried(portico: RunningGateway) -> None:
    # Daemon and agents are checked.
    found = await diagnosis(portico)
    by_name = checks(found)
    assert {"Portico", "Configuration", "Data folder", "Disk", "Key", "Daemon", "Sandbox", "Proxy"} <= by_name.keys()
    assert by_name["Daemon"][0] == "ok" and "running" in by_name["Daemon"][1]
    agents = {agent["state"]["name"]: agent for agent in found["agents"]}
    assert agents["script"]["check"]["status"] == "ok" and agents["script"]["trial"] is None
    # Agents are tried on request.
    found = await diagnosis(portico, "?try=true")
    trial = next(agent["trial"] for agent in found["agents"] if agent["state"]["name"] == "echo")
    assert trial["error"] is None and trial["answer"]


async def test_secrets_are_not_in_the_answer(tmp_path: Path) -> None:
    secret = "sk-secret-0123456789abcdef"
    agent = {"driver": "acp", "program": "/nowhere/agent", "args": [secret], "env": {"AGENT_API_KEY": secret}}
    names = ("broken", "keyed")
    async with run_gateway(gateway_config(tmp_path, agents=dict.fromkeys(names, agent))) as running:
        answer = await running.client.get("/v1/diagnosis")
        assert answer.status_code == 200
        assert secret not in answer.text and "test-key-0123456789" not in answer.text
        checks_of = {one["state"]["name"]: one["check"]["status"] for one in answer.json()["agents"]}
        assert [checks_of[name] for name in names] == ["problem", "problem"]


async def test_changed_or_broken_configuration_is_reported(daemon: Daemon) -> None:
    await daemon.start()
    async with http_client(daemon.url) as client:

        async def configuration() -> tuple[str, str]:
            answer = await client.get("/v1/diagnosis")
            assert answer.status_code == 200, answer.text
            return checks(answer.json())["Configuration"]

        assert (await configuration())[0] == "ok"
        text = daemon.config.read_text()
        daemon.config.write_text(text.replace("grace = 1.0", "grace = 2.0"))
        status, why = await configuration()
        assert status == "warning" and "has changed" in why
        daemon.config.write_text("[server\n")
        status, why = await configuration()
        assert status == "problem" and "is not TOML" in why


async def test_named_key_may_not_diagnose(portico: RunningGateway) -> None:
    async with http_client(portico.url) as phone:
        phone.headers["authorization"] = f"Bearer {await add_key(portico.gateway, 'phone')}"
        await expect_error(phone.get("/v1/diagnosis"), 403)
    await expect_error(portico.client.get("/v1/diagnosis?try=perhaps"), 400)
