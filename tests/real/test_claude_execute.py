"""`POST /v1/execute` with the real claude: every kind of event, errors, and the replay."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.real.aap_client import execute, of_kind
from tests.real.conftest import Home
from tests.real.models import Model, message_texts
from tests.support.daemon import RunningGateway

HOOKS = ("SessionStart", "Stop", "Notification", "UserPromptSubmit", "PreToolUse", "PostToolUse")


def text_in(events: list[dict[str, Any]], kind: str = "agent_token") -> str:
    return "".join(event["text"] for event in of_kind(events, kind))


async def test_text_thinking_usage_and_the_end(portico: RunningGateway, model: Model) -> None:
    events = await execute(portico.client, "[[think]] hello")
    assert text_in(events, "thinking") == "Let me think about this carefully."
    assert text_in(events) == "The answer is 42."
    (usage,) = of_kind(events, "usage")
    # By the CLI's own price list.
    assert 0 < usage.pop("cost_usd") < 0.1
    assert usage == {"kind": "usage", "input_tokens": 100, "output_tokens": 42, "cache_read": 7, "cache_write": 0}
    assert {event["kind"] for event in events} == {"thinking", "agent_token", "usage", "session_end"}
    assert events[-1]["exit_code"] == 0 and 0 < events[-1]["duration_ms"] < 60_000
    assert len(model.bodies()) == 1


async def test_usage_equals_the_counts_of_the_model(portico: RunningGateway) -> None:
    events = await execute(portico.client, "[[usage]]")
    (usage,) = of_kind(events, "usage")
    assert 0 < usage.pop("cost_usd") < 0.1
    assert usage == {"kind": "usage", "input_tokens": 1000, "output_tokens": 40, "cache_read": 200, "cache_write": 30}


async def test_a_command_that_really_runs(portico: RunningGateway, home: Home) -> None:
    (home.work / "a-file").touch()
    events = await execute(portico.client, "[[bash]]")
    started, ended = of_kind(events, "tool_call")
    assert (started["name"], started["status"]) == ("Bash", "started")
    assert started["input"] == {"command": "ls -a; echo hi", "description": "run"}
    assert (ended["id"], ended["name"], ended["status"]) == (started["id"], "Bash", "completed")
    (result,) = of_kind(events, "tool_result")
    assert (result["tool_call_id"], result["is_error"]) == (started["id"], False)
    assert result["output"].split()[-2:] == ["a-file", "hi"]
    order = [event["kind"] for event in events if event["kind"] in ("tool_call", "tool_result")]
    assert order == ["tool_call", "tool_result", "tool_call"]
    assert text_in(events) == "Listing files. The files are listed."


async def test_a_call_that_the_cli_does_not_permit_fails(portico: RunningGateway, home: Home) -> None:
    events = await execute(portico.client, f"[[filewrite:{home.base}/elsewhere.txt]]")
    assert [event["status"] for event in of_kind(events, "tool_call")] == ["started", "failed"]
    assert of_kind(events, "tool_result")[0]["is_error"] is True
    assert not (home.base / "elsewhere.txt").exists()
    assert text_in(events).endswith("Wrote it.") and events[-1]["exit_code"] == 0


async def test_three_calls_at_once(portico: RunningGateway, home: Home) -> None:
    file = home.work / "file.txt"
    file.write_text("what stands in the file\n")
    events = await execute(portico.client, f"[[parallel:{file}]]")
    calls, results = of_kind(events, "tool_call"), of_kind(events, "tool_result")
    started = {call["id"]: call["name"] for call in calls if call["status"] == "started"}
    assert sorted(started.values()) == ["Bash", "Bash", "Read"]
    assert {call["id"]: call["status"] for call in calls} == dict.fromkeys(started, "completed")
    assert {result["tool_call_id"] for result in results} == set(started)
    assert "what stands in the file" in str([result["output"] for result in results])


async def test_a_subagent_and_its_own_calls(portico: RunningGateway) -> None:
    events = await execute(portico.client, "[[agent]]")
    started, ended = of_kind(events, "subagent")
    assert (started["status"], ended["status"], started["label"]) == ("started", "completed", "sub")
    names = [(call["name"], call["status"]) for call in of_kind(events, "tool_call")]
    assert names == [("Agent", "started"), ("Bash", "started"), ("Bash", "completed"), ("Agent", "completed")]
    assert of_kind(events, "tool_call")[0]["id"] == started["id"] == ended["id"]
    assert "from-sub" in str(of_kind(events, "tool_result")[0]["output"])
    assert text_in(events) == "Delegating. The sub-agent reported.", "the output of a sub-agent is not the answer"
    # Four requests were made, two of them the sub-agent's.
    assert of_kind(events, "usage")[0]["output_tokens"] == 4 * 42


async def test_a_subagent_without_a_background_setting_ends_before_its_task(portico: RunningGateway) -> None:
    events = await execute(portico.client, "[[agentdefault]]")
    assert [event["status"] for event in of_kind(events, "subagent")] == ["started", "completed"]
    assert "sub: finished." in str(of_kind(events, "tool_result")[-1]["output"])
    assert len(of_kind(events, "session_end")) == len(of_kind(events, "usage")) == 1


async def test_hooks_of_the_settings(portico: RunningGateway, home: Home) -> None:
    _write(home.path / ".claude" / "settings.json", {"hooks": _hooks("true")})
    _assert_hooks(await execute(portico.client, "[[bash]]"))


async def test_hooks_of_a_plugin(home: Home) -> None:
    plugin = home.base / "plugin"
    _write(plugin / ".claude-plugin" / "plugin.json", {"name": "watch", "version": "1.0.0"})
    _write(plugin / "hooks" / "hooks.json", {"hooks": _hooks("true")})
    home.agent["args"] = ["--plugin-dir", str(plugin)]
    async with home.gateway() as portico:
        _assert_hooks(await execute(portico.client, "[[bash]]"))


async def test_a_hook_that_fails(portico: RunningGateway, home: Home) -> None:
    _write(home.path / ".claude" / "settings.json", {"hooks": _hooks("exit 1")})
    events = await execute(portico.client, "[[bash]]")
    assert {(hook["name"], hook["status"]) for hook in of_kind(events, "hook")} >= {("PreToolUse:Bash", "failed")}
    assert events[-1]["exit_code"] == 0


def _hooks(command: str) -> dict[str, Any]:
    return {event: [{"hooks": [{"type": "command", "command": command}]}] for event in HOOKS}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _assert_hooks(events: list[dict[str, Any]]) -> None:
    hooks = of_kind(events, "hook")
    assert [(hook["name"], hook["status"]) for hook in hooks] == [
        (name, status)
        for name in ("UserPromptSubmit", "PreToolUse:Bash", "PostToolUse:Bash")
        for status in ("started", "completed")
    ]
    assert len({hook["id"] for hook in hooks}) == 3
    assert events[-1]["exit_code"] == 0


@pytest.mark.parametrize(("scenario", "reported"), [("e401", "Invalid API key"), ("e500", "500")])
async def test_an_error_of_the_model(home: Home, scenario: str, reported: str) -> None:
    home.env["CLAUDE_CODE_MAX_RETRIES"] = "0"
    async with home.gateway() as portico:
        events = await execute(portico.client, f"[[{scenario}]]")
    assert events[-1]["exit_code"] == 1
    (error,) = of_kind(events, "error")
    assert reported in error["message"]
    assert text_in(events) == ""


async def test_a_cli_that_fails_shows_its_standard_error(home: Home) -> None:
    home.agent["args"] = ["--no-such-flag"]
    async with home.gateway() as portico:
        events = await execute(portico.client, "hello")
    assert any("--no-such-flag" in event["line"] for event in of_kind(events, "stderr"))
    assert [event["kind"] for event in events[-2:]] == ["error", "session_end"]
    assert events[-1]["exit_code"] == 1


@pytest.mark.parametrize("task", ["-p [[plain]]", "--help [[plain]]", "/clear [[plain]]", "@file.txt [[plain]]"])
async def test_a_task_reaches_the_model_as_it_was_written(portico: RunningGateway, home: Home, model: Model, task: str) -> None:
    (home.work / "file.txt").write_text("the file's words")
    assert text_in(await execute(portico.client, task)) == "Hello from the model, this is plain text."
    (sent,) = message_texts(model.last_request(), "user")
    assert sent.strip() == task
    assert "the file's words" not in json.dumps(model.last_request())


async def test_the_model_of_the_request_is_used(portico: RunningGateway, model: Model) -> None:
    await execute(portico.client, "[[plain]]", model="claude-haiku-4-5-20251001")
    assert model.last_request()["model"] == "claude-haiku-4-5-20251001"


async def test_a_repeated_key_replays_the_same_bytes(portico: RunningGateway, home: Home, model: Model) -> None:
    body = {"driver": "claude", "task": "[[bash]]", "idempotency_key": "once"}
    together = await asyncio.gather(*(portico.client.post("/v1/execute", json=body) for _ in range(2)))
    after = await portico.client.post("/v1/execute", json=body)
    assert together[0].text == together[1].text == after.text
    assert model.request_count("bash") == 2, "one run: a call, and the answer after it"
    other = await portico.client.post("/v1/execute", json={**body, "task": "[[plain]]"})
    assert other.status_code == 409


async def test_a_large_answer_is_complete(portico: RunningGateway) -> None:
    assert text_in(await execute(portico.client, "[[bigtext]]")) == "X" * 1_200_000
