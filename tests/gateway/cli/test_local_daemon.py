"""`portico acp` in several processes with one data directory: one daemon serves all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.cli.local_daemon import LocalDaemon
from gateway.cli.options import load_settings
from gateway.errors import ConfigError
from gateway.protocols.acp.transport.local_socket import HELLO_TIMEOUT, LocalSocket, take_over
from gateway.security.socket_proof import proof
from gateway.server.data_dir_lock import DataDirLocked, data_dir_lock, received_lock
from tests.conftest import write_config
from tests.support.acp_client import Client, RpcFailed, config, on_stdio
from tests.support.daemon import Daemon
from tests.support.manual_clock import ManualClock
from tests.support.portico_command import PorticoCommand
from tests.support.programs import write_script
from tests.support.requests import is_alive
from tests.support.waiting import wait_until


async def sessions_of(client: Client) -> set[str]:
    return {session["sessionId"] for session in (await client.request("session/list"))["sessions"]}


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "data" / "acp-socket.json").read_text())
    return found


async def gone(pid: int) -> None:
    """Wait until the process has ended. It may stay in the table of processes until process 1 collects it."""
    await wait_until(lambda: not is_alive(pid))


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
        # The last one ends with the daemon.
        await gone(serving)
        assert not (tmp_path / "data" / "acp-socket.json").exists() and not (tmp_path / "data" / "acp.sock").exists()


ENVIRONMENT = {**os.environ, "LC_TIME": "C"}
"""The environment of an editor that would start a process with another one."""


@asynccontextmanager
async def lingering(folder: Path, linger: float, **changes: Any) -> AsyncIterator[tuple[int, Client]]:
    """An editor, and the id of the process that serves it. It is ended after the block."""
    settings = {**config(folder), **changes.pop("tables", {})}
    settings["server"] |= {"linger": linger}
    async with on_stdio(folder, changes.pop("agent", "echo"), settings=settings, **changes) as (client, process):
        await client.initialize()
        yield record(folder)["pid"], client
        assert await end(process) == 0


async def test_next_editor_is_served_by_the_process_of_the_one_before(tmp_path: Path) -> None:
    # Some variables of agents have several lines, such as ANTHROPIC_CUSTOM_HEADERS.
    environment = {**os.environ, "LC_TIME": "two\nlines", "LC_NAME": "é"}
    async with lingering(tmp_path, 60.0, env=environment) as (first, client):
        session = await client.new()
        await client.prompt(session, "hello")
    assert psutil.pid_exists(first)
    # Desktops set these anew for each program that they start.
    launch = {"XDG_ACTIVATION_TOKEN": "token-2", "XDG_SESSION_ID": "7", "XDG_SEAT_PATH": "/org/freedesktop/DisplayManager/Seat0"}
    async with lingering(tmp_path, 60.0, env=environment | launch) as (second, client):
        assert await sessions_of(client) == {session}
    assert second == first
    # A hangup ends it in order, as SIGTERM does.
    os.kill(first, signal.SIGHUP)
    await gone(first)
    assert not (tmp_path / "data" / "acp-socket.json").exists()


async def test_process_without_editors_ends_after_the_configured_time_and_the_run_at_work(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    steps = [{"text": "Begun. "}, {"wait_for_file": "go"}, {"text": "Done."}]
    (tmp_path / "work" / "slow.json").write_text(json.dumps({"turns": [{"steps": steps}]}))
    agents = {"script": {"driver": "script", "cwd": str(tmp_path / "work"), "options": {"scenario": "slow.json"}}}
    tables = {"agents": agents}
    async with lingering(tmp_path, 0.2, agent="script", tables=tables) as (pid, client):
        session = await client.new()
        await client.begin("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "work"}]})
        await client.until(lambda _: "Begun." in client.text())
    async with lingering(tmp_path, 0.2, agent="script", tables=tables) as (second, client):
        assert second == pid
        (tmp_path / "work" / "go").touch()
        await client.request("session/load", {"sessionId": session, "cwd": ".", "mcpServers": []})
        await client.until(lambda _: "Done." in client.text())
    await gone(pid)
    assert not (tmp_path / "data" / "acp-socket.json").exists()


async def test_editor_that_would_start_another_process_replaces_one_that_nobody_uses(tmp_path: Path) -> None:
    """By another environment, or other settings."""
    async with lingering(tmp_path, 60.0) as (first, client):
        session = await client.new()
        await client.prompt(session, "hello")
        # While the first editor is connected, its process serves the other one.
        async with lingering(tmp_path, 60.0, env=ENVIRONMENT) as (second, _):
            assert second == first
    async with lingering(tmp_path, 60.0, env=ENVIRONMENT) as (second, _):
        assert second != first
    async with lingering(tmp_path, 60.0, env=ENVIRONMENT, tables={"store": {"keep_keys_days": 3.0}}) as (third, client):
        assert third != second
        await gone(second)
        assert await sessions_of(client) == {session}
    os.kill(third, signal.SIGTERM)
    await gone(third)


@pytest.mark.long
async def test_editor_with_other_folders_of_the_desktop_has_another_process(tmp_path: Path) -> None:
    async with lingering(tmp_path, 60.0) as (first, _):
        pass
    async with lingering(tmp_path, 60.0, env={**os.environ, "XDG_CONFIG_HOME": "/nowhere"}) as (second, _):
        assert second != first
    os.kill(second, signal.SIGTERM)
    await gone(second)


async def test_editors_go_on_when_the_process_that_serves_them_is_killed(tmp_path: Path) -> None:
    async with TwoEditors(tmp_path, "script") as two:
        one, other = await two.first.new(), await two.second.new()
        prompt = await two.first.begin("session/prompt", {"sessionId": one, "prompt": [{"type": "text", "text": "work"}]})
        request = await asyncio.wait_for(two.first.permission_requests.get(), 60)
        killed = record(tmp_path)["pid"]
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(RpcFailed) as failed:
            await asyncio.wait_for(prompt, 60)
        assert "session/prompt: the daemon that serves the sessions has ended before its answer" in failed.value.message
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


FAILING: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "cannot listen on http://127.0.0.1:{port}"),
    ({"agents": {"wrong": {"driver": "missing"}}}, "no driver 'missing'"),
    ({"server": {"host": "0.0.0.0"}, "auth": {"keys": ["12345678"]}}, "has less than 16 characters"),
)


async def test_a_daemon_that_cannot_start_does_not_end_the_one_of_editors(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with on_stdio(tmp_path, "echo", settings=settings) as (client, _):
            await client.initialize()
            session, serving = await client.new(), record(tmp_path)
            (tmp_path / "failing").mkdir()
            for tables, reason in FAILING:
                failing = {**settings, "server": {**settings["server"], "port": port}}
                for table, values in tables.items():
                    failing[table] = {**settings[table], **values}
                path = write_config(tmp_path / "failing", failing)
                code, out, err = await PorticoCommand(tmp_path, "serve", "--config", str(path), config=False).run()
                assert (code != 0, out, "Traceback" in err) == (True, "", False), err
                assert reason.format(port=port) in err
            assert (await client.prompt(session, "hello"))["stopReason"] == "end_turn"
            assert record(tmp_path) == serving


async def test_folders_that_are_made_while_the_socket_is_opened_can_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes of agents begin at that moment. For root any mode will do."""
    start, modes = asyncio.start_unix_server, []

    async def started(*args: Any, **options: Any) -> asyncio.Server:
        folder = await asyncio.to_thread(tempfile.mkdtemp, dir=tmp_path)
        modes.append(stat.S_IMODE(os.stat(folder).st_mode))
        return await start(*args, **options)

    monkeypatch.setattr(asyncio, "start_unix_server", started)
    gateway: Any = None
    server = LocalSocket(gateway, tmp_path)
    await server.open()
    try:
        assert (modes, stat.S_IMODE((tmp_path / "acp.sock").stat().st_mode)) == ([0o700], 0o600)
    finally:
        await server.close()


