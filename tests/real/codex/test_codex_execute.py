"""Tasks with the real codex by POST /v1/execute: events, errors, and tasks of any form and size."""

from __future__ import annotations

import time

import pytest

from tests.model_server.openai import OpenAIServer
from tests.real.aap_client import of_kind
from tests.real.codex.aap_client import execute, message_texts
from tests.real.codex.conftest import DUMMY_KEY, Home
from tests.real.processes import arguments, cli_of
from tests.support.daemon import RunningGateway
from tests.support.waiting import wait_until

PLAIN = "Hello from the model, this is plain text."


async def test_text(portico: RunningGateway, model: OpenAIServer) -> None:
    events = await execute(portico.client, "[[plain]]")
    assert events[0] == {"kind": "agent_token", "text": PLAIN}
    assert of_kind(events, "usage") == [
        {"kind": "usage", "input_tokens": 100, "output_tokens": 42, "cache_read": 7, "cache_write": 0, "reasoning_tokens": 5}
    ]
    assert events[-1]["exit_code"] == 0
    assert model.keys == [f"Bearer {DUMMY_KEY}"]


async def test_thinking(portico: RunningGateway) -> None:
    events = await execute(portico.client, "[[think]]")
    assert [e["text"] for e in of_kind(events, "thinking")] == ["Let me think about this carefully."]
    assert [e["text"] for e in of_kind(events, "agent_token")] == ["The answer is 42."]


async def test_a_command_is_a_call_with_its_result(portico: RunningGateway) -> None:
    events = await execute(portico.client, "[[shell]]")
    calls = of_kind(events, "tool_call")
    assert [(c["name"], c["status"]) for c in calls] == [("shell", "started"), ("shell", "completed")]
    assert calls[0]["input"]["command"] == "ls -a; echo hi"
    (result,) = of_kind(events, "tool_result")
    assert (result["tool_call_id"], result["is_error"]) == (calls[0]["id"], False)
    assert result["output"].endswith("hi\n")


async def test_a_command_that_fails(portico: RunningGateway) -> None:
    events = await execute(portico.client, "[[toolfail]]")
    assert [c["status"] for c in of_kind(events, "tool_call")] == ["started", "failed"]
    (result,) = of_kind(events, "tool_result")
    assert result["is_error"] and "No such file" in result["output"] and result["output"].endswith("[exit code 3]")
    assert events[-1]["exit_code"] == 0


async def test_parallel_commands(portico: RunningGateway) -> None:
    events = await execute(portico.client, "[[parallel]]")
    assert sorted(r["output"] for r in of_kind(events, "tool_result")) == ["one\n", "three\n", "two\n"]
    assert len({c["id"] for c in of_kind(events, "tool_call")}) == 3


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


async def test_an_output_of_a_megabyte(portico: RunningGateway) -> None:
    events = await execute(portico.client, "[[bigshell]]")
    assert of_kind(events, "tool_result")[0]["output"].rstrip("\n") == "A" * 1_000_000


@pytest.mark.parametrize(
    "task", ["-p --model x [[plain]]", "--help [[plain]]", "- [[plain]]", "/review [[plain]]", "\ufeff \u2028 [[plain]]"]
)
async def test_a_task_of_any_form(portico: RunningGateway, model: OpenAIServer, task: str) -> None:
    assert of_kind(await execute(portico.client, task), "agent_token")[0]["text"] == PLAIN
    assert message_texts(model.bodies()[-1]) == [task]


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


@pytest.mark.parametrize(
    ("scenario", "reported", "seconds"),
    [
        ("e400", "bad request", 10),
        ("e401", "401 Unauthorized", 30),
        ("e429", "429 Too Many Requests", 30),
        ("maxtok", "max_output_tokens", 10),
    ],
)
async def test_errors_of_the_model(portico: RunningGateway, scenario: str, reported: str, seconds: float) -> None:
    before = time.monotonic()
    events = await execute(portico.client, f"[[{scenario}]]")
    assert time.monotonic() - before < seconds
    assert events[-1]["exit_code"] == 1
    assert [reported in e["message"] for e in of_kind(events, "error")] == [True]
    assert not any("Reconnecting" in e["message"] for e in of_kind(events, "error"))


async def test_an_unreachable_model_is_an_error(home: Home, model: OpenAIServer) -> None:
    config = home.codex / "config.toml"
    retries = "request_max_retries = 1\nstream_max_retries = 2\n"
    config.write_text(config.read_text().replace(model.url, "http://127.0.0.1:1") + retries)
    async with home.gateway() as running:
        events = await execute(running.client, "[[plain]]")
    assert events[-1]["exit_code"] == 1
    assert "Connection failed" in of_kind(events, "error")[0]["message"]


async def test_ps_shows_neither_the_task_nor_a_key(home: Home, model: OpenAIServer) -> None:
    home.agent["options"] = {"api_key": "sk-option-0123456789"}
    async with home.gateway() as running:
        async with running.client.stream("POST", "/v1/execute", json={"driver": "codex", "task": "[[slowtext]] secret-task"}):
            await wait_until(lambda: bool(model.requests), "the model has a request")
            visible = list(arguments(cli_of(home.path)))
        assert visible and not any("secret-task" in a or "sk-" in a for a in visible)


@pytest.mark.parametrize(("fast", "tier"), [("on", "priority"), ("off", None)])
async def test_the_configured_fast_mode(home: Home, model: OpenAIServer, fast: str, tier: str | None) -> None:
    home.agent["options"] = {"fast": fast}
    async with home.gateway() as running:
        await execute(running.client, "[[plain]]")
    assert model.bodies()[-1].get("service_tier") == tier
