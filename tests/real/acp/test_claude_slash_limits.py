"""Slash commands of the real claude where the configuration locks the model, and of a client with a named key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.security.authentication import Caller
from tests.model_server.scenarios import ToolUse, text_step
from tests.real.acp.test_claude_modes import editor
from tests.real.tool_bench import Bench, bash
from tests.support.acp_client import Client, connect
from tests.support.daemon import RunningGateway, run_gateway

ALLOWS = "---\ndescription: d\nallowed-tools: Bash(touch:*)\nmodel: opus\n---\n"
COMMAND = ALLOWS + "See: !`touch by-command`\nGo on. "


OF_THE_USER = {"settings.json", "settings.local.json", "CLAUDE.md", "agents", "commands", "skills", "hooks", "output-styles"}


def add_command(bench: Bench, then: str, name: str = "mine") -> None:
    folder = bench.work / ".claude" / "commands"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(COMMAND + then)


def models(bench: Bench) -> set[str]:
    return {body["model"] for body in bench.model.bodies()}


@pytest.mark.parametrize(
    "text", ["/model opus", " /model opus", "/effort low", "/config model=opus", "/fast on", "/mine", "/compact"]
)
async def test_no_command_changes_a_locked_model(unstarted_bench: Bench, text: str) -> None:
    bench = unstarted_bench
    # A command of the project goes before a built-in one of its name.
    for name in ("mine", "compact"):
        add_command(bench, bench.model_replies(text_step("Done.")), name)
    options = {"model": "sonnet", "slash_commands": "on"}
    async with editor(bench, {"options": options, "locked": ["model"]}) as bot:
        await bot.new()
        await bot.client.prompt(bot.session, text)
        await bot.client.prompt(bot.session, bench.model_replies(text_step("Done.")))
        assert models(bench) and all("sonnet" in model for model in models(bench))
        found = [u["availableCommands"] for u in bot.client.updates() if u["sessionUpdate"] == "available_commands_update"]
        assert found[-1] == []
    settings = bench.home / ".claude" / "settings.json"
    assert not settings.exists() or "model" not in json.loads(settings.read_text())


@pytest.mark.parametrize("text", ["/config verbose=true", "/config\ufeffverbose=true"])
@pytest.mark.parametrize("named", [True, False])
async def test_no_command_of_a_named_key_changes_the_settings_of_the_user(unstarted_bench: Bench, named: bool, text: str) -> None:
    async with gateway_with_commands(unstarted_bench) as running, client_of(running, named=named) as (client, session):
        await client.prompt(session, text)
        await client.prompt(session, "/context")
        assert "Context Usage" in client.text()
    settings = unstarted_bench.home / ".claude" / "settings.json"
    assert settings.exists() is not named


async def test_no_listed_command_of_a_named_key_changes_what_is_the_users(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    async with gateway_with_commands(bench) as running, client_of(running, named=True) as (client, session):
        client.choose = lambda params: "reject_once"
        await client.prompt(session, bench.model_replies(text_step("Done."), name="sticky"))
        listed = [u["availableCommands"] for u in client.updates() if u["sessionUpdate"] == "available_commands_update"][-1]
        assert len(listed) > 20
        for command in listed:
            # A goal is one on which the CLI works for ever.
            await client.prompt(session, f"/{command['name']} {'clear' if command['name'] == 'goal' else 'on'}")
        assert list(bench.work.iterdir()) == []
    assert {path.name for path in bench.home.iterdir()} <= {".claude", ".claude.json", ".cache"}
    assert not [path.name for path in (bench.home / ".claude").iterdir() if path.name in OF_THE_USER]


@pytest.mark.parametrize("command", ["/list-agents", "/team-onboarding"])
async def test_no_command_of_a_named_key_reads_sessions_of_others(unstarted_bench: Bench, command: str) -> None:
    bench = unstarted_bench
    go = bench.model_replies(text_step("Done."), name="sticky")
    async with gateway_with_commands(bench) as running, client_of(running, named=False) as (client, session):
        await client.prompt(session, f"violet elephant {go}")
        await client.prompt(session, "/rename violet elephant")
        async with client_of(running, named=True) as (other, others_session):
            await other.prompt(others_session, go)
            before = len(bench.model.bodies())
            await other.prompt(others_session, command)
            assert "violet" not in other.text() and "violet" not in json.dumps(bench.model.bodies()[before:])


@asynccontextmanager
async def gateway_with_commands(bench: Bench) -> AsyncIterator[RunningGateway]:
    config = bench.config()
    config["agents"]["claude"]["options"] = {"slash_commands": "on"}
    async with run_gateway(config) as running:
        yield running


@asynccontextmanager
async def client_of(running: RunningGateway, *, named: bool) -> AsyncIterator[tuple[Client, str]]:
    """A client of a named key, or of the default key, and its session."""
    caller = {"caller": Caller("phone", all_sessions=False)} if named else {}
    client, connection = connect(running.gateway, "claude", **caller)
    await client.initialize()
    yield client, await new_session(client)
    await connection.close()


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


@pytest.mark.parametrize("kind", ["command", "skill"])
@pytest.mark.parametrize("mode", ["default", "ask"])
async def test_what_front_matter_allows_runs_in_the_modes_of_the_cli_only(unstarted_bench: Bench, mode: str, kind: str) -> None:
    bench = unstarted_bench
    folder = bench.work / ".claude" / "skills" / "mine"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(ALLOWS + bench.model_calls(bash("touch by-call"), name="inner"))
    # The other one has a command of its own, which runs before the model reads it.
    add_command(bench, "", "other")
    async with editor(bench, {"options": {"slash_commands": "on"}}) as bot:
        await bot.new(mode)
        bot.choose = lambda params: "allow_once" if params["toolCall"]["title"].startswith("Load") else "reject_once"
        load = ToolUse("Skill", {"skill": "mine"})
        await bot.client.prompt(bot.session, "/mine" if kind == "command" else bench.model_calls(load))
        commands = [params["toolCall"]["rawInput"].get("command") for params in bot.asked]
        assert ("touch by-call" in commands) == (mode == "ask")
        await bot.client.prompt(bot.session, "/other")
    made = ["by-call", "by-command"] if mode == "default" else []
    assert sorted(path.name for path in bench.work.iterdir()) == [".claude", *made]
