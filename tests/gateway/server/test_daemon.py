"""`portico serve`: output, startup errors and shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.errors import ConfigError
from gateway.security.loopback import check_key_lengths, check_no_auth
from gateway.security.process_inspection import ALLOWED_BY
from tests.conftest import write_config
from tests.support.daemon import Daemon, gateway_config, http_client
from tests.support.portico_command import PorticoCommand
from tests.support.requests import (
    agent_processes,
    create_session,
    expect_error,
    get_history,
    is_alive,
    read_pid,
    send_turn,
    session_body,
    user_message,
)
from tests.support.sse import parse_frames, parse_output_events
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]


async def test_serve_prints_one_line_to_standard_output(daemon: Daemon) -> None:
    daemon.forked = False
    await daemon.start()
    assert daemon.process is not None and daemon.process.stdout is not None
    host, _, port = daemon.url.removeprefix("http://").partition(":")
    assert host == "127.0.0.1"
    assert int(port) > 1023
    async with daemon.client() as client:
        assert (await client.get("/healthz")).json()["status"] == "ok"
        await create_session(client, "echo")
        await client.get("/nothing")
    daemon.process.send_signal(signal.SIGTERM)
    assert await daemon.process.stdout.read() == b""
    await daemon.process.wait()
    assert await daemon.stop() == 0
    assert b"Traceback" not in daemon.stderr
    assert b"the daemon exits" not in daemon.stderr, "that is for an exit that waits for nothing"


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGINT, signal.SIGHUP))]
)
async def test_signal_ends_running_turns_and_agents(
    daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path, number: signal.Signals
) -> None:
    stray = {"seconds": 300, "new_session": True, "pid_file": "stray"}
    hang = [{"text": "output"}, {"spawn": stray}, {"hang": {"ignore_term": True, "ignore_interrupt": True}}]
    name = write_scenario({"when": "hang", "steps": hang}, [{"remember": True}])
    entry = {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": name}}
    write_config(tmp_path, gateway_config(tmp_path, agents={"script": entry}))
    daemon.forked = False
    await daemon.start()
    async with daemon.client() as client:
        requests = [
            asyncio.create_task(client.put("/session", json=session_body("script", "hang", stream="delta"))),
            asyncio.create_task(client.put("/session", json=session_body("script", "hang"))),
            asyncio.create_task(client.post("/v1/execute", json={"driver": "script", "task": "hang"})),
            asyncio.create_task(client.put("/session", json=session_body("script", "plain"))),
        ]
        await wait_until(lambda: len(agent_processes(daemon.pid)) == 4)
        pid = await read_pid(tmp_path / "scenes" / "stray")
        await requests[3]
        agents = agent_processes(daemon.pid)
        await wait_until(lambda: _runs_with_stored_output(tmp_path) == 3)
        assert await daemon.stop(number) == 0
        streamed, whole, task, _ = await asyncio.gather(*requests)
    events = parse_frames(streamed.text)
    assert [event for event, _ in events] == ["session_start", "turn_start", "text_delta", "turn_stop"]
    assert events[-1][1]["stopReason"] == "error"
    assert "shut down" in events[-1][1]["x-portico"]["error"]
    assert (whole.status_code, whole.json()["stopReason"]) == (201, "error")
    assert whole.json()["messages"] == [{"role": "assistant", "content": "output"}]
    assert [frame["kind"] for frame in parse_output_events(task.text)] == ["agent_token", "error", "session_end"]
    assert parse_output_events(task.text)[-1]["exit_code"] != 0
    assert not [process.pid for process in agents if is_alive(process.pid)]
    assert not is_alive(pid)
    daemon.forked = True
    await daemon.start()
    async with daemon.client() as client:
        session = events[0][1]["sessionId"]
        assert await get_history(client, session) == [user_message("hang"), {"role": "assistant", "content": "output"}]
        assert (await send_turn(client, session, "x"))["messages"][0]["content"] == '["hang"]'
    await daemon.stop()
    assert b"left behind" not in daemon.stderr


async def test_hangup_that_is_ignored_at_the_start_stays_ignored(daemon: Daemon) -> None:
    """As `nohup` does it."""
    daemon.forked = False
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        await daemon.start()
    finally:
        signal.signal(signal.SIGHUP, before)
    os.kill(daemon.pid, signal.SIGHUP)
    async with daemon.client() as client:
        await create_session(client, "echo")
    assert await daemon.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/PID/task")
async def test_the_exit_does_not_wait_for_a_blocked_file_access(daemon: Daemon, tmp_path: Path) -> None:
    # The daemon writes what its agents can do to this file. Opening a FIFO that is not read blocks.
    (tmp_path / "data").mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "data" / "discovery.new")
    # Its threads are read in /proc.
    daemon.env[ALLOWED_BY] = "1"
    await daemon.start()
    await wait_until(lambda: _is_blocked(daemon.pid))
    # `limits.grace` (1 s) and 2 s. It takes 0.8 s, also with 20 busy processes on two cores.
    assert await asyncio.wait_for(daemon.stop(), 3) == 0
    assert b"exits although file accesses are blocked" in daemon.stderr


def _is_blocked(pid: int) -> bool:
    """Return whether a thread of the process waits for the other end of a FIFO."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        # Other threads end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            if (task / "wchan").read_text() in ("wait_for_partner", "fifo_open"):
                return True
    return False


