"""The requirements of the protocol's official test kit, on `echo` and `script`: over a connection in this process, and over
standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_config
from tests.daemon import SCENARIOS, gateway_on, table
from tests.gateway.protocols.acp.client import Client, connect
from tests.gateway.protocols.acp.requirements import REQUIREMENTS

AGENTS = ("echo", "script")


def config(folder: Path) -> dict[str, Any]:
    work = folder / "work"
    work.mkdir()
    (work / "acp.json").write_text((SCENARIOS / "acp.json").read_text())
    return table(folder, agents={"script": {"driver": "script", "cwd": str(work), "options": {"scenario": "acp.json"}}})


@asynccontextmanager
async def on_stdio(
    folder: Path, agent: str, *more: str, stderr: bool = False
) -> AsyncIterator[tuple[Client, asyncio.subprocess.Process]]:
    """A client of `portico acp AGENT`."""
    command = (sys.executable, "-m", "gateway", "acp", "--config", str(write_config(folder, config(folder))), *more, agent)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE if stderr else None,
        limit=64 * 1024 * 1024,
        cwd=folder,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def send(message: dict[str, Any]) -> None:
        stdin.write(json.dumps(message).encode() + b"\n")
        await stdin.drain()

    async def read() -> None:
        while line := await stdout.readline():
            # Whatever is not a message of JSON-RPC fails here.
            await client.take(json.loads(line.decode("utf-8", "strict")))

    client = Client(send)
    reading = asyncio.create_task(read())
    try:
        yield client, process
    finally:
        if process.returncode is None:
            stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
        await reading


@pytest.mark.parametrize("name", REQUIREMENTS)
@pytest.mark.parametrize("agent", AGENTS)
async def test_in_this_process(tmp_path: Path, agent: str, name: str) -> None:
    async with gateway_on(config(tmp_path)) as running:
        client, connection = connect(running.gateway, agent)
        await client.initialize()
        await REQUIREMENTS[name](client)
        await connection.close()


@pytest.mark.parametrize("agent", AGENTS)
async def test_over_standard_input_and_output(tmp_path: Path, agent: str) -> None:
    async with on_stdio(tmp_path, agent) as (client, process):
        await client.initialize()
        for check in REQUIREMENTS.values():
            await check(client)
        assert process.stdin is not None
        # It ends when its input does.
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_what_is_no_message(tmp_path: Path) -> None:
    async with on_stdio(tmp_path, "echo") as (client, process):
        assert process.stdin is not None
        for line, code in (
            (b"{nonsense", -32700),
            (b"[]", -32600),
            (b'"text"', -32600),
            (b'{"id": 1}', -32600),
            (b"\xff\xfe", -32700),
        ):
            process.stdin.write(line + b"\n")
            before = len(client.got)
            await client.until(lambda got, n=before: len(got) > n)
            assert (client.got[-1]["id"], client.got[-1]["error"]["code"]) == (None, code)
        with pytest.raises(Exception, match="initialize"):
            await client.new()
        await client.initialize()
        assert await client.new()


async def test_sessions_are_there_at_the_next_start(tmp_path: Path) -> None:
    async with on_stdio(tmp_path, "script") as (client, _):
        await client.initialize()
        session = await client.new()
        await client.prompt(session, "one")
    (tmp_path / "work" / "acp.json").unlink()
    (tmp_path / "work").rmdir()
    async with on_stdio(tmp_path, "script") as (client, _):
        await client.initialize()
        assert [s["sessionId"] for s in (await client.request("session/list"))["sessions"]] == [session]
        await client.request("session/load", {"sessionId": session, "cwd": ".", "mcpServers": []})
        assert client.text(session) == "Hello, you said: one"


async def test_any_folder_of_the_user(tmp_path: Path) -> None:
    """An agent without a folder of its own, started by its user: the folder that the editor names."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with on_stdio(tmp_path, "echo") as (client, _):
        await client.initialize()
        await client.new(str(elsewhere))
        assert (await client.request("session/list"))["sessions"][0]["cwd"] == str(elsewhere)
        await client.new()
        assert (await client.request("session/list"))["sessions"][0]["cwd"] == str(tmp_path)
