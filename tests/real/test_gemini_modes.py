"""The modes of the real gemini over ACP: its own rules, its own choices, and the rules of the gateway in each mode."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.model_server.scenarios import Scenario, Step, ToolUse, text_step
from tests.real.codex.test_codex_modes import Editor
from tests.real.editor import SERVER
from tests.real.gemini import SCENARIOS, SHELL, Gemini, create_session
from tests.real.processes import processes_of
from tests.support.acp_client import connect

SCENARIOS["fetch"] = Scenario((Step((ToolUse("web_fetch", {"prompt": "read http://127.0.0.1:9/"}),)), text_step("Done.")))
SCENARIOS["server"] = Scenario((Step((ToolUse("mcp_my-server_secret", {"x": 1}),)), text_step("Done.")))

POLICY = """
[[rule]]
toolName = "run_shell_command"
commandPrefix = "touch allowed"
decision = "allow"
priority = 100

[[rule]]
toolName = "run_shell_command"
commandPrefix = "touch denied"
decision = "deny"
priority = 200
"""


@asynccontextmanager
async def editor(gemini: Gemini, **entry: Any) -> AsyncIterator[Editor]:
    gemini.agent |= {"options": {}} | entry
    async with gemini.gateway() as running:
        client, connection = connect(running.gateway, "gemini")
        await client.initialize()
        yield Editor(client)
        await connection.close()


async def test_the_clis_own_rules(gemini: Gemini) -> None:
    policies = gemini.home / ".gemini" / "policies"
    policies.mkdir(parents=True)
    (policies / "mine.toml").write_text(POLICY)
    (gemini.work / "a.txt").write_text("text")
    async with editor(gemini) as bot:
        modes = await bot.new()
        assert modes["currentModeId"] == "default"
        assert [mode["id"] for mode in modes["availableModes"]] == ["default", "autoEdit", "plan", "ask", "edit", "auto"]
        bot.choice = "allow_once"
        assert await bot.prompt("[[fileread:a.txt]]") == []
        assert await bot.prompt("[[run:touch allowed]]") == [] and (gemini.work / "allowed").exists()
        assert await bot.prompt("[[run:touch denied]]") == [] and not (gemini.work / "denied").exists()
        [asked] = await bot.prompt("[[run:touch asked]]")
        assert [option["optionId"] for option in asked["options"]] == [
            "allow_once",
            "allow_always",
            "reject_once",
            "reject_always",
        ]
        assert (gemini.work / "asked").exists() and len(await bot.prompt("[[filewrite:b.txt]]")) == 1
        await bot.set_mode("autoEdit")
        assert await bot.prompt("[[filewrite:c.txt]]") == [] and (gemini.work / "c.txt").exists()
        before = set(processes_of(gemini.home, "node"))
        await bot.set_mode("default")
        assert len(await bot.prompt("[[filewrite:d.txt]]")) == 1
        assert before == set(processes_of(gemini.home, "node")), "the process stays"
        # The user's rules do not apply where the gateway asks.
        await bot.set_mode("ask")
        bot.choice = "reject_once"
        assert len(await bot.prompt("[[run:touch allowed2]]")) == 1


@pytest.mark.parametrize(
    ("mode", "asked", "made"),
    [
        ("default", (1, 1), set()),
        ("autoEdit", (1, 0), {"written.txt"}),
        ("plan", (0, 0), set()),
        ("yolo", (0, 0), {"made.txt", "written.txt"}),
    ],
)
async def test_what_each_mode_asks_about(gemini: Gemini, mode: str, asked: tuple[int, int], made: set[str]) -> None:
    (gemini.work / "a.txt").write_text("the text of the file")
    async with editor(gemini, allow_bypass=True) as bot:
        await bot.new()
        await bot.set_mode(mode)
        bot.choice = "reject_once"
        assert await bot.prompt("[[fileread:a.txt]]") == [] and "the text of the file" in json.dumps(gemini.last_request())
        commands, edits = [await bot.prompt(f"[[{call}]]") for call in ("run:touch made.txt", "filewrite:written.txt")]
        assert (len(commands), len(edits)) == asked
    assert {path.name for path in gemini.work.iterdir()} == {"a.txt", *made}


@pytest.mark.parametrize("mode", ["default", "autoEdit", "plan", "yolo"])
async def test_rules_of_the_gateway_hold_in_each_mode(gemini: Gemini, mode: str) -> None:
    rules = [{"tool": "run_shell_command", "when": {"command": "touch *"}, "decide": "deny", "reason": "No."}]
    async with editor(gemini, policy=rules, allow_bypass=True) as bot:
        await bot.new()
        await bot.set_mode(mode)
        bot.choice = "allow_once"
        assert await bot.prompt("[[run:touch no.txt]]") == []
        assert len(await bot.prompt("[[run:echo hi]]")) == 1
        assert not (gemini.work / "no.txt").exists()


@pytest.mark.parametrize("choice", ["allow_once", "allow_always"])
async def test_plan_mode_only_reads(gemini: Gemini, choice: str) -> None:
    policies = gemini.home / ".gemini" / "policies"
    policies.mkdir(parents=True)
    # In the CLI, a rule of the user goes before its plan mode.
    (policies / "mine.toml").write_text(POLICY.replace("100", "998"))
    (gemini.home / ".gemini" / "settings.json").write_text(json.dumps({"general": {"plan": {"enabled": False}}}))
    (gemini.work / "a.txt").write_text("the text of the file")
    async with editor(gemini) as bot:
        await bot.new()
        bot.choice = choice
        for tool in ("run:touch first.txt", "filewrite:first.md"):
            await bot.prompt(f"[[{tool}]]")
        before = set(processes_of(gemini.home, "node"))
        await bot.set_mode("plan")
        assert await bot.prompt("[[fileread:a.txt]]") == [] and "the text of the file" in json.dumps(gemini.last_request())
        for tool in ("run:touch allowed", "run:touch no.txt", "filewrite:no.txt", "filewrite:plans/no.md"):
            assert await bot.prompt(f"[[{tool}]]") == []
            # The model does not have the tools that write, nor those by which it would submit the plan.
            assert gemini.tools() == ["list_directory", "read_file", "grep_search", "glob", "google_web_search"]
        assert {path.name for path in gemini.work.iterdir()} == {"a.txt", "first.txt", "first.md"}
        await bot.set_mode("default")
        assert choice != "allow_once" or before == set(processes_of(gemini.home, "node")), "the process stays"
        assert await bot.prompt("[[run:touch allowed]]") == [] and (gemini.work / "allowed").exists()


async def test_a_mode_without_questions(gemini: Gemini) -> None:
    async with editor(gemini, allow_bypass=True) as bot:
        await bot.new()
        await bot.set_mode("yolo")
        assert await bot.prompt("[[run:touch made.txt]]") == [] and (gemini.work / "made.txt").exists()


@pytest.mark.parametrize("mode", ["default", "autoEdit", "yolo"])
async def test_a_tool_that_is_not_listed_does_not_run(gemini: Gemini, mode: str) -> None:
    policies = gemini.home / ".gemini" / "policies"
    policies.mkdir(parents=True)
    (policies / "mine.toml").write_text(POLICY)
    gemini.agent["allow_bypass"] = True
    async with gemini.gateway() as running:
        aap = await create_session(running.client, "[[run:touch allowed]]", own={"read_file": False}, mode=mode)
        assert aap.last["stopReason"] == "end_turn" and SHELL not in gemini.tools()
    assert not (gemini.work / "allowed").exists()


async def test_a_rule_about_a_tool_of_a_server_holds_in_a_mode_without_questions(gemini: Gemini) -> None:
    rules = [{"tool": "mcp__my-server__*", "decide": "deny", "reason": "No."}]
    async with editor(gemini, policy=rules, allow_bypass=True) as bot:
        server = {"name": "my server", "command": sys.executable, "args": [str(SERVER)], "env": []}
        answer = await bot.client.request("session/new", {"cwd": ".", "mcpServers": [server]})
        bot.session = answer["sessionId"]
        await bot.set_mode("yolo")
        assert await bot.prompt("[[server]]") == []
        assert "letters" not in json.dumps(gemini.last_request())


@pytest.mark.parametrize("mode", ["default", "autoEdit", "yolo"])
async def test_a_rule_of_the_user_that_denies_holds_in_each_mode(gemini: Gemini, mode: str) -> None:
    policies = gemini.home / ".gemini" / "policies"
    policies.mkdir(parents=True)
    letters = '[[rule]]\nmcpName = "my-server"\ntoolName = "*"\ndecision = "deny"\npriority = 1\n'
    (policies / "mine.toml").write_text(POLICY.replace("200", "1") + letters)
    async with editor(gemini, allow_bypass=True) as bot:
        server = {"name": "my server", "command": sys.executable, "args": [str(SERVER)], "env": []}
        answer = await bot.client.request("session/new", {"cwd": ".", "mcpServers": [server]})
        bot.session = answer["sessionId"]
        await bot.set_mode(mode)
        bot.choice = "allow_once"
        assert await bot.prompt("[[run:touch denied]]") == [] and not (gemini.work / "denied").exists()
        assert await bot.prompt("[[server]]") == [] and "letters" not in json.dumps(gemini.last_request())
        assert await bot.prompt("[[run:touch allowed]]") == [] and (gemini.work / "allowed").exists()


@pytest.mark.parametrize("mode", ["default", "ask"])
@pytest.mark.parametrize("setting", ["tools", "policyPaths", "adminPolicyPaths"])
async def test_the_settings_of_a_project_permit_no_tool(gemini: Gemini, mode: str, setting: str) -> None:
    own = gemini.work / ".gemini"
    own.mkdir()
    rules = own / "rules.toml"
    rules.write_text('[[rule]]\ntoolName = "*"\ndecision = "allow"\npriority = 999\n')
    value = {"allowed": ["run_shell_command"]} if setting == "tools" else [str(rules)]
    (own / "settings.json").write_text(json.dumps({setting: value}))
    async with editor(gemini) as bot:
        await bot.new()
        await bot.set_mode(mode)
        bot.choice = "reject_once"
        assert len(await bot.prompt("[[run:touch made.txt]]")) == 1 and not (gemini.work / "made.txt").exists()


async def test_always_is_for_the_tool_in_the_session(gemini: Gemini) -> None:
    own = gemini.work / ".gemini"
    own.mkdir()
    # With this setting the CLI would keep an answer for all sessions.
    (own / "settings.json").write_text(json.dumps({"security": {"enablePermanentToolApproval": True}}))
    async with editor(gemini) as bot:
        await bot.new()
        bot.choice = "allow_always"
        assert len(await bot.prompt("[[filewrite:one.txt]]")) == 1
        assert await bot.prompt("[[filewrite:two.txt]]") == [] and (gemini.work / "two.txt").exists()
        # Not for other tools, which the CLI's own answer would include.
        assert len(await bot.prompt("[[fetch]]")) == 1
        bot.choice = "reject_once"
        await bot.new()
        assert len(await bot.prompt("[[filewrite:three.txt]]")) == 1
        assert "MODE_UPDATE" not in bot.client.text()
    assert not [path for path in gemini.base.rglob("*.toml") if path.name != "portico.toml"]
    assert [path.name for path in own.iterdir()] == ["settings.json"]
