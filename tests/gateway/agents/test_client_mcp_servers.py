"""MCP servers that clients bring: audited, and allowed by the agent's configuration."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.mcp_servers import McpServer
from gateway.agents.client_mcp_servers import audit_arguments
from gateway.config import parse
from gateway.errors import ConfigError
from gateway.security.authentication import Caller
from gateway.store import AuditRecord
from tests.gateway.cli.test_acp import small_agent
from tests.support.acp_client import Client, RpcFailed, connect
from tests.support.daemon import RunningGateway, gateway_config, run_gateway

FILES = {"name": "files", "command": "/bin/files", "args": ["-x"], "env": [{"name": "TOKEN", "value": "tok-5up3r-long"}]}
SHELL = {"name": "shell", "command": "/bin/sh", "args": ["-c", "id"], "env": []}
WEB = {"type": "http", "name": "web", "url": "https://mcp.example.org/mcp", "headers": [{"name": "X-Key", "value": "tok-5up3r"}]}
LISTED = {
    "mcp": "listed",
    "mcp_servers": [
        {"command": "/bin/files", "args": ["-x"], "env": ["TOKEN", "LEVEL"]},
        {"url": "https://mcp.example.org/mcp"},
    ],
}


@asynccontextmanager
async def client_of(folder: Path, caller: Caller | None = None, **entry: Any) -> AsyncIterator[tuple[Client, RunningGateway]]:
    async with run_gateway(gateway_config(folder, agents={"small": small_agent(folder, **entry)})) as running:
        client, connection = connect(running.gateway, "small", *([caller] if caller else []))
        await client.initialize()
        yield client, running
        await connection.close()


async def audited(running: RunningGateway) -> list[AuditRecord]:
    return await running.gateway.store.audit.newest(100)


async def test_servers_of_clients_are_audited_without_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with client_of(tmp_path) as (client, running):
        session = await client.new(mcpServers=[FILES, WEB])
        [files, web] = await audited(running)
        assert (files.session_id, files.tool, files.call_id, files.outcome, files.by) == (
            session, "mcp server", "files", "configured", "client",
        )  # fmt: skip
        assert json.loads(files.arguments) == {"transport": "stdio", "command": "/bin/files", "args": ["-x"], "env": ["TOKEN"]}
        assert json.loads(web.arguments) == {"transport": "http", "url": "https://mcp.example.org/mcp", "headers": ["X-Key"]}
        await client.request("session/load", {"sessionId": session, "cwd": ".", "mcpServers": [FILES, WEB]})
        assert len(await audited(running)) == 2
        await client.request("session/load", {"sessionId": session, "cwd": ".", "mcpServers": [SHELL]})
        assert [row.call_id for row in await audited(running)] == ["files", "web", "shell"]
        assert "configured mcp server of small (call shell" in caplog.text
        assert "5up3r" not in caplog.text + "".join(row.arguments for row in await audited(running))


async def test_no_server_is_allowed(tmp_path: Path) -> None:
    async with client_of(tmp_path, mcp="none") as (client, running):
        can = (await client.initialize())["agentCapabilities"]["mcpCapabilities"]
        assert (can["http"], can["sse"]) == (False, False)
        session = await client.new()
        for method, params in (
            ("session/new", {}),
            ("session/load", {"sessionId": session}),
            ("session/resume", {"sessionId": session}),
        ):
            with pytest.raises(RpcFailed, match=r"mcpServers\[0\]: agent 'small' allows no MCP servers of clients") as refused:
                await client.request(method, {**params, "cwd": ".", "mcpServers": [SHELL]})
            assert refused.value.code == -32602
        rows = await audited(running)
        assert [(row.session_id, row.outcome, row.by) for row in rows] == [
            ("", "denied", "mcp"), (session, "denied", "mcp"), (session, "denied", "mcp"),
        ]  # fmt: skip
        assert json.loads(rows[0].arguments)["args"] == ["-c", "id"]


def changed(server: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**server, **fields}


@pytest.mark.parametrize(
    "server",
    [
        SHELL,
        changed(FILES, command="/bin/other"),
        changed(FILES, command="files"),
        changed(FILES, args=["-x", "-y"]),
        changed(FILES, args=[]),
        changed(FILES, command="/bin/files -x", args=[]),
        changed(FILES, env=[{"name": "LD_PRELOAD", "value": "/tmp/x.so"}]),
        changed(FILES, env=[*FILES["env"], {"name": "PATH", "value": "/tmp"}]),  # type: ignore[misc]
        changed(WEB, url="https://mcp.example.org/mcp2"),
        changed(WEB, url="http://mcp.example.org/mcp"),
    ],
    ids=str,
)
async def test_only_listed_servers_are_allowed(tmp_path: Path, server: dict[str, Any]) -> None:
    async with client_of(tmp_path, **LISTED) as (client, running):
        with pytest.raises(RpcFailed, match=r"is not one of agents\.small\.mcp_servers"):
            await client.new(mcpServers=[FILES, server])
        assert [row.outcome for row in await audited(running)] == ["denied"]
        await client.new(mcpServers=[FILES, changed(FILES, env=[{"name": "LEVEL", "value": "info"}]), WEB])


async def test_servers_that_are_forbidden_later_are_not_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(tmp_path) as (client, _):
        session = await client.new(mcpServers=[FILES, SHELL])
    async with client_of(tmp_path, **LISTED) as (_, running):
        turn = {"messages": [{"role": "user", "content": "servers"}]}
        answer = (await running.client.post(f"/session/{session}", json=turn)).json()
        assert answer["messages"][-1]["content"] == "files /bin/files -x TOKEN=tok-5up3r-long"
        assert "agents.small.mcp does not allow its MCP servers 'shell'" in caplog.text


@pytest.mark.parametrize(
    ("server", "args"),
    [
        (McpServer("s", command="x", args=("--token", "abc", "y")), ["--token", "***", "y"]),
        (McpServer("s", command="x", args=("--api-key=abc", "-k=1")), ["--api-key=***", "-k=1"]),
        (McpServer("s", command="x", args=("--header", "Authorization: Bearer abc")), ["--header", "***"]),
        (McpServer("s", command="x", args=("-c", "curl https://u:pw@h/?token=abc")), ["-c", "curl https://u:***@h/?token=***"]),
        (McpServer("s", command="x", args=("--db=in-the-env",), env={"A": "in-the-env"}), ["--db=in-the-env"]),
        (McpServer("s", command="x", args=("--level=info",), env={"A": "info"}), ["--level=info"]),
    ],
)
def test_arguments_are_audited_without_secrets(server: McpServer, args: list[str]) -> None:
    assert audit_arguments(server)["args"] == args


def test_long_argument_is_audited_in_linear_time() -> None:
    before = time.thread_time()
    argument = "--" + "key" * 200_000 + "!"
    assert audit_arguments(McpServer("s", command="x", args=(argument, "y")))["args"] == [argument, "y"]
    assert time.thread_time() - before < 1


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ([FILES] * 101, r"mcpServers: 101 are too many; there may be 100"),
        ([{**FILES, "name": "x" * 257}], r"mcpServers\[0\]\.name: 257 characters are too many; it may have 256"),
        ([SHELL, {**FILES, "args": ["x" * 40_000, "y" * 40_000]}], r"mcpServers\[1\]: \d+ characters are too many"),
        ([{**WEB, "url": "https://x/" + "y" * 70_000}], r"mcpServers\[0\]: \d+ characters"),
        ([{**FILES, "env": [{"name": "A", "value": "y" * 70_000}]}], r"mcpServers\[0\]: \d+ characters"),
    ],
)
async def test_servers_have_a_limit(servers: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    async with client_of(tmp_path) as (client, running):
        with pytest.raises(RpcFailed, match=message):
            await client.new(mcpServers=servers)
        assert await audited(running) == []


def test_address_is_audited_without_its_secrets() -> None:
    server = McpServer("s", "http", url="https://u:pw@mcp.example.org/mcp?key=abc#x", headers={"B": "1", "A": "2"})
    assert audit_arguments(server) == {"transport": "http", "url": "https://mcp.example.org/mcp?***", "headers": ["A", "B"]}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"mcp": "some"}, "agents.x.mcp: input should be 'none', 'listed' or 'any'"),
        ({"mcp_servers": [{"command": "x"}]}, 'has no effect without mcp = "listed"'),
        ({"mcp": "listed", "mcp_servers": [{}]}, "agents.x.mcp_servers.0: must have either `command`"),
        ({"mcp": "listed", "mcp_servers": [{"command": "x", "url": "y"}]}, "agents.x.mcp_servers.0: must have either `command`"),
        ({"mcp": "listed", "mcp_servers": [{"url": "y", "args": ["z"]}]}, "`args` and `env` are of a `command`"),
        ({"mcp": "listed", "mcp_servers": [{"comand": "x"}]}, "did you mean 'command'"),
    ],
)
def test_invalid_settings_are_errors_at_the_start(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse({"agents": {"x": {"driver": "acp", **entry}}})
    assert message in str(refused.value)
