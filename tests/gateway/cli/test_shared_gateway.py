"""`portico acp` in several processes with one data directory: one of them, or a daemon, serves all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.cli.options import load_settings
from gateway.cli.shared_gateway import EditorRequest, SharedGateway
from gateway.protocols.acp.transport.local_socket import request_release
from tests.conftest import write_config
from tests.daemon import Daemon
from tests.gateway.portico_command import PorticoCommand
from tests.gateway.protocols.acp.client import Client, RpcFailed
from tests.gateway.protocols.acp.transports import config, on_stdio


async def sessions_of(client: Client) -> set[str]:
    return {session["sessionId"] for session in (await client.request("session/list"))["sessions"]}


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "data" / "acp-socket.json").read_text())
    return found


async def gone(pid: int) -> None:
    """Wait until the process has ended."""
    await asyncio.to_thread(psutil.wait_procs, [psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=30)


class TwoEditors:
    """Two processes of `portico acp` with one data directory, and the settings that they share."""

    def __init__(self, folder: Path, agent: str) -> None:
        self.folder, self.agent = folder, agent
        self.settings = config(folder)
        self.stack = AsyncExitStack()

    async def __aenter__(self) -> TwoEditors:
        self.first, self.first_process = await self.editor()
        self.second, self.second_process = await self.editor()
        return self

    async def editor(self, agent: str | None = None) -> tuple[Client, asyncio.subprocess.Process]:
        started = on_stdio(self.folder, agent or self.agent, settings=self.settings)
        client, process = await self.stack.enter_async_context(started)
        await client.initialize()
        return client, process

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()


async def end(process: asyncio.subprocess.Process) -> int:
    assert process.stdin is not None
    process.stdin.close()
    return await asyncio.wait_for(process.wait(), 60)


async def test_two_editors_have_one_history_and_the_second_stays_when_the_first_ends(tmp_path: Path) -> None:
    async with TwoEditors(tmp_path, "echo") as two:
        one, other = await two.first.new(), await two.second.new()
        assert await sessions_of(two.first) == await sessions_of(two.second) == {one, other}
        serving = record(tmp_path)["pid"]
        assert await end(two.first_process) == 0
        await two.second.request("session/load", {"sessionId": one, "cwd": ".", "mcpServers": []})
        assert (await two.second.prompt(one, "hello"))["stopReason"] == "end_turn"
        assert record(tmp_path)["pid"] == serving
        assert await end(two.second_process) == 0
        # The last one ends with the process that serves.
        await gone(serving)
        assert not (tmp_path / "data" / "acp-socket.json").exists() and not (tmp_path / "data" / "acp.sock").exists()


async def test_editors_go_on_when_the_process_that_serves_them_is_killed(tmp_path: Path) -> None:
    async with TwoEditors(tmp_path, "script") as two:
        one, other = await two.first.new(), await two.second.new()
        prompt = await two.first.begin("session/prompt", {"sessionId": one, "prompt": [{"type": "text", "text": "work"}]})
        request = await asyncio.wait_for(two.first.permission_requests.get(), 60)
        killed = record(tmp_path)["pid"]
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(RpcFailed) as failed:
            await asyncio.wait_for(prompt, 60)
        assert "session/prompt: the process that serves the sessions has ended before its answer" in failed.value.message
        # Both go on with the sessions that they had open, without another initialize.
        assert await sessions_of(two.first) == await sessions_of(two.second) == {one, other}
        assert record(tmp_path)["pid"] != killed
        cancelled = [m["params"]["requestId"] for m in two.first.received if m.get("method") == "$/cancel_request"]
        assert cancelled == [request["id"]]
        two.second.choose = lambda _: "allow_once"
        assert (await two.second.prompt(other, "work"))["stopReason"] == "end_turn"


async def test_a_daemon_serves_the_editors_and_takes_their_sessions_over(tmp_path: Path) -> None:
    async with TwoEditors(tmp_path, "echo") as two:
        session = await two.first.new()
        serving = record(tmp_path)["pid"]
        daemon = await Daemon(write_config(tmp_path, two.settings), tmp_path).start()
        try:
            await gone(serving)
            assert record(tmp_path)["pid"] == daemon.pid
            assert await sessions_of(two.second) == {session}
            assert (await two.first.prompt(session, "hello"))["stopReason"] == "end_turn"
            async with daemon.client() as client:
                assert session in (await client.get("/sessions")).text
        finally:
            assert await daemon.stop() == 0
        # Without the daemon, one of them serves both again.
        assert await sessions_of(two.first) == await sessions_of(two.second) == {session}


async def test_a_daemon_does_not_end_runs_of_editors(tmp_path: Path) -> None:
    settings = config(tmp_path)
    async with on_stdio(tmp_path, "script", settings=settings) as (client, _):
        await client.initialize()
        session = await client.new()
        await client.begin("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "work"}]})
        await client.next_permission_request()
        code, _, err = await PorticoCommand(tmp_path, "serve").run()
        assert (code, len(err.splitlines())) == (1, 1)
        assert "runs of editors are under way (1); start it when they have ended" in err


async def test_the_socket_needs_its_token(tmp_path: Path) -> None:
    async with on_stdio(tmp_path, "echo") as (client, _):
        await client.initialize()
        found = record(tmp_path)
        for file in (tmp_path / "data" / "acp-socket.json", Path(found["path"])):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for hello in (b'{"agent":"echo"}', b'{"agent":"echo","token":"guess"}', b'{"release":true}', b"[]", b"no JSON"):
            reader, writer = await asyncio.open_unix_connection(found["path"])
            writer.write(hello + b"\n")
            assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_unix_connection(found["path"])
        writer.write(json.dumps({"agent": "missing", "token": found["token"]}).encode() + b"\n")
        assert b"there is no agent 'missing' here" in await reader.read()
        writer.close()


async def test_an_editor_is_served_where_there_can_be_no_socket(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    # The record file is written by this name.
    (tmp_path / "data" / "acp-socket.new").mkdir()
    async with on_stdio(tmp_path, "echo", stderr=True) as (client, process):
        await client.initialize()
        assert (await client.prompt(await client.new(), "hello"))["stopReason"] == "end_turn"
        assert await end(process) == 0
    assert process.stderr is not None
    (warning,) = (await process.stderr.read()).decode().splitlines()
    assert "other editors cannot be served with the data directory" in warning


async def test_a_process_that_is_released_closes_its_gateway_although_the_disk_is_full(tmp_path: Path) -> None:
    async with on_stdio(tmp_path, "echo") as (client, _):
        await client.initialize()
        await client.new()
        serving = record(tmp_path)["pid"]
        (tmp_path / "data" / "acp-socket.new").mkdir()
        assert await asyncio.to_thread(request_release, tmp_path / "data")
        await gone(serving)
        log = (tmp_path / "data" / "acp.log").read_text()
        assert "an editor may start a process before the daemon has started" in log and "Traceback" not in log


async def test_a_log_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "data" / "acp.log").mkdir(parents=True)
    code, out, err = await PorticoCommand(tmp_path, "acp", "echo").run()
    assert (code, out, err) == (1, "", f"Error: {tmp_path}/data/acp.log cannot be used: Is a directory\n")


def test_a_process_that_fails_at_its_start_is_started_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("gateway.cli.serving_process.serve_editors", fail)
    settings = load_settings(None, tmp_path / "data")
    with pytest.raises(SystemExit) as exited:
        SharedGateway(tmp_path / "data", lambda: settings, EditorRequest("echo")).connect(0)
    assert exited.value.code == 1
    assert capfd.readouterr().err.count("RuntimeError: a fault") == 1