def _runs_with_stored_output(folder: Path) -> int:
    """Return the number of runs whose text is stored."""
    with closing(sqlite3.connect(folder / "data" / "portico.db")) as store:
        return int(store.execute("SELECT count(*) FROM events WHERE instr(CAST(body AS TEXT), 'output')").fetchone()[0])


async def test_second_daemon_on_the_same_data_directory_is_rejected(daemon: Daemon, tmp_path: Path) -> None:
    await daemon.start()
    code, out, err = await PorticoCommand(tmp_path, "serve", "--port", "0").run()
    assert (code, out) == (1, "")
    assert f"another portico runs with the data directory {tmp_path / 'data'}" in err
    assert "--data-dir" in err
    assert "Traceback" not in err
    async with PorticoCommand(tmp_path, "serve", "--port", "0", "--data-dir", str(tmp_path / "other")).serving() as other:
        assert other.line.startswith("portico listening on http://127.0.0.1:")
    async with daemon.client() as client:
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "", "127.0.0.1.example.org"])
def test_check_no_auth_rejects_hosts_that_are_not_loopback(host: str) -> None:
    check_no_auth(host, no_auth=False)
    with pytest.raises(ConfigError, match="--no-auth"):
        check_no_auth(host, no_auth=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_key_lengths_are_checked_for_hosts_that_are_not_loopback(host: str) -> None:
    check_key_lengths("127.0.0.1", ["short"])
    check_key_lengths(host, ["x" * 16])
    with pytest.raises(ConfigError, match="16 characters"):
        check_key_lengths(host, ["x" * 16, "y" * 15])


async def test_no_auth_with_a_configured_public_address_is_rejected(tmp_path: Path) -> None:
    write_config(tmp_path, gateway_config(tmp_path, server={"host": "0.0.0.0"}))
    code, _, err = await PorticoCommand(tmp_path, "serve", "--no-auth").run()
    assert code != 0
    assert "0.0.0.0" in err


async def test_no_auth_accepts_requests_without_and_with_a_key(tmp_path: Path) -> None:
    async with (
        PorticoCommand(tmp_path, "serve", "--no-auth").serving() as daemon,
        httpx.AsyncClient(base_url=daemon.url, timeout=60) as client,
    ):
        assert (await create_session(client, "echo"))["stopReason"] == "end_turn"
        assert (await client.post("/v1/execute", json={"driver": "echo", "task": "x"})).status_code == 200
        await expect_error(client.get("/session/none", headers={"Authorization": "Bearer whatever"}), 404)
    assert daemon.code == 0
    assert not (tmp_path / "data" / "api-key").exists()


async def test_hints_are_printed_to_standard_error(tmp_path: Path) -> None:
    async with PorticoCommand(tmp_path, "serve", "--port", "0", "--hints").serving() as daemon:
        pass
    assert daemon.out == ""
    assert "key" in daemon.err
    assert f"curl -N {daemon.url}/v1/execute" in daemon.err
    assert f"open --config {tmp_path}/config.toml --port {urlsplit(daemon.url).port}" in daemon.err


async def test_hints_have_a_link_that_signs_in_once(tmp_path: Path) -> None:
    # The link is printed after the line that announces the address.
    process = await PorticoCommand(tmp_path, "serve", "--port", "0", "--hints").start()
    assert process.stdout is not None and process.stderr is not None
    try:
        url = (await process.stdout.readline()).decode().split()[-1]
        while not (line := (await process.stderr.readline()).decode()).startswith("The console:"):
            assert line, "the daemon has ended"
        page, _, code = line.split()[-1].partition("#code=")
        assert page == f"{url}/console/"
        async with http_client(url) as client:
            for status in (201, 401):
                assert (await client.post("/v1/sign-ins", json={"code": code})).status_code == status
    finally:
        process.terminate()
        await process.communicate()