@pytest.mark.parametrize("sent", [b"", b'{"nonce":"' + b"0" * 64 + b'"}\n'], ids=["nothing", "no proof"])
async def test_a_client_without_the_proof_is_left(tmp_path: Path, clock: ManualClock, sent: bytes) -> None:
    gateway: Any = None
    server = LocalSocket(gateway, tmp_path, clock=clock)
    await server.open()
    try:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "acp.sock")
        writer.write(sent)
        if sent:
            assert b"proof" in await reader.readline()
        await clock.expire(HELLO_TIMEOUT)
        assert await reader.read() == b""
        writer.close()
    finally:
        await server.close()


async def test_the_socket_needs_its_token(tmp_path: Path) -> None:
    async with on_stdio(tmp_path, "echo") as (client, _):
        await client.initialize()
        found = record(tmp_path)
        for file in (tmp_path / "data" / "acp-socket.json", Path(found["path"])):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for hello in (
            b'{"agent":"echo"}',
            b'{"agent":"echo","proof":"guess"}',
            b'{"release":true}',
            b"[]",
            b"no JSON",
            b'{"nonce":1}',
        ):
            reader, writer = await asyncio.open_unix_connection(found["path"])
            writer.write(hello + b"\n")
            assert await reader.read() == b""
            writer.close()
        nonce = "a-nonce"
        for token, answer in ((found["token"], b"there is no agent 'missing' here"), ("guess", b"")):
            for side in ("client", "server"):
                reader, writer = await asyncio.open_unix_connection(found["path"])
                writer.write(json.dumps({"nonce": nonce}).encode() + b"\n")
                served = json.loads(await reader.readline())
                assert served["proof"] == proof(found["token"], "server", nonce, served["nonce"])
                # The proof of the server is none of a client.
                given = proof(token, "client", nonce, served["nonce"]) if side == "client" else served["proof"]
                writer.write(json.dumps({"agent": "missing", "proof": given}).encode() + b"\n")
                read = await reader.read()
                assert (answer in read) if answer and side == "client" else read == b""
                writer.close()


