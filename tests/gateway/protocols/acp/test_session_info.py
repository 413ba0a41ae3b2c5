"""Session updates outside of runs: slash commands, title and compactions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.security.authentication import ADMINISTRATOR
from gateway.store import SessionMetadataRecord
from tests.gateway.cli.test_acp import small_agent
from tests.gateway.protocols.acp.conftest import ConnectClient, Scripted, WriteScenario, scripted_session
from tests.support.acp_client import Client, connect, connected, load
from tests.support.daemon import RunningGateway, gateway_config, run_gateway

SHOUT = {"name": "shout", "description": "Repeats it louder.", "hint": "what"}
SHOUT_COMMAND = {"name": "shout", "description": "Repeats it louder.", "input": {"hint": "what"}}
HUSH = {"name": "hush", "description": ""}


def command_lists(client: Client, session: str | None = None, since: int = 0) -> list[list[dict[str, Any]]]:
    """The lists of commands that the client received."""
    found = [u for u in client.updates(session, since) if u["sessionUpdate"] == "available_commands_update"]
    return [update["availableCommands"] for update in found]


def titles(client: Client, since: int = 0) -> list[str | None]:
    return [u.get("title") for u in client.updates(since=since) if u["sessionUpdate"] == "session_info_update"]


async def listed_titles(client: Client) -> list[str | None]:
    return [one.get("title") for one in (await client.request("session/list", {}))["sessions"]]


async def test_commands_are_sent_when_they_change_and_when_a_session_is_loaded(
    scripted: Scripted, acp: ConnectClient, portico: RunningGateway
) -> None:
    both = {"commands": [{"name": "hush"}, SHOUT]}
    loud = {"when": "^/shout .", "steps": [{"text": "LOUD"}]}
    client, session = await scripted(loud, [{"commands": [{"name": "hush"}]}, both, both, {"text": "ok"}])
    assert command_lists(client) == []
    await client.prompt(session, "one")
    assert command_lists(client) == [[HUSH], [HUSH, SHOUT_COMMAND]]
    since = len(client.received)
    await client.prompt(session, "/shout it")
    assert (client.text(since=since), command_lists(client, since=since)) == ("LOUD", [])
    for method in ("session/load", "session/resume"):
        other = await acp()
        await other.request(method, load(session))
        answered = next(n for n, message in enumerate(other.received) if message.get("id") == 2 and "result" in message)
        assert all("available_commands" not in str(message) for message in other.received[:answered])
        await other.until(lambda _, other=other: command_lists(other))
        assert command_lists(other) == [[HUSH, SHOUT_COMMAND]]
    # The agent of the first prompt is gone. A new one sends its own commands.
    found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    async with found.lock:
        await found.sleep()
    since = len(client.received)
    await client.prompt(session, "two")
    assert command_lists(client, since=since) == [[HUSH], [HUSH, SHOUT_COMMAND]]


async def test_commands_and_title_are_kept_over_a_restart(tmp_path: Path) -> None:
    (tmp_path / "scene.json").write_text(json.dumps({"turns": [{"steps": [{"commands": [SHOUT]}, {"title": " A\n name "}]}]}))
    agents = {"script": {"driver": "script", "cwd": str(tmp_path), "options": {"scenario": "scene.json"}}}
    async with run_gateway(gateway_config(tmp_path, agents=agents)) as running, connected(running.gateway, "script") as client:
        session = await client.new()
        await client.prompt(session, "go")
        assert titles(client) == ["A name", "A name"]
    async with run_gateway(gateway_config(tmp_path, agents=agents)) as running, connected(running.gateway, "script") as client:
        assert await listed_titles(client) == ["A name"]
        await client.request("session/resume", load(session))
        await client.until(lambda _: command_lists(client))
        assert command_lists(client) == [[SHOUT_COMMAND]]
        await client.request("session/delete", {"sessionId": session})
        assert await running.gateway.store.session_metadata.get(session) == SessionMetadataRecord()


async def test_title_of_the_agent_replaces_the_first_prompt(scripted: Scripted) -> None:
    turns = ([{"text": "."}], [{"title": "About {prompt}"}, {"title": "About {prompt}"}], [{"text": "."}], [{"title": ""}])
    client, session = await scripted(*turns)
    for text, reported, kept in (
        ("one", ["one"], "one"),
        ("two", ["About two", "About two"], "About two"),
        ("three", ["About two"], "About two"),
        ("four", ["one", "one"], "one"),
    ):
        since = len(client.received)
        await client.prompt(session, text)
        assert (titles(client, since), (await listed_titles(client))[0]) == (reported, kept)


async def test_commands_of_an_acp_agent_are_sent_before_the_first_prompt(tmp_path: Path) -> None:
    agent = small_agent(tmp_path)
    agent["env"]["ACP_AGENT_FLAGS"] = "commands_later"
    expected = {"name": "shout", "description": "Repeats it louder.", "input": {"hint": "text to repeat"}}
    async with (
        run_gateway(gateway_config(tmp_path, agents={"small": agent})) as running,
        connected(running.gateway, "small") as client,
    ):
        session = await client.new()
        # After the response: before it, the client does not know the session.
        assert "result" in client.received[-1]
        await client.until(lambda _: command_lists(client, session))
        assert command_lists(client) == [[expected]]
        since = len(client.received)
        await client.prompt(session, "/shout hello")
        assert (client.text(since=since), command_lists(client, since=since)) == ("HELLO", [])
        # The agent's plan and title are sent as well.
        await client.prompt(session, "plan")
        (plan,) = [u for u in client.updates(session) if u["sessionUpdate"] == "plan"]
        assert plan["entries"] == [{"content": "think", "priority": "high", "status": "pending"}]
        assert command_lists(client) == [[expected], [{"name": "help", "description": "Helps."}]]
        assert titles(client)[-2:] == ["A plan", "A plan"]
        # Updates between two runs are sent with the next run.
        await client.prompt(session, "late")
        await client.prompt(session, "say on")
        assert [command["name"] for command in command_lists(client)[-1]] == ["whisper"]


async def test_compactions_are_sent_to_a_client_that_supports_them(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    for session in ({}, {"compaction": None}, {"compaction": {}}):
        client, connection = connect(portico.gateway)
        await client.initialize(session=session)
        bare = json.dumps({"kind": "compacted"})
        steps = [{"compact": "A summary."}, {"text": "."}, {"line": bare}]
        session_id = await scripted_session(client, portico.gateway, write_scenario(steps))
        await client.prompt(session_id, "go")
        await connection.close()
        reported = [update for update in client.updates(session_id) if update["sessionUpdate"] == "compaction_update"]
        assert [update.get("summary") for update in reported] == (
            [[{"type": "text", "text": "A summary."}], None] if session.get("compaction") == {} else []
        ), session
        assert len({update["compactionId"] for update in reported}) == len(reported), session


@pytest.fixture
def claude(tmp_path: Path) -> dict[str, Any]:
    """The configuration of a program that lists models and commands as the claude CLI does, and accepts no prompt."""
    commands = [{"name": "cost", "description": "Tokens.", "argumentHint": ""}, {"name": "__inner", "description": "no"}]
    commands += [{"name": "review", "description": "Looks.", "argumentHint": "[what]", "builtin": True}]
    answer = {"type": "control_response", "response": {"request_id": "init", "response": {"commands": commands}}}
    program = tmp_path / "claude"
    program.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo 2.1.329;; auth) echo \'{"loggedIn": true}\';; '
        f"*) read request; echo '{json.dumps(answer)}'; cat > /dev/null;; esac\n"
    )
    program.chmod(0o755)
    return {"driver": "claude", "program": str(program)}


async def test_commands_are_sent_while_the_slash_commands_option_is_on(tmp_path: Path, claude: dict[str, Any]) -> None:
    expected = [
        {"name": "cost", "description": "Tokens."},
        {"name": "review", "description": "Looks.", "input": {"hint": "[what]"}},
    ]
    on = {**claude, "options": {"slash_commands": "on"}}
    for _ in range(2):
        # The second gateway reads them from discovery.json.
        config = gateway_config(tmp_path, agents={"claude": claude, "always": on})
        async with run_gateway(config) as running:
            async with connected(running.gateway, "claude") as client:
                session = await client.new()
                for value, reported in (("on", expected), ("off", []), ("on", expected)):
                    since = len(client.received)
                    choice = {"sessionId": session, "configId": "slash_commands", "value": value}
                    await client.request("session/set_config_option", choice)
                    assert command_lists(client, since=since) == [reported]
                assert len(command_lists(client)) == 3
                forked = await client.request("session/fork", {"sessionId": session, "cwd": ".", "mcpServers": []})
                await client.until(lambda _: command_lists(client, forked["sessionId"]))  # noqa: B023
            async with connected(running.gateway, "always") as client:
                session = await client.new()
                await client.until(lambda _: command_lists(client, session))  # noqa: B023
                assert command_lists(client) == [expected]
        kept = json.loads((tmp_path / "data" / "discovery.json").read_text())
        assert any(probe["commands"] for key, probe in kept.items() if key.startswith("claude|"))
