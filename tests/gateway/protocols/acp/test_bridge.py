"""`portico acp --connect`: a bridge from standard input and output to a daemon."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.protocols.acp.transport.bridge import endpoint
from tests.support.acp_client import RpcFailed, config, on_stdio
from tests.support.daemon import KEY, RunningGateway, run_gateway


async def test_bridge_carries_a_session_of_a_daemon(portico: RunningGateway, tmp_path: Path) -> None:
    folder, key = tmp_path / "editor", tmp_path / "key"
    folder.mkdir()
    key.write_text(KEY + "\n")
    async with on_stdio(folder, "echo", "--connect", portico.url, "--key-file", str(key)) as (client, process):
        await client.initialize()
        session = await client.new()
        big = "x" * 3_000_000
        assert (await client.prompt(session, big))["stopReason"] == "end_turn"
        assert client.text(session) == big
        assert session in (await portico.client.get("/sessions")).json()["sessions"]
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert not (folder / "data").exists()
    # Requests sent before end of input are answered.
    key = tmp_path / "key"
    key.write_text(KEY)
    async with on_stdio(tmp_path, "echo", "--connect", portico.url, "--key-file", str(key)) as (client, process):
        assert process.stdin is not None
        asked = [asyncio.create_task(client.initialize()), asyncio.create_task(client.new())]
        await asyncio.sleep(0)
        process.stdin.close()
        assert [await asyncio.wait_for(one, 60) for one in asked][1] in (await portico.client.get("/sessions")).text
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_input_that_is_no_pipe(portico: RunningGateway, tmp_path: Path) -> None:
    for kind in ("nothing", "a file"):
        key, requests = tmp_path / "key", tmp_path / "requests"
        key.write_text(KEY)
        initialize = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {"protocolVersion": 1}}
        requests.write_text(json.dumps(initialize) + "\n")
        command = [sys.executable, "-m", "gateway", "acp", "echo", "--connect", portico.url, "--key-file", str(key)]
        given = os.open(requests if kind == "a file" else os.devnull, os.O_RDONLY)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=given, stdout=pipe, stderr=pipe)
        os.close(given)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, err) == (0, b""), kind
        assert [json.loads(line)["id"] for line in out.splitlines()] == ([7] if kind == "a file" else []), kind


async def test_connection_errors_are_printed_with_exit_code_1(portico: RunningGateway, tmp_path: Path) -> None:
    async def error_output(*arguments: str) -> str:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        async with on_stdio(folder, "echo", *arguments, stderr=True) as (_, process):
            assert process.stderr is not None
            text = (await asyncio.wait_for(process.stderr.read(), 60)).decode()
            assert await process.wait() == 1
            return text

    key = tmp_path / "wrong-key"
    key.write_text("pk-not-this-one")
    refused = await error_output("--connect", portico.url, "--key-file", str(key))
    assert "401" in refused
    assert "--key-file" in refused
    assert "pk-not-this-one" not in refused
    with socket.create_server(("127.0.0.1", 0)) as free:
        unused = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert "no daemon answers" in await error_output("--connect", unused)
    assert "--key-file" in await error_output("--connect", unused, "--key-file", str(tmp_path / "absent"))


async def test_the_first_request_gets_the_reason_as_an_error_of_the_protocol(portico: RunningGateway, tmp_path: Path) -> None:
    async def error_of(agent: str, key: str) -> str:
        file = tmp_path / "given"
        file.write_text(key)
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        async with on_stdio(folder, agent, "--connect", portico.url, "--key-file", str(file), stderr=True) as (client, process):
            with pytest.raises(RpcFailed) as failed:
                await client.initialize()
            assert await asyncio.wait_for(process.wait(), 60) == 1
            return failed.value.message

    wrong_key = "initialize: the daemon does not accept this key; give its key with --key-file or PORTICO_API_KEY"
    assert await error_of("echo", "pk-not-this-one") == wrong_key
    unknown = await error_of("missing", KEY)
    assert unknown.startswith("initialize: the daemon refused the connection: there is no agent 'missing' here")


async def test_requests_under_way_get_an_error_when_the_daemon_ends(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY)
    settings = config(tmp_path)
    async with run_gateway(settings) as running:
        arguments = ("script", "--connect", running.url, "--key-file", str(key))
        async with on_stdio(tmp_path, *arguments, settings=settings, stderr=True) as (client, process):
            await client.initialize()
            session = await client.new()
            prompt = await client.begin("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "work"}]})
            await client.next_permission_request()
            await running.gateway.stop_runs()
            with pytest.raises(RpcFailed):
                await asyncio.wait_for(prompt, 60)
            assert await asyncio.wait_for(process.wait(), 60) == 1


def test_endpoint_of_a_daemon_address() -> None:
    for address, url in (
        ("http://127.0.0.1:7700", "ws://127.0.0.1:7700/acp/echo"),
        ("127.0.0.1:7700/", "ws://127.0.0.1:7700/acp/echo"),
        ("https://example.org/portico/", "wss://example.org/portico/acp/echo"),
    ):
        assert endpoint(address, "echo") == url, (address, url)
    # Endpoint refuses another scheme.
    with pytest.raises(ConfigError, match="not the address of a daemon"):
        endpoint("ftp://x", "echo")