def serve_falsely(listening: socket.socket, answer: bytes, received: list[bytes]) -> None:
    """Answer two clients, and keep what they send: the first line, and the rest."""
    for _ in range(2):
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as file:
            received.append(file.readline())
            rest = b""
            with suppress(OSError):
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                rest = file.read()
            received.append(rest)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalDaemon:
    """A client of the daemon with a data directory. If it finds none it starts one, which ends with an error here."""
    program = write_script(tmp_path / "fails", f"echo >> {tmp_path}/starts\nexit 3\n")
    monkeypatch.setattr(sys, "executable", str(program))
    return LocalDaemon(lambda: load_settings(None, tmp_path), (), {"agent": "echo", "slash_commands": None})


FAILS = r"the daemon has ended at its start \(exit code 3\)"


def test_a_server_that_does_not_know_the_token_gets_nothing(tmp_path: Path, client: LocalDaemon) -> None:
    """Neither the token nor the environment of the editor."""
    path = tmp_path / "false.sock"
    (tmp_path / "acp-socket.json").write_text(json.dumps({"path": str(path), "token": "secret-token"}))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        for answer in (
            b"", b"{}\n", b"no JSON\n", b'{"nonce": "n", "proof": "guess"}\n', b'{"nonce": "n"}\n', b"[]\n", b"x" * 10_000,
        ):  # fmt: skip
            received = list[bytes]()
            serving = threading.Thread(target=serve_falsely, args=(listening, answer, received))
            serving.start()
            with pytest.raises(ConfigError, match=FAILS):
                client.connect(0)
            assert take_over(tmp_path) is None
            serving.join()
            first, then, again, after = received
            assert (list(json.loads(first)), then, list(json.loads(again)), after) == (["nonce"], b"", ["nonce"], b""), answer
            assert json.loads(first) != json.loads(again)


