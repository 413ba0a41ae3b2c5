"""Slash commands of the real claude where the configuration locks the model, and of a client with a named key."""

from __future__ import annotations

import json

import pytest

from gateway.security.authentication import Caller
from tests.daemon import run_gateway
from tests.gateway.protocols.acp.client import Client, connect
from tests.model_server.scenarios import text_step
from tests.real.acp.test_claude_modes import editor
from tests.real.tool_bench import Bench, bash

COMMAND = "---\ndescription: d\nallowed-tools: Bash(touch:*)\nmodel: opus\n---\nSee: !`touch by-command`\nGo on. "


def add_command(bench: Bench, then: str) -> None:
    folder = bench.work / ".claude" / "commands"
    folder.mkdir(parents=True)
    (folder / "mine.md").write_text(COMMAND + then)


def models(bench: Bench) -> set[str]:
    return {body["model"] for body in bench.model.bodies()}


@pytest.mark.parametrize("text", ["/model opus", " /model opus", "/effort low", "/config model=opus", "/fast on", "/mine"])
async def test_no_command_changes_a_locked_model(unstarted_bench: Bench, text: str) -> None:
    bench = unstarted_bench
    add_command(bench, bench.model_replies(text_step("Done.")))
    options = {"model": "sonnet", "slash_commands": "on"}
    async with editor(bench, {"options": options, "locked": ["model"]}) as bot:
        await bot.new()
        await bot.client.prompt(bot.session, text)
        await bot.client.prompt(bot.session, bench.model_replies(text_step("Done.")))
        assert models(bench) and all("sonnet" in model for model in models(bench))
        found = [u["availableCommands"] for u in bot.client.updates() if u["sessionUpdate"] == "available_commands_update"]
        assert {command["name"] for command in found[-1]} <= {"clear", "compact", "context", "recap", "rename", "usage"}
    settings = bench.home / ".claude" / "settings.json"
    assert not settings.exists() or "model" not in json.loads(settings.read_text())


@pytest.mark.parametrize("named", [True, False])
async def test_no_command_of_a_named_key_changes_the_settings_of_the_user(unstarted_bench: Bench, named: bool) -> None:
    bench = unstarted_bench
    config = bench.config()
    config["agents"]["claude"]["options"] = {"slash_commands": "on"}
    async with run_gateway(config) as running:
        caller = {"caller": Caller("phone", all_sessions=False)} if named else {}
        client, connection = connect(running.gateway, "claude", **caller)
        await client.initialize()
        session = await new_session(client)
        await client.prompt(session, "/config verbose=true")
        await client.prompt(session, "/context")
        assert "Context Usage" in client.text()
        await connection.close()
    settings = bench.home / ".claude" / "settings.json"
    assert settings.exists() is not named


async def new_session(client: Client) -> str:
    answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
    return str(answer["sessionId"])


async def test_rules_hold_for_what_a_command_of_the_project_allows(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    add_command(bench, bench.model_calls(bash("touch by-call")))
    rules = [{"tool": "Bash", "when": {"command": "touch *"}, "decide": "deny", "reason": "No."}]
    async with editor(bench, {"policy": rules, "options": {"slash_commands": "on"}}) as bot:
        await bot.new()
        await bot.client.prompt(bot.session, "/mine")
        assert bot.asked == []
    assert [path.name for path in bench.work.iterdir()] == [".claude"]
