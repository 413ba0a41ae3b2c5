"""Errors that clients can display, and logins: with a program that is missing or logged out, and in a terminal."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from acp.schema import InitializeResponse

from gateway.agents import discovery
from gateway.agents.configured_agents import Agents
from gateway.cli.login import run_login
from gateway.cli.main import main
from gateway.config import Settings, load, parse
from gateway.errors import ConfigError
from gateway.protocols.acp.initialization import acp_command, client_features, initialize_response
from gateway.protocols.acp.transport.bridge import endpoint
from gateway.protocols.acp.transport.messages import PARSE_ERROR
from tests.gateway.protocols.acp.conftest import ConnectClient
from tests.support.acp_client import RpcFailed, connected, on_stdio, on_websocket
from tests.support.daemon import KEY, gateway_config, run_gateway
from tests.support.named_keys import add_key

# Not in Python, which takes longer to start than all else in these tests.
CLAUDE = """#!/bin/sh
case "$*" in
    --version) echo "2.1.330 (Claude Code)" ;;
    --print*) echo '{{"type":"control_response","response":{{"subtype":"success","request_id":"init"}}}}'; cat > /dev/null ;;
    "auth status"*) if test -e '{login}'; then echo '{{"loggedIn": true}}'; else echo '{{"loggedIn": false}}'; fi ;;
esac
"""


def fake_claude(folder: Path) -> Path:
    """A program that answers the probe. It is logged in once the file `login` exists."""
    program = folder / "claude"
    program.write_text(CLAUDE.format(login=folder / "login"))
    program.chmod(0o755)
    return program


def methods(agent: str, command: Any = ("portico", "acp"), **capabilities: Any) -> list[dict[str, Any]]:
    """The login methods for a client with these capabilities."""
    features = client_features({"protocolVersion": 1, "clientCapabilities": capabilities})
    answer = initialize_response(Agents(Settings(), environ={}).get(agent), "1.0", features, command)
    InitializeResponse.model_validate(answer)
    return list(answer["authMethods"])


async def test_every_error_has_details(acp: ConnectClient) -> None:
    client = await acp("echo")
    for method, params in (("no/such/method", {}), ("session/prompt", {}), ("session/load", {"sessionId": "x", "cwd": "."})):
        with pytest.raises(RpcFailed):
            await client.request(method, {"mcpServers": [], **params})
    errors = [message["error"] for message in client.received if "error" in message]
    assert len(errors) == 3
    assert all(error["data"] == {"details": error["message"]} for error in [*errors, PARSE_ERROR["error"]])


async def test_session_is_refused_at_once_without_the_program(tmp_path: Path) -> None:
    agents = {"claude": {"driver": "claude", "program": str(tmp_path / "missing")}}
    async with run_gateway(gateway_config(tmp_path, agents=agents)) as portico, connected(portico.gateway, "claude") as client:
        with pytest.raises(
            RpcFailed, match=r"does not exist; install it with `npm install -g @anthropic-ai/claude-code`"
        ) as refused:
            await client.new()
        assert refused.value.code == -32603
        assert not (await client.request("session/list"))["sessions"]


async def test_session_is_refused_while_the_program_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the first one, and without a login: a program that is too old may not know how to log in."""
    program = fake_claude(tmp_path)
    program.write_text(program.read_text().replace("2.1.330", "2.1.100"))
    async with (
        run_gateway(gateway_config(tmp_path, agents={"claude": {"driver": "claude", "program": str(program)}})) as portico,
        connected(portico.gateway, "claude") as client,
    ):
        with pytest.raises(
            RpcFailed, match=r"2\.1\.100 is older than 2\.1\.148, the oldest version that is supported"
        ) as refused:
            await client.new()
        assert refused.value.code == -32603
        assert not (await client.request("session/list"))["sessions"]
        # A version manager starts another program by the same file.
        changed = program.stat().st_mtime_ns
        fake_claude(tmp_path)
        os.utime(program, ns=(changed, changed))
        (tmp_path / "login").touch()
        monkeypatch.setattr(discovery, "MAX_AGE_PROBLEM", 0.0)
        assert await client.new()


async def test_session_is_refused_without_a_login_until_there_is_one(tmp_path: Path) -> None:
    agents = {"claude": {"driver": "claude", "program": str(fake_claude(tmp_path)), "env": {"CLAUDE_CONFIG_DIR": str(tmp_path)}}}
    async with run_gateway(gateway_config(tmp_path, agents=agents)) as portico, connected(portico.gateway, "claude") as client:
        with pytest.raises(RpcFailed, match=r"not logged in: run `\S+claude auth login --claudeai` in a terminal") as refused:
            await client.new()
        assert refused.value.code == -32000
        (tmp_path / "login").touch()
        # The login is noticed at once, not when the last result of a probe expires.
        assert await client.new()
        assert await client.request("authenticate", {"methodId": "claude-login"}) == {}