def test_a_socket_of_another_user_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: LocalDaemon) -> None:
    path = tmp_path / "foreign.sock"
    (tmp_path / "acp-socket.json").write_text(json.dumps({"path": str(path), "token": "secret"}))
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        foreign.listen()
        with monkeypatch.context() as other:
            other.setattr("gateway.security.socket_peer.os.geteuid", lambda: os.getuid() + 1)
            with pytest.raises(ConfigError, match=FAILS):
                client.connect(0)
            assert take_over(tmp_path) is None
        for _ in range(2):
            accepted, _ = foreign.accept()
            with accepted:
                assert accepted.recv(100) == b""


INITIALIZE = b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}\n'


async def test_what_only_the_daemon_finds_is_an_error_of_the_first_request(tmp_path: Path) -> None:
    """Settings that only it checks, and a socket that it cannot have."""
    wrong, closed = tmp_path / "wrong", tmp_path / "closed"
    wrong.mkdir()
    write_config(wrong, {**config(wrong), "agents": {"wrong": {"driver": "missing"}}})
    (closed / "data").mkdir(mode=0o700, parents=True)
    # The record file is written by this name.
    (closed / "data" / "acp-socket.new").mkdir()
    for folder, agent, error in (
        (wrong, "wrong", "agents.wrong.driver: no driver 'missing'"),
        (closed, "echo", f"editors cannot be served with the data directory {closed}/data"),
    ):
        code, out, err = await PorticoCommand(folder, "acp", agent).run(INITIALIZE)
        assert (code, len(err.splitlines())) == (1, 1)
        assert error in err
        assert json.loads(out)["error"]["message"] == f"initialize: {err.removeprefix('Error: ').strip()}"


def test_a_daemon_that_fails_at_its_start_is_started_once(tmp_path: Path, client: LocalDaemon) -> None:
    with pytest.raises(ConfigError, match=FAILS):
        client.connect(0)
    assert (tmp_path / "starts").read_text() == "\n"
    # The lock was the daemon's.
    data_dir_lock(tmp_path).close()


async def test_a_daemon_that_is_told_to_end_while_it_starts_is_started_again(tmp_path: Path) -> None:
    """First by a signal that it does not handle yet, and then by one that it does.

    The module in the editor's folder is not run by the daemon, and the editor has closed standard error.
    """
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    started = f"""
cd {tmp_path}
[ -e second ] && exec {sys.executable} "$@"
[ -e first ] && touch second && exit 0
touch first
kill -TERM $$
"""
    program, path = write_script(tmp_path / "ends", started), write_config(tmp_path, config(tmp_path))
    arguments = ["portico", "acp", "--config", str(path), "echo"]
    code = f"import sys; sys.executable, sys.argv = {str(program)!r}, {arguments}; from gateway.cli.main import main; main()"
    command = (sys.executable, "-P", "-c", code)
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", 'exec "$@" 2>&-', "sh", *command,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(INITIALIZE), 60)
    assert json.loads(out)["result"]["protocolVersion"] == 1
    assert (tmp_path / "second").exists() and not (tmp_path / "ran").exists()


async def test_the_lock_is_handed_over_without_a_gap(tmp_path: Path) -> None:
    gateway: Any = None
    lock = data_dir_lock(tmp_path)
    server = LocalSocket(gateway, tmp_path, release=lambda: None)
    await server.open()
    taking = asyncio.create_task(asyncio.to_thread(take_over, tmp_path))
    await server.some()
    await server.none_left()
    await server.close()
    assert not taking.done()
    server.hand_over(lock)
    lock.close()
    descriptor = await taking
    assert descriptor is not None
    with received_lock(descriptor), pytest.raises(DataDirLocked):
        data_dir_lock(tmp_path)
    data_dir_lock(tmp_path).close()


def test_a_record_of_another_form_names_no_daemon(tmp_path: Path) -> None:
    for content in ("[]", '{"path": 5, "token": "t"}'):
        (tmp_path / "acp-socket.json").write_text(content)
        assert take_over(tmp_path) is None


