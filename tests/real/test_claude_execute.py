"""`POST /v1/execute` with the real claude: every kind of event, errors, and the replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.real.aap_client import execute, of_kind
from tests.real.conftest import Home
from tests.support.daemon import RunningGateway

HOOKS = ("SessionStart", "Stop", "Notification", "UserPromptSubmit", "PreToolUse", "PostToolUse")


def text_in(events: list[dict[str, Any]], kind: str = "agent_token") -> str:
    return "".join(event["text"] for event in of_kind(events, kind))


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


async def test_a_cli_that_fails_shows_its_standard_error(home: Home) -> None:
    home.agent["args"] = ["--no-such-flag"]
    async with home.gateway() as portico:
        events = await execute(portico.client, "hello")
    assert any("--no-such-flag" in event["line"] for event in of_kind(events, "stderr"))
    assert [event["kind"] for event in events[-2:]] == ["error", "session_end"]
    assert events[-1]["exit_code"] == 1