def test_terminal_methods_are_only_for_clients_that_declare_them() -> None:
    for agent, expected in (
        ("claude", ["claude-login", "console-login"]),
        ("codex", ["codex-login"]),
        ("gemini", ["gemini-login"]),
    ):
        assert [method["id"] for method in methods(agent)] == ["login"], (agent, expected)
        assert [method["id"] for method in methods(agent, auth={"terminal": False}, _meta={"terminal-auth": "no"})] == [
            "login"
        ], (agent, expected)
        assert [method["id"] for method in methods(agent, auth=1, _meta=2)] == ["login"], (agent, expected)
        # A client that has not started the agent cannot start it in a terminal.
        assert [method["id"] for method in methods(agent, None, auth={"terminal": True})] == ["login"], (agent, expected)
        found = methods(agent, auth={"terminal": True})
        assert [method["id"] for method in found] == [*expected, "login"], (agent, expected)
        assert found[0]["type"] == "terminal" and found[0]["args"] == [f"--login={expected[0]}"] and "_meta" not in found[0], (
            agent,
            expected,
        )
        assert "type" not in found[-1], (agent, expected)
    # Terminal command in `_meta`.
    first = methods("codex", ("portico", "acp", "codex"), _meta={"terminal-auth": True})[0]
    assert first["description"] == "Run `codex login` in a terminal."
    assert first["_meta"] == {
        "terminal-auth": {"command": "portico", "args": ["acp", "codex", "--login=codex-login"], "label": "Codex login"}
    }
    # Agent without a program has no login.
    assert methods("echo", auth={"terminal": True}) == []
    # Address of the bridge.
    assert endpoint("127.0.0.1:7700", "claude", terminal_login=True) == "ws://127.0.0.1:7700/acp/claude?terminal_login=on"
    assert endpoint("127.0.0.1:7700", "claude", "off") == "ws://127.0.0.1:7700/acp/claude?slash_commands=off"
    assert endpoint("127.0.0.1:7700", "claude") == "ws://127.0.0.1:7700/acp/claude"


@pytest.mark.parametrize(
    ("agent", "named", "count"),
    [("claude", False, 1), ("claude?terminal_login=on", False, 3), ("claude?terminal_login=on", True, 1)],
)
async def test_terminal_methods_over_a_websocket(tmp_path: Path, agent: str, named: bool, count: int) -> None:
    """The bridge of `portico acp --connect` requests them; a named key does not get command lines of the gateway."""
    async with run_gateway(gateway_config(tmp_path)) as portico:
        key = await add_key(portico.gateway, "phone") if named else KEY
        async with on_websocket(portico.url, agent, key) as client:
            answer = await client.initialize(auth={"terminal": True})
    assert len(answer["authMethods"]) == count


# -- the command ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that this process would have become."""
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    return calls


def test_login_command_starts_the_program(tmp_path: Path, executed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_claude(tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(f'[agents.mine]\ndriver = "claude"\nprogram = "{program}"\nenv = {{ CLAUDE_CONFIG_DIR = "/c" }}\n')
    monkeypatch.setattr("gateway.cli.acp.deny_process_inspection", lambda: None)
    command = acp_command("mine", load(config))
    assert command[:5] == (sys.executable, "-P", "-m", "gateway", "acp")
    for given, arguments in (("--login", ["--claudeai"]), ("--login=console-login", ["--console"])):
        main([*command[4:], given], standalone_mode=False)
        path, argv, env = executed.pop()
        assert (path, argv) == (str(program), [str(program), "auth", "login", *arguments])
        assert env["CLAUDE_CONFIG_DIR"] == "/c"


async def test_login_command_runs_no_module_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "gateway.py").write_text("raise SystemExit(99)")
    command = [*acp_command("missing", load(None)), "--login"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env={"HOME": str(tmp_path)}, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert (process.returncode, "there is no agent 'missing'" in err.decode()) == (1, True)


def test_login_that_cannot_be_started(tmp_path: Path, executed: list[Any]) -> None:
    for agent, method, daemon, reason in (
        ("nobody", "", None, "there is no agent"),
        ("echo", "", None, "has no login that can be started"),
        ("claude", "no-such", None, "choose one of claude-login, console-login"),
        ("missing", "", None, "does not exist; install it"),
        ("claude", "", "http://gateway.lan:7700", "on another machine"),
    ):
        claude = {"driver": "claude", "program": str(fake_claude(tmp_path))}
        settings = parse({"agents": {"claude": claude, "missing": {"driver": "claude", "program": "/no/such"}}})
        with pytest.raises(ConfigError, match=reason):
            run_login(settings, agent, method, daemon)
        assert not executed, (agent, method)


# -- standard error ------------------------------------------------------------------------------------------------------------


async def test_standard_error_is_empty_and_the_log_is_a_file(tmp_path: Path) -> None:
    async with on_stdio(tmp_path, "script", stderr=True) as (client, process):
        await client.initialize()
        client.choose = lambda params: "allow_once"
        session = await client.new()
        # Tool calls, whose audit is logged.
        await client.prompt(session, "do the work")
        assert process.stdin is not None and process.stderr is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.stderr.read(), 60) == b""
    log = tmp_path / "data" / "acp.log"
    assert "audit" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