def test_a_daemon_that_is_killed_while_it_ends_hands_nothing_over(tmp_path: Path) -> None:
    path = tmp_path / "acp.sock"
    (tmp_path / "acp-socket.json").write_text(json.dumps({"path": str(path), "token": "token"}))

    def agree() -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as file:
            nonce = json.loads(file.readline())["nonce"]
            own = {"nonce": "own", "proof": proof("token", "server", nonce, "own")}
            connection.sendall(json.dumps(own).encode() + b"\n")
            assert json.loads(file.readline())["release"] is True

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        agreeing = threading.Thread(target=agree)
        agreeing.start()
        assert take_over(tmp_path) is None
        agreeing.join()


async def test_editors_that_start_at_once_have_one_daemon(tmp_path: Path) -> None:
    """Which an editor with another environment replaces when they have ended."""
    async with AsyncExitStack() as stack:

        async def editor(number: int) -> int:
            # Another environment is no reason for another daemon while there are editors.
            environment = {**os.environ, "LC_TIME": str(number)}
            pid, client = await stack.enter_async_context(lingering(tmp_path, 60.0, env=environment))
            assert (await client.prompt(await client.new(), "hello"))["stopReason"] == "end_turn"
            return pid

        [first] = set(await asyncio.gather(*map(editor, range(3))))
    async with lingering(tmp_path, 0.0, env={**ENVIRONMENT, "PORTICO_ALLOW_INSPECTION": "1"}) as (second, _):
        assert second != first
        assert psutil.Process(second).net_connections("inet") == [], "it listens on no port"


async def test_an_editor_that_connects_while_the_daemon_ends_has_the_next_one(tmp_path: Path) -> None:
    settings, found = config(tmp_path), set[int]()
    for _ in range(3):
        async with on_stdio(tmp_path, "echo", settings=settings) as (client, process):
            await client.initialize()
            found.add(record(tmp_path)["pid"])
            await client.new()
            # It does not wait for the end of the daemon.
            process.kill()
    assert len(found) == 3


async def test_a_log_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "data" / "acp.log").mkdir(parents=True)
    code, out, err = await PorticoCommand(tmp_path, "acp", "echo").run()
    assert (code, out, err) == (1, "", f"Error: {tmp_path}/data/acp.log cannot be used: Is a directory\n")


async def test_a_daemon_waits_for_a_process_that_is_about_to_end(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with ExitStack() as stack:
        # It accepts no connections any more.
        stack.enter_context(data_dir_lock(tmp_path / "data"))
        threading.Timer(0.5, stack.pop_all().close).start()
        daemon = await Daemon(write_config(tmp_path, settings), tmp_path).start()
    assert await daemon.stop() == 0


async def test_a_stale_or_foreign_socket_is_not_used(tmp_path: Path) -> None:
    """A process that was killed leaves its socket and record; a link in the place of either leads nowhere else."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(data / "acp.sock"))
    stale.close()
    (data / "acp-socket.json").write_text(json.dumps({"path": str(data / "acp.sock"), "token": "t", "pid": 1}))
    other = tmp_path / "other.json"
    other.write_text("unchanged")
    (data / "acp-socket.new").symlink_to(other)
    async with on_stdio(tmp_path, "echo") as (client, _):
        await client.initialize()
        assert (await client.prompt(await client.new(), "hello"))["stopReason"] == "end_turn"
        assert not (data / "acp-socket.json").is_symlink()
        assert stat.S_IMODE((data / "acp-socket.json").stat().st_mode) == 0o600
    assert other.read_text() == "unchanged"


async def test_a_data_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o777)
    (tmp_path / "data").chmod(0o1777)
    code, out, err = await PorticoCommand(tmp_path, "acp", "echo").run()
    assert (code, out) == (1, "") and "is a directory that users share" in err


@pytest.mark.skipif(sys.platform != "linux", reason="a path that is too long for an address is opened by its folder")
async def test_a_socket_with_a_long_path_is_in_the_data_directory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    long = tmp_path / ("long" * 30)
    long.mkdir()
    async with on_stdio(long, "echo") as (client, _):
        await client.initialize()
        assert record(long)["path"] == str(long / "data" / "acp.sock")
        async with on_stdio(long, "echo") as (other, _):
            await other.initialize()
            assert (await other.prompt(await other.new(), "hello"))["stopReason"] == "end_turn"
    assert not os.listdir(temporary)
