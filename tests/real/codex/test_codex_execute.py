"""Tasks with the real codex by POST /v1/execute: events, errors, and tasks of any form and size."""

from __future__ import annotations

import pytest

from tests.model_server.openai import OpenAIServer
from tests.real.aap_client import of_kind
from tests.real.codex.aap_client import execute, message_texts
from tests.real.codex.conftest import Home
from tests.support.daemon import RunningGateway

PLAIN = "Hello from the model, this is plain text."


async def test_a_task_writes_files_only_if_the_sandbox_allows_it(home: Home) -> None:
    async with home.gateway() as running:
        await execute(running.client, "[[patch:one.txt]]")
        await execute(running.client, "[[run:touch two.txt]]")
    assert list(home.work.iterdir()) == []
    home.agent["options"] = {"sandbox": "workspace-write"}
    async with home.gateway() as running:
        events = await execute(running.client, "[[patch:one.txt]]")
    assert (home.work / "one.txt").read_text() == "written by the model\n"
    assert [(c["name"], c["status"]) for c in of_kind(events, "tool_call")] == [
        ("apply_patch", "started"),
        ("apply_patch", "completed"),
    ]


async def test_a_task_of_a_megabyte(portico: RunningGateway, model: OpenAIServer) -> None:
    task = ("[[plain]] " + "0123456789abcde\n" * 65536)[: 1024 * 1024 - 1] + "."
    assert (await execute(portico.client, task))[-1]["exit_code"] == 0
    assert message_texts(model.bodies()[-1]) == [task]
    refused = await execute(portico.client, task + "!")
    assert "exceeds the maximum length of 1048576 characters" in of_kind(refused, "error")[0]["message"]
    assert refused[-1]["exit_code"] == 1


async def test_the_model_and_the_effort(home: Home, model: OpenAIServer) -> None:
    home.agent["options"] = {"effort": "high", "model": "gpt-5.4"}
    async with home.gateway() as running:
        await execute(running.client, "[[plain]]", model="gpt-5.5")
    assert (model.bodies()[-1]["model"], model.bodies()[-1]["reasoning"]["effort"]) == ("gpt-5.5", "high")


async def test_an_unreachable_model_is_an_error(home: Home, model: OpenAIServer) -> None:
    config = home.codex / "config.toml"
    retries = "request_max_retries = 1\nstream_max_retries = 2\n"
    config.write_text(config.read_text().replace(model.url, "http://127.0.0.1:1") + retries)
    async with home.gateway() as running:
        events = await execute(running.client, "[[plain]]")
    assert events[-1]["exit_code"] == 1
    assert "Connection failed" in of_kind(events, "error")[0]["message"]


@pytest.mark.parametrize(("fast", "tier"), [("on", "priority"), ("off", None)])
async def test_the_configured_fast_mode(home: Home, model: OpenAIServer, fast: str, tier: str | None) -> None:
    home.agent["options"] = {"fast": fast}
    async with home.gateway() as running:
        await execute(running.client, "[[plain]]")
    assert model.bodies()[-1].get("service_tier") == tier
