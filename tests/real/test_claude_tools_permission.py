"""No untrusted call runs without a grant of the client, whatever the CLI takes for safe and its settings allow."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import pytest

from drivers.claude.tools import OWN_TOOLS
from tests.model_server.scenarios import Block, ToolUse, text_step
from tests.real.tool_bench import WEATHER, Bench, bash, deny, result, weather

ALLOW_ALL = {"permissions": {"allow": ["Bash", "Bash(touch:*)", "Read", "Read(**)", "Write", "Write(**)", "WebFetch"]}}
MODES = ("bypassPermissions", "acceptEdits", "dontAsk", "auto", "plan")


def hook(event: str, answer: dict[str, Any]) -> dict[str, Any]:
    command = f"echo {shlex.quote(json.dumps(answer))}"
    return {"hooks": {event: [{"matcher": "*", "hooks": [{"type": "command", "command": command}]}]}}


ALLOWED_BY_HOOK = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}
GRANTED_BY_HOOK = {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow"}}}

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "allow": ALLOW_ALL,
    **{mode: {"permissions": {"defaultMode": mode}, "skipDangerousModePermissionPrompt": True} for mode in MODES},
    "a hook that allows": hook("PreToolUse", ALLOWED_BY_HOOK),
    # This hook answers permission requests before the client does, so the gateway must not rely on them.
    "a hook that grants": hook("PermissionRequest", GRANTED_BY_HOOK),
    "no hooks": {"disableAllHooks": True, **ALLOW_ALL},
    "hooks off": {"env": {"CLAUDE_CODE_PERSONAL_HOOKS_OFF": "1", "CLAUDE_CODE_DISABLE_HOOK_FORWARDING": "1"}, **ALLOW_ALL},
    "a sandbox": {"sandbox": {"enabled": True, "autoAllowBashIfSandboxed": True}},
}


def four_calls(bench: Bench) -> list[Block]:
    (bench.work / "secret.txt").write_text("hidden")
    return [
        bash("ls"),
        ToolUse("Read", {"file_path": f"{bench.work}/secret.txt"}),
        bash("touch made"),
        ToolUse("Write", {"file_path": f"{bench.work}/written", "content": "x"}),
    ]


@pytest.mark.parametrize("settings", SETTINGS)
async def test_no_setting_bypasses_the_permission_request(bench: Bench, settings: str) -> None:
    bench.settings(SETTINGS[settings])
    text = bench.model_calls(*four_calls(bench))
    turn = await bench.start(text, own={"Bash": False, "Read": False, "Write": False})
    assert len(turn.calls) == 4 and turn.results == {} and turn.stop == "tool_use"
    turn_2 = await bench.answer(turn.session, *(deny(call, "no") for call in turn.calls))
    assert turn_2.results == dict.fromkeys(turn.calls, "Tool call denied: no") and turn_2.stop == "end_turn"
    assert [path.name for path in bench.work.iterdir()] == ["secret.txt"]
    assert "hidden" not in json.dumps(bench.sent())


async def test_permission_rules_apply_without_hooks(bench: Bench) -> None:
    """With this variable the CLI has no hooks and no tool Write; its permission rules still apply."""
    bench.settings({"env": {"CLAUDE_CODE_SIMPLE": "1"}, **ALLOW_ALL})
    turn = await bench.start(bench.model_calls(*four_calls(bench)), own={"Bash": False, "Read": False, "Write": False})
    asked = [call for call in turn.calls if call not in turn.results]
    assert len(asked) == 3 and turn.stop == "tool_use"
    turn_2 = await bench.answer(turn.session, *(deny(call, "no") for call in asked))
    assert turn_2.results == dict.fromkeys(asked, "Tool call denied: no")
    assert [path.name for path in bench.work.iterdir()] == ["secret.txt"] and "hidden" not in json.dumps(bench.sent())


async def test_permission_hooks_of_the_cli_do_not_run(bench: Bench) -> None:
    """The CLI sends a permission request to its hooks too and uses the first answer: measured, the call ran."""
    command = f"touch {bench.base}/asked; echo {shlex.quote(json.dumps(GRANTED_BY_HOOK))}"
    bench.settings({"hooks": {"PermissionRequest": [{"matcher": "*", "hooks": [{"type": "command", "command": command}]}]}})
    turn = await bench.start(bench.model_calls(bash("touch made")), own={"Bash": False})
    await bench.answer(turn.session, deny(turn.calls[0]))
    assert not (bench.base / "asked").exists() and not (bench.work / "made").exists()


async def test_project_settings_do_not_bypass_the_permission_request(bench: Bench) -> None:
    (bench.work / ".claude").mkdir()
    (bench.work / ".claude" / "settings.json").write_text(json.dumps(ALLOW_ALL))
    trusted = {"projects": {str(bench.work): {"hasTrustDialogAccepted": True}}}
    (bench.home / ".claude.json").write_text(json.dumps(trusted))
    turn = await bench.start(bench.model_calls(bash("touch made")), own={"Bash": False})
    assert (turn.results, turn.stop) == ({}, "tool_use")
    await bench.answer(turn.session, deny(turn.calls[0]))
    assert not (bench.work / "made").exists()


@pytest.mark.parametrize("frontmatter", ["permissionMode: bypassPermissions", "permissionMode: acceptEdits\ntools: Bash, Write"])
async def test_the_mode_of_a_subagent_does_not_bypass_the_permission_request(bench: Bench, frontmatter: str) -> None:
    agents = bench.home / ".claude" / "agents"
    agents.mkdir(parents=True)
    (agents / "mine.md").write_text(f"---\nname: mine\ndescription: d\n{frontmatter}\n---\nyou are mine")
    unlisted = ToolUse("Write", {"file_path": f"{bench.work}/written", "content": "x"})
    bench.model_calls(bash("touch inner"), unlisted, name="inner")
    task = ToolUse("Agent", {"description": "sub", "prompt": "go [[inner]]", "subagent_type": "mine"})
    turn = await bench.start(bench.model_calls(task), own={"Agent": True, "Bash": False})
    assert turn.called == ["Agent", "Bash"] and turn.stop == "tool_use"
    turn_2 = await bench.answer(turn.session, deny(turn.calls[1], "no"))
    assert turn_2.stop == "end_turn" and not list(bench.work.iterdir())


@pytest.mark.parametrize("own", [{"Skill": True}, {"Skill": True, "Bash": False}])
async def test_a_skill_with_a_command_does_not_bypass_the_permission_request(bench: Bench, own: dict[str, bool]) -> None:
    skill = bench.home / ".claude" / "skills" / "x"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: x\ndescription: d\nallowed-tools: Bash\n---\nSee: !`touch made`")
    bench.settings(ALLOW_ALL)
    turn = await bench.start(bench.model_calls(ToolUse("Skill", {"skill": "x"})), own=own)
    assert "permission check failed" in turn.results[turn.calls[0]] and turn.stop == "end_turn"
    assert not list(bench.work.iterdir())


async def test_the_agent_tool_needs_permission(bench: Bench) -> None:
    task = ToolUse("Agent", {"description": "sub", "prompt": "go", "subagent_type": "general-purpose"})
    turn = await bench.start(bench.model_calls(task), own={"Agent": False})
    assert (turn.called, turn.stop) == (["Agent"], "tool_use")
    assert (await bench.answer(turn.session, deny(turn.calls[0]))).results == {turn.calls[0]: "Tool call denied"}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("WebFetch", {"url": "http://127.0.0.1:9/", "prompt": "x"}),
        ("WebSearch", {"query": "weather"}),
        ("Glob", {"pattern": "*"}),
        ("Grep", {"pattern": "x"}),
        ("Read", {"file_path": "/etc/hostname"}),
        ("Bash", {"command": "cat /etc/hostname"}),
        ("TaskList", {}),
    ],
)
async def test_every_kind_of_tool_needs_permission(bench: Bench, name: str, given: dict[str, Any]) -> None:
    turn = await bench.start(bench.model_calls(ToolUse(name, given)), own={name: False})
    assert (turn.called, turn.results, turn.stop) == ([name], {}, "tool_use")
    assert (await bench.answer(turn.session, deny(turn.calls[0], "no"))).results == {turn.calls[0]: "Tool call denied: no"}


async def test_unlisted_tools_do_not_run(bench: Bench) -> None:
    server = {"command": sys.executable, "args": ["-c", "open('started', 'w')"]}
    bench.settings({**ALLOW_ALL, "enableAllProjectMcpServers": True})
    (bench.work / ".mcp.json").write_text(json.dumps({"mcpServers": {"evil": server}}))
    (bench.home / ".claude.json").write_text(json.dumps({"mcpServers": {"evil": server}}))
    text = bench.model_calls(
        ToolUse("Write", {"file_path": f"{bench.work}/written", "content": "x"}),
        ToolUse("mcp__evil__go", {}),
        ToolUse("Skill", {"skill": "debug"}),
        bash("touch made"),
        weather(),
    )
    turn = await bench.start(text, own={"Read": True})
    assert turn.stop == "end_turn" and len(turn.results) == 5
    assert all("No such tool available" in output for output in turn.results.values())
    assert [path.name for path in bench.work.iterdir()] == [".mcp.json"]


async def test_no_kind_of_tool_runs_unlisted(bench: Bench) -> None:
    """The model calls tools that read, search, write, run commands and use the web, although none is in its request."""
    (bench.work / "file.txt").write_text("SECRET")
    text = bench.model_calls(
        ToolUse("Read", {"file_path": f"{bench.work}/file.txt"}),
        ToolUse("Grep", {"pattern": "SECRET", "output_mode": "content"}),
        ToolUse("Edit", {"file_path": f"{bench.work}/file.txt", "old_string": "SECRET", "new_string": "x"}),
        ToolUse("WebFetch", {"url": f"{bench.model.url}/fetched", "prompt": "x"}),
        ToolUse("WebSearch", {"query": "weather"}),
        bash("touch made"),
        weather(),
    )
    turn = await bench.start(text, app=[WEATHER])
    app = turn.calls[turn.called.index("get_weather")]
    assert turn.stop == "tool_use"
    assert ["No such tool available" in output for output in turn.results.values()] == [True] * 6
    turn_2 = await bench.answer(turn.session, result(app, "rain"))
    assert turn_2.stop == "end_turn"
    assert not [request for request in bench.model.requests if "fetched" in request.path]
    assert (bench.work / "file.txt").read_text() == "SECRET" and [p.name for p in bench.work.iterdir()] == ["file.txt"]


async def test_a_trusted_tool_runs_although_the_settings_ask(bench: Bench) -> None:
    bench.settings({"permissions": {"ask": ["Bash"], "defaultMode": "plan"}})
    outside = bench.base / "outside"
    turn = await bench.start(bench.model_calls(bash(f"touch {outside} && rm -f {outside} && echo ok")), own={"Bash": True})
    assert (list(turn.results.values()), turn.stop) == (["ok"], "end_turn")


async def test_a_deny_rule_of_the_user_settings_applies(bench: Bench) -> None:
    bench.settings({"permissions": {"deny": ["Bash(touch:*)"]}})
    turn = await bench.start(bench.model_calls(bash("touch made")), own={"Bash": True})
    assert turn.stop == "end_turn" and not (bench.work / "made").exists()


async def test_a_call_with_invalid_input_needs_no_permission(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(ToolUse("Bash", {"nonsense": 1})), own={"Bash": False})
    assert turn.stop == "end_turn" and "InputValidationError" in str(turn.results)


async def test_the_tools_of_meta_are_those_of_the_cli(bench: Bench) -> None:
    bench.replies["calls"] = [text_step("Hi.")]
    await bench.start("go [[calls]]", own={tool.name: True for tool in OWN_TOOLS})
    sent = {tool["name"]: _without_prose(tool["input_schema"]) for tool in bench.model.bodies("calls")[-1]["tools"]}
    assert sent == {tool.name: dict(tool.input_schema) for tool in OWN_TOOLS}


def _without_prose(schema: Any, *, names: bool = False) -> Any:
    if isinstance(schema, list):
        return [_without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_prose(value, names=key == "properties")
        for key, value in schema.items()
        if names or (key != "$schema" and not (key == "description" and isinstance(value, str)))
    }
