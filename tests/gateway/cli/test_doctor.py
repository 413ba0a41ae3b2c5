"""`portico doctor`: every problem with the command that solves it, which then does; and what it prints and leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from drivers.codex import CodexDriver
from drivers.contract.driver_info import Probe
from drivers.runtime.file_threads import ANSWER_SECONDS
from gateway import __version__
from gateway.agents.discovery import PROBE_TIMEOUT, Discovery
from gateway.agents.probe_cache import write_cache
from gateway.config import parse
from gateway.diagnosis import data_folder
from gateway.diagnosis.daemon import Holder
from gateway.diagnosis.diagnosis import Subject, diagnose
from gateway.diagnosis.report import Check
from tests.conftest import write_config
from tests.support.daemon import KEY, Daemon, free_port, gateway_config
from tests.support.doctor_report import doctor, doctor_command, doctor_unanswered
from tests.support.manual_clock import ManualClock
from tests.support.portico_command import PorticoCommand
from tests.support.programs import write_script
from tests.support.requests import is_alive, read_pid
from tests.support.waiting import wait_until

HOLD = """
import fcntl, os, socket, sys, time
os.umask(0o077)
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
listening = socket.create_server(("127.0.0.1", int(sys.argv[2]))) if len(sys.argv) > 2 else None
print("ready", flush=True)
time.sleep(600)
"""
"""Locks a file, and accepts connections on a port without an answer."""


def shell(command: str, folder: Path) -> asyncio.Future[tuple[bytes, bytes]]:
    async def run() -> tuple[bytes, bytes]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("bash", "-c", command, cwd=folder, stdout=pipe, stderr=pipe)
        printed = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, printed
        return printed

    return asyncio.ensure_future(run())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory as a daemon leaves it."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (folder / "portico.db").touch(mode=0o600)
    return folder


# -- without problems ------------------------------------------------------------------------------------------------


async def test_without_a_daemon_the_agents_are_probed_here_and_nothing_is_written(tmp_path: Path) -> None:
    report = await doctor(tmp_path, "--try")
    assert report.is_well
    assert (report["version"], report["daemon"]) == (__version__, None)
    names = [check["name"] for check in report["checks"]]
    assert names == ["Portico", "Configuration", "Data folder", "Disk", "Key", "Port", "Daemon", "Sandbox", "Proxy"]
    assert report.check("Daemon")["command"].endswith(f"serve --config {tmp_path}/config.toml")
    assert report.check("echo")["status"] == "ok"
    assert not (tmp_path / "data").exists()


async def test_the_daemon_reports_the_agents_where_it_runs(tmp_path: Path, daemon: Daemon) -> None:
    daemon.config.chmod(0o600)
    await daemon.start()
    port = daemon.url.rpartition(":")[2]
    report = await doctor(tmp_path, "--port", port, "--try")
    assert report.is_well
    assert report["daemon"] == daemon.url
    assert all(check["status"] == "ok" for check in report["checks"])
    async with daemon.client() as client:
        drivers = (await client.get("/v1/drivers")).json()["drivers"]
    assert {a["state"]["name"]: a["state"] for a in report["agents"]} == {
        state["name"]: state for driver in drivers for state in driver["agents"]
    }
    [trial] = [agent["trial"] for agent in report["agents"] if agent["state"]["name"] == "echo"]
    assert trial["answer"].startswith("Reply with")


async def test_a_process_that_serves_editors_is_no_problem(tmp_path: Path) -> None:
    process = await PorticoCommand(tmp_path, "acp", "echo", own=True).start()
    try:
        await wait_until((tmp_path / "data" / "acp-socket.json").exists)
        pid = json.loads((tmp_path / "data" / "acp-socket.json").read_text())["pid"]
        report = await doctor(tmp_path)
        assert report.is_well
        assert f"runs for editors only (process {pid}, which portico acp has started)" in report.check("Daemon")["text"]
    finally:
        process.terminate()
        await process.communicate()


# -- the configuration -----------------------------------------------------------------------------------------------


async def test_a_broken_configuration(tmp_path: Path, data: Path) -> None:
    for text, words in (
        ("[server]\nprot = 1\n", ("server.prot", "did you mean 'port'")),
        ("[server\n", ("is not TOML", "line 1")),
        ('[agents.a]\ndriver = "b"\n', ("agents.a.driver", "no driver 'b'")),
    ):
        (tmp_path / "config.toml").write_text(text)
        report = await doctor(tmp_path, env={"PORTICO_DATA_DIR": str(data)})
        command = report.problem("Configuration", *words)
        assert report.check("Data folder")["status"] == "ok"
        await shell(f"EDITOR='sed -i d'; unset VISUAL; {command}", tmp_path)
        assert (tmp_path / "config.toml").read_text() == ""


async def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    report = await doctor(tmp_path, env={"PORTICO_CONFIG": str(tmp_path / "none.toml")}, config=False)
    assert report.problem("Configuration", "none.toml", "No such file") == f"${{VISUAL:-${{EDITOR:-vi}}}} {tmp_path}/none.toml"


# -- the data directory ----------------------------------------------------------------------------------------------


async def test_a_data_folder_that_others_can_read(tmp_path: Path, data: Path) -> None:
    os.chmod(data, 0o755)
    (data / "portico.db").chmod(0o644)
    command = (await doctor(tmp_path)).problem("Data folder", "0755", "other users")
    assert command == f"chmod go-rwx {data} {data}/portico.db"
    assert os.stat(data).st_mode & 0o777 == 0o755, "it changes nothing"
    await shell(command, tmp_path)
    assert (await doctor(tmp_path)).is_well


async def test_many_files_that_others_can_read(tmp_path: Path, data: Path) -> None:
    (data / "transcripts").mkdir(mode=0o700)
    for n in range(20):
        (data / "transcripts" / f"{n}.jsonl").touch()
        (data / "transcripts" / f"{n}.jsonl").chmod(0o644)
    work = data / "workspaces" / "echo"
    work.mkdir(parents=True)
    (data / "workspaces").chmod(0o700)
    work.chmod(0o755)
    command = (await doctor(tmp_path)).problem("Data folder", "and 19 more")
    await shell(command, tmp_path)
    assert (await doctor(tmp_path)).is_well
    assert work.stat().st_mode & 0o777 == 0o755, "the modes of workspaces are those of the agents"


async def test_a_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    command = (await doctor(tmp_path)).problem("Data folder", "is not a folder")
    await shell(command, tmp_path)
    assert (await doctor(tmp_path)).is_well


async def test_a_data_folder_that_users_share(tmp_path: Path, data: Path) -> None:
    os.chmod(data, 0o1777)
    command = (await doctor(tmp_path)).problem("Data folder", "users share")
    assert shlex.split(command)[1:] == ["serve", "--config", f"{tmp_path}/config.toml", "--data-dir", f"{data}/portico"]
    assert (await doctor(tmp_path, "--data-dir", f"{data}/portico")).is_well


async def test_a_data_folder_that_its_owner_cannot_use(tmp_path: Path, data: Path) -> None:
    os.chmod(data, 0o000)
    report = await doctor(tmp_path)
    assert report.check("Data folder")["command"] == f"chmod 700 {data}"
    await shell(f"chmod 700 {data}", tmp_path)
    assert (await doctor(tmp_path)).is_well


async def test_a_key_that_others_can_read(tmp_path: Path, data: Path) -> None:
    write_config(tmp_path, {**gateway_config(tmp_path), "auth": {}})
    code, _, _ = await PorticoCommand(tmp_path, "key").run()
    assert code == 0
    assert (await doctor(tmp_path)).is_well
    (data / "api-key").chmod(0o644)
    report = await doctor(tmp_path)
    command = report.problem("Key", "0644")
    assert command == f"chmod 600 {data}/api-key"
    assert (data / "api-key").read_text().strip() not in json.dumps(report)
    await shell(command, tmp_path)
    assert (await doctor(tmp_path)).check("Key")["status"] == "ok"


async def test_a_key_that_is_too_short_for_other_machines(tmp_path: Path) -> None:
    for key in ("short123", "long-enough-1234"):
        write_config(tmp_path, {**gateway_config(tmp_path), "auth": {"keys": [key]}}).chmod(0o600)
        assert (await doctor(tmp_path)).check("Key")["status"] == "ok"
        report = await doctor(tmp_path, "--host", "0.0.0.0")
        assert key not in json.dumps(report)
        if key == "short123":
            assert report.problem("Key", "less than 16 characters").endswith("--host 127.0.0.1")
        else:
            assert report.check("Key")["status"] == "ok"


async def test_a_key_that_is_not_a_text(tmp_path: Path, data: Path) -> None:
    write_config(tmp_path, {**gateway_config(tmp_path), "auth": {}})
    (data / "api-key").touch(mode=0o600)
    (data / "api-key").write_bytes(b"\xff\xfe")
    command = (await doctor(tmp_path)).problem("Key", "is not a text")
    await shell(command, tmp_path)
    assert (await doctor(tmp_path)).is_well


async def test_secrets_in_a_configuration_that_others_can_read(tmp_path: Path) -> None:
    """The keys, and the password of the store."""
    url = "postgresql://me:secret-word@127.0.0.1:1/portico"
    config = write_config(tmp_path, {**gateway_config(tmp_path), "store": {"url": url}})
    config.chmod(0o644)
    report = await doctor(tmp_path)
    assert not any(secret in json.dumps(report) for secret in (KEY, "secret-word"))
    for name in ("Key", "Store password"):
        assert (report.check(name)["status"], report.check(name)["command"]) == ("warning", f"chmod 600 {config}"), name
    await shell(report.check("Key")["command"], tmp_path)
    again = await doctor(tmp_path)
    assert [again.check(name)["status"] for name in ("Key", "Store password")] == ["ok", "ok"]


@pytest.mark.slow
async def test_a_folder_that_does_not_answer(
    tmp_path: Path, data: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = threading.Event()

    def check_key(*arguments: Any) -> Check:
        reads.set()
        return data_folder.check_key(*arguments)

    monkeypatch.setattr("gateway.diagnosis.diagnosis.check_key", check_key)
    settings = parse({**gateway_config(tmp_path), "auth": {}})
    # Reading blocks while nobody writes.
    os.mkfifo(data / "api-key", 0o600)
    environ = {"PATH": "/usr/bin:/bin"}
    asking = asyncio.create_task(diagnose(Subject(None, lambda: settings, None, environ, "portico {}", clock=clock)))
    await wait_until(lambda: reads.is_set() and clock.waiting == 1, "all other questions have answers")
    await clock.expire(ANSWER_SECONDS)
    found = {check.name: check for check in (await asking).checks}
    os.close(os.open(data / "api-key", os.O_WRONLY))
    assert (found["Key"].status, found["Key"].command) == ("problem", f"ls -ld {data}")
    assert found["Key"].text == f"{data} does not answer within 5 s"


async def test_a_file_system_that_does_not_answer(tmp_path: Path, clock: ManualClock) -> None:
    os.mkfifo(tmp_path / "config.toml")
    assert "vi" in (await doctor_unanswered(tmp_path, clock)).problem("Configuration", "does not answer")
    os.close(os.open(tmp_path / "config.toml", os.O_WRONLY))


@pytest.mark.parametrize(
    ("number", "words", "command"),
    [
        (errno.ENOSPC, "the disk is full", "du -xh"),
        (errno.EROFS, "Read-only", "sudo mount -o remount,rw"),
        (errno.EACCES, "", "ls -ld"),
    ],
)
def test_a_disk_that_cannot_be_written(
    data: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str, command: str
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(data_folder, "check_space", fail)
    found = data_folder.check_disk(data)
    assert (found.status, words in found.text, (found.command or "").startswith(command)) == ("problem", True, True)


def test_a_disk_that_is_almost_full(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_folder, "LOW_SPACE", 1 << 62)
    found = data_folder.check_disk(data)
    assert (found.status, found.command) == ("warning", f"du -xh {data} | sort -h | tail")


# -- the port and the daemon -----------------------------------------------------------------------------------------


@asynccontextmanager
async def listener(port: int, answer: bytes | None) -> AsyncIterator[None]:
    """A program that answers each request so, or never."""
    connections = set[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if answer is not None:
                writer.write(answer)
            else:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    async with server:
        yield
        for writer in connections:
            writer.close()
            await writer.wait_closed()


def http_answer(body: dict[str, Any], status: int = 200) -> bytes:
    encoded = json.dumps(body).encode()
    return b"HTTP/1.1 %d x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(encoded), encoded)


@pytest.mark.parametrize(
    "answer",
    [
        http_answer({"status": "ok"}),
        http_answer({"status": "up", "version": "1"}),
        http_answer({"status": "ok", "version": "1"}, 404),
        b"SSH-2.0\r\n",
        None,
    ],
    ids=["no version", "another status", "not found", "no HTTP", "silent"],
)
async def test_a_port_that_another_program_has(tmp_path: Path, clock: ManualClock, answer: bytes | None) -> None:
    port = free_port()
    async with listener(port, answer):
        asked = doctor(tmp_path, "--port", str(port)) if answer else doctor_unanswered(tmp_path, clock, port)
        command = (await asked).problem("Port", f"127.0.0.1:{port}", "another program")
        other = command.rpartition(" --port ")[2]
        assert shlex.split(command)[1:] == ["serve", "--config", f"{tmp_path}/config.toml", "--port", other]
        assert (await doctor(tmp_path, "--port", other)).is_well


async def test_an_address_of_another_machine(tmp_path: Path) -> None:
    report = await doctor(tmp_path, "--host", "192.0.2.1", "--port", str(free_port()))
    assert "--host 127.0.0.1" in report.problem("Port", "192.0.2.1", "Cannot assign")


async def test_a_daemon_with_another_data_folder_does_not_get_the_key(tmp_path: Path, daemon: Daemon) -> None:
    await daemon.start()
    port = daemon.url.rpartition(":")[2]
    report = await doctor(tmp_path, "--port", port, "--data-dir", str(tmp_path / "other"))
    assert "serve" in report.problem("Port", "another data folder")
    assert report["daemon"] is None


async def test_a_stopped_daemon(tmp_path: Path, daemon: Daemon, clock: ManualClock) -> None:
    daemon.forked = False
    await daemon.start()
    port = daemon.url.rpartition(":")[2]
    os.kill(daemon.pid, signal.SIGSTOP)
    command = (await doctor_unanswered(tmp_path, clock, int(port))).problem("Daemon", "portico serve", "is stopped")
    assert command == f"kill -CONT {daemon.pid}"
    await shell(command, tmp_path)
    report = await doctor(tmp_path, "--port", port)
    assert report.is_well and report["daemon"] == daemon.url


@asynccontextmanager
async def holder(data: Path, *port: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has the lock of a data directory."""
    command = (sys.executable, "-c", HOLD, str(data / "lock"), *port)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_daemon_that_does_not_answer(tmp_path: Path, data: Path, clock: ManualClock) -> None:
    port = str(free_port())
    async with holder(data, port) as process:
        command = (await doctor_unanswered(tmp_path, clock, int(port))).problem("Daemon", "does not answer")
        kill, separator, serve = command.partition("; ")
        assert (kill, separator) == (f"kill -9 {process.pid}", "; ") and "serve" in serve
        await shell(kill, tmp_path)
        await process.wait()
        assert (await doctor(tmp_path, "--port", port)).is_well


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux names the process that has a lock")
async def test_a_lock_that_another_process_has(tmp_path: Path, data: Path) -> None:
    async with holder(data) as process:
        command = (await doctor(tmp_path, "--port", str(free_port()))).problem("Daemon", "has the lock", str(process.pid))
        assert command == f"kill {process.pid}"
        await shell(command, tmp_path)
        await process.wait()
        assert (await doctor(tmp_path)).is_well


async def test_a_daemon_at_another_port(tmp_path: Path) -> None:
    """The port is that at which the process listens, however it was told."""
    config = write_config(tmp_path, gateway_config(tmp_path))
    process = await PorticoCommand(tmp_path, "serve", "--port", "1", "--port", "0", own=True).start()
    try:
        assert process.stdout is not None
        port = (await process.stdout.readline()).decode().strip().rpartition(":")[2]
        report = await doctor(tmp_path, "--port", str(free_port()))
        found = report.check("Daemon")
        assert (found["status"], f"(process {process.pid})" in found["text"]) == ("warning", True)
        assert found["command"].endswith(f"doctor --config {config} --port {port}")
        advised = await doctor(tmp_path, *shlex.split(found["command"])[4:])
        assert (advised.check("Daemon")["status"], advised.check("Port")["status"]) == ("ok", "ok")
    finally:
        process.terminate()
        await process.communicate()


@pytest.fixture
def locked(data: Path) -> Any:
    """A data directory that this process has locked, as a daemon does."""
    (data / "lock").touch(mode=0o600)
    with open(data / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield data


async def test_what_a_daemon_says_of_itself(tmp_path: Path, locked: Path) -> None:
    restart = f"kill {os.getpid()}; "
    for answer, status, text, command in (
        ({"version": "0.0.1"}, "warning", "version 0.0.1", restart),
        ({"reasons": ["the disk is full"]}, "problem", "cannot take work: the disk is full", restart),
        # A restart would end the drain.
        ({"reasons": ["this node is drained"], "drained": True}, "warning", "; this node is drained", ""),
    ):
        port = free_port()
        async with listener(port, http_answer({"status": "ok", "version": __version__, "drivers": [], **answer})):
            found = (await doctor(tmp_path, "--port", str(port))).check("Daemon")
        assert (found["status"], text in found["text"]) == (status, True), found
        assert (found["command"] or "").startswith(command) and bool(found["command"]) == bool(command), found


@pytest.mark.parametrize(
    ("holder", "command"),
    [
        (Holder(4711), "kill -9 4711; portico serve"),
        (Holder(4711, is_service=True), "systemctl --user restart portico.service"),
        (Holder(None), "portico serve"),
    ],
)
def test_how_a_daemon_is_restarted(holder: Holder, command: str) -> None:
    assert holder.restart("portico serve", "-9 ") == command


async def test_a_daemon_that_does_not_accept_the_key(tmp_path: Path, daemon: Daemon) -> None:
    await daemon.start()
    port = daemon.url.rpartition(":")[2]
    report = await doctor(tmp_path, "--port", port, env={"PORTICO_API_KEY": "another-key-0123456789"})
    found = report.check("Agents")
    assert (found["status"], "does not accept the key" in found["text"]) == ("warning", True)
    assert report["daemon"] is None and report.check("echo")["status"] == "ok", "this process reports them"
    assert "another-key" not in json.dumps(report)


# -- proxies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [None, "example.org"])
async def test_a_proxy_for_this_machine(tmp_path: Path, direct: str | None) -> None:
    env = {"HTTP_PROXY": "http://user:pass-word@proxy:3128", **({"no_proxy": direct} if direct else {})}
    report = await doctor(tmp_path, env=env)
    command = report.problem("Proxy", "HTTP_PROXY")
    assert "pass-word" not in json.dumps(report) and "proxy:3128" not in json.dumps(report)
    given = "; ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    out, _ = await shell(f'{given}; {command}; printf \'%s\\n\' "$NO_PROXY" "$no_proxy"', tmp_path)
    upper, lower = out.decode().split()
    assert upper == lower == ",".join(filter(None, [direct, "127.0.0.1", "localhost"]))
    assert (await doctor(tmp_path, env={**env, "NO_PROXY": upper, "no_proxy": lower})).is_well


async def test_a_proxy_in_the_environment_of_an_agent(tmp_path: Path) -> None:
    entry = {"driver": "echo", "env": {"http_proxy": "http://user:pass-word@proxy:3128"}}
    write_config(tmp_path, gateway_config(tmp_path, agents={"own": entry}))
    report = await doctor(tmp_path)
    assert report.problem("Proxy", "agents.own.env", "http_proxy").endswith(f" {tmp_path}/config.toml")
    assert "pass-word" not in json.dumps(report)


# -- git -------------------------------------------------------------------------------------------------------------


async def test_git_of_worktrees(tmp_path: Path) -> None:
    write_config(tmp_path, gateway_config(tmp_path, agents={"echo": {"driver": "echo", "worktree": True}}))
    program, env = tmp_path / "bin" / "git", {"PATH": str(tmp_path / "bin")}
    program.parent.mkdir()
    (await doctor(tmp_path, env=env)).problem(
        "Git", "git is not on PATH; used by echo for worktrees: no session of theirs can start"
    )
    write_script(program, "echo 'git version 2.35.9'\n")
    (await doctor(tmp_path, env=env)).problem("Git", "is 'git version 2.35.9', and 2.36 or newer is needed; used by echo")
    write_script(program, "echo 'git version 2.50.1 (Apple Git-155)'\n")
    report = await doctor(tmp_path, env=env)
    assert report.is_well
    assert report.check("Git")["text"] == f"git version 2.50.1 (Apple Git-155), {program}; used by echo for worktrees"


async def test_git_is_not_looked_for_without_worktrees(tmp_path: Path) -> None:
    report = await doctor(tmp_path, env={"PATH": str(tmp_path)})
    assert "Git" not in [check["name"] for check in report["checks"]]


# -- agents ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def claude(tmp_path: Path) -> Callable[..., Path]:
    """Write a program that answers as the claude CLI does, in a folder of its own."""

    def write(logged_in: bool = True, answers: bool = True, version: str = "2.1.329") -> Path:
        opened = {"models": [{"value": model} for model in ("opus", "sonnet")]}
        answer = {"type": "control_response", "response": {"request_id": "init", "response": opened}}
        path = tmp_path / "bin" / "claude"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            "#!/bin/sh\n"
            + ("" if answers else "exec sleep 600\n")
            + f"case \"$1\" in\n--version) echo '{version} (Claude Code)';;\n"
            f"auth) echo '{json.dumps({'loggedIn': logged_in})}'; exit {0 if logged_in else 1};;\n"
            f"*) read -r line; echo '{json.dumps(answer)}'; cat > /dev/null;;\nesac\n"
        )
        path.chmod(0o755)
        return path

    return write


def on_path(program: Path) -> dict[str, str]:
    return {"PATH": f"{program.parent}:/usr/bin:/bin"}


async def test_no_agent_at_all(tmp_path: Path, claude: Callable[..., Path]) -> None:
    report = await doctor(tmp_path, config=False, env={"PATH": "/usr/bin:/bin"})
    assert report.problem("Agents", "no agent") == "npm install -g @anthropic-ai/claude-code"
    assert [report.check(name)["status"] for name in ("claude", "codex", "echo", "gemini")] == ["info", "info", "ok", "info"]
    assert (await doctor(tmp_path, config=False, env=on_path(claude()))).is_well


async def test_what_is_reported_of_an_agent(tmp_path: Path, claude: Callable[..., Path]) -> None:
    for version, words, code, status, command in (
        ("2.1.329", "Claude Code 2.1.329 (tested), ", 0, "ok", None),
        ("9.0.0", "9.0.0 (newer than the tested versions)", 0, "ok", None),
        # There is no other agent.
        ("2.1.100", "2.1.100 is older than 2.1.148", 1, "warning", "npm install -g @anthropic-ai/claude-code"),
    ):
        program = claude(version=version)
        report = await doctor(tmp_path, config=False, env=on_path(program))
        found = report.check("claude")
        assert (report.code, found["status"], found["command"]) == (code, status, command)
        assert words in found["text"]
        if status == "ok":
            assert "logged in" in found["text"] and str(program) in found["text"]
            assert "models: opus, sonnet" in found["details"]


async def test_signal_ends_the_programs_that_are_probed(tmp_path: Path, claude: Callable[..., Path]) -> None:
    number = signal.SIGTERM
    program = claude()
    program.write_text(f"#!/bin/sh\n(setsid sleep 600 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid)\nsleep 600\n")
    process = await PorticoCommand(tmp_path, "doctor", config=False, own=True, env=on_path(program)).start()
    left = await read_pid(tmp_path / "pid")
    probed = psutil.Process(process.pid).children()
    process.send_signal(number)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err) == (128 + number, b"")
    assert probed and not [one for one in probed if is_alive(one.pid)]
    assert not is_alive(left)


async def test_the_notes_on_a_version_are_reported(tmp_path: Path, data: Path) -> None:
    """Of a result of an earlier daemon."""
    program = tmp_path / "codex"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    key = f"codex|codex|{program}|{os.stat(program).st_mtime_ns}|{CodexDriver().info().version}"
    write_cache(data / "discovery.json", {key: Probe("0.163.0", logged_in=True)})
    details = (await doctor(tmp_path, env=on_path(program))).check("codex")["details"]
    assert any("come one at a time" in note for note in details)


async def test_an_agent_that_is_not_logged_in(tmp_path: Path, claude: Callable[..., Path]) -> None:
    program = claude(logged_in=False)
    command = f"{shlex.quote('claude')} auth login --claudeai"
    report = await doctor(tmp_path, env=on_path(program))
    assert (report.code, report.check("claude")["status"], report.check("claude")["command"]) == (0, "warning", command)
    write_config(tmp_path, gateway_config(tmp_path, agents={"claude": {"driver": "claude"}}))
    report = await doctor(tmp_path, env=on_path(program))
    assert (report.code, report.check("claude")["status"], report.check("claude")["command"]) == (1, "problem", command)
    assert "not logged in" in report.check("claude")["text"]


async def test_a_configured_agent_that_is_not_installed(tmp_path: Path, claude: Callable[..., Path]) -> None:
    write_config(tmp_path, gateway_config(tmp_path, agents={"claude": {"driver": "claude"}}))
    report = await doctor(tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert report.code == 1
    assert report.check("claude")["command"] == "npm install -g @anthropic-ai/claude-code"
    assert (await doctor(tmp_path, env=on_path(claude()))).is_well


async def test_a_configured_program_that_is_not_there(tmp_path: Path) -> None:
    config = write_config(tmp_path, gateway_config(tmp_path, agents={"mine": {"driver": "claude", "program": "no-such-program"}}))
    found = (await doctor(tmp_path)).check("mine")
    assert (found["status"], "agents.mine.program" in found["text"]) == ("problem", True)
    assert found["command"] == f"${{VISUAL:-${{EDITOR:-vi}}}} {config}"


async def test_agents_that_do_not_answer_take_the_time_of_one(
    tmp_path: Path, claude: Callable[..., Path], clock: ManualClock
) -> None:
    program = str(claude(answers=False))
    names = [f"agent-{n}" for n in range(10)]
    agents = {name: {"driver": "claude", "program": program} for name in names}
    settings = parse({**gateway_config(tmp_path), "agents": agents})
    subject = Subject(None, lambda: settings, None, {"PATH": "/usr/bin:/bin"}, "portico {}", clock=clock)
    began = clock.now
    report = await clock.expire_until(diagnose(subject), PROBE_TIMEOUT)
    assert clock.now == began + 2 * PROBE_TIMEOUT
    checks = {agent.check.name: agent.check for agent in report.agents}
    assert {checks[name].text for name in names} == {"Claude Code has not answered within 20 s"}
    assert {(checks[name].status, checks[name].command) for name in names} == {("warning", f"{program} --version")}
    [problem] = [check for check in report.checks if check.status == "problem"]
    assert (problem.name, problem.text) == (
        "Agents",
        "no agent but echo, which answers without a model, can be used: install or log in one of those below",
    )
    assert not [p for p in psutil.process_iter(["cmdline"]) if program in " ".join(p.info["cmdline"] or ())]


async def test_an_agent_that_answers_late_is_waited_for(
    tmp_path: Path, claude: Callable[..., Path], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = claude()
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    program.write_text(program.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n[ -p {fifo} ] && read -r go < {fifo}\n"))
    asked: list[bool] = []
    all_agents = Discovery.all_agents

    async def asked_agents(self: Discovery, *, refresh: bool = False) -> Any:
        if asked:
            # The program goes on, while it is asked for the second time.
            released = os.open(fifo, os.O_RDWR)
            fifo.unlink()
            os.write(released, b"go\n" * 10)
            descriptors.append(released)
        asked.append(refresh)
        return await all_agents(self, refresh=refresh)

    descriptors: list[int] = []
    monkeypatch.setattr(Discovery, "all_agents", asked_agents)
    settings = parse({**gateway_config(tmp_path), "agents": {"claude": {"driver": "claude", "program": str(program)}}})
    subject = Subject(None, lambda: settings, None, {"PATH": "/usr/bin:/bin"}, "portico {}", clock=clock)
    diagnosing = asyncio.create_task(diagnose(subject))
    await clock.expire(PROBE_TIMEOUT)
    report = await diagnosing
    for descriptor in descriptors:
        os.close(descriptor)
    assert asked == [True, False]
    [found] = [agent.check for agent in report.agents if agent.check.name == "claude"]
    assert (found.status, "2.1.329" in found.text) == ("ok", True)


# -- tasks -----------------------------------------------------------------------------------------------------------


def play(tmp_path: Path, *steps: Any, **entry: Any) -> None:
    """Write a configuration with the agent `demo`, whose tasks play these steps."""
    scenes = tmp_path / "scenes"
    scenes.mkdir(exist_ok=True)
    (scenes / "scene.json").write_text(json.dumps({"turns": [{"steps": [*steps]}]}))
    options = {"scenario": "scene.json", "token": "tok-1234-5678"}
    agent = {"driver": "script", "cwd": str(scenes), "options": options, **entry}
    write_config(tmp_path, gateway_config(tmp_path, agents={"demo": agent}))


async def test_tasks(tmp_path: Path, daemon: Daemon) -> None:
    """Of this process, and of the daemon: one that succeeds, one that fails, and one that rules forbid, which is not tried."""
    scenes = tmp_path / "scenes"
    scenes.mkdir(exist_ok=True)
    failure = {"stop": {"reason": "error", "message": "the model refused tok-1234-5678"}}
    for name, steps in (("well", [{"text": "ok\nand more"}]), ("fails", [{"text": "well"}, failure])):
        (scenes / f"{name}.json").write_text(json.dumps({"turns": [{"steps": steps}]}))
    agents = {
        name: {"driver": "script", "cwd": str(scenes), "options": {"scenario": scenario, "token": "tok-1234-5678"}}
        for name, scenario in (("demo", "well.json"), ("fails", "fails.json"), ("ruled", "well.json"))
    }
    config = write_config(tmp_path, gateway_config(tmp_path, agents=agents))
    with config.open("a") as file:
        file.write('\n[[agents.ruled.policy]]\ntool = "*"\ndecide = "ask"\n')
    for served in (False, True):
        if served:
            await daemon.start()
        report = await doctor(tmp_path, "--try", "--port", daemon.url.rpartition(":")[2] if served else "0")
        assert (report.code, report["problems"], report["daemon"] is not None) == (1, 1, served)
        [demo] = [agent for agent in report["agents"] if agent["state"]["name"] == "demo"]
        assert (demo["trial"]["answer"], demo["trial"]["error"]) == ("ok", None)
        assert demo["trial"]["seconds"] > 0
        assert demo["check"]["details"][-1].endswith(": ok")
        assert report.check("ruled")["details"][-1].startswith("not tried: agent 'ruled' has rules")
        fails = report.check("fails")
        assert fails["status"] == "problem"
        assert "the model refused ***" in fails["details"][-1] and "tok-1234" not in json.dumps(report)
        assert fails["command"].endswith(f"run --config {config} fails hello")
    code, _, err = await PorticoCommand(tmp_path, *shlex.split(fails["command"])[1:2], "fails", "hello").run()
    assert code == 1 and "the model refused ***" in err, "the command prints the error with its context"


async def test_tasks_of_a_node_that_does_not_run_are_tried_here(tmp_path: Path) -> None:
    play(tmp_path, {"text": "ok"})
    with (tmp_path / "config.toml").open("a") as config:
        config.write('\n[node]\naddress = "http://127.0.0.1:1"\n[store]\nurl = "postgresql://me@127.0.0.1:1/portico"\n')
    report = await doctor(tmp_path, "--try", env={"PORTICO_NODE_KEYS": "node-key-for-tests-" * 3})
    assert report.check("demo")["details"][-1].endswith(": ok")
    assert report.check("Nodes")["status"] == "problem"


async def test_tasks_in_this_process_leave_nothing(tmp_path: Path) -> None:
    play(tmp_path, {"spawn": {"seconds": 300, "new_session": True, "pid_file": "stray"}}, {"text": "ok"})
    assert (await doctor_command(tmp_path, "--try", env={"TMPDIR": str(tmp_path)})).is_well
    assert not is_alive(int((tmp_path / "scenes" / "stray").read_text()))
    assert sorted(os.listdir(tmp_path)) == ["config.toml", "scenes"]


# -- the screen ------------------------------------------------------------------------------------------------------


async def screen(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    _, out, err = await PorticoCommand(folder, "doctor", *arguments, env=env).run()
    assert err == ""
    return out


async def test_the_screen_has_80_columns_and_each_command_on_a_line_of_its_own(tmp_path: Path, data: Path) -> None:
    folder = data / ("long-" * 20) / "data"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    printed = (await screen(tmp_path, "--data-dir", str(folder))).splitlines()
    command = f"    chmod go-rwx {folder}"
    assert command in printed
    commands = [line for line in printed if line.startswith("    ") and line[4] != " "]
    assert all(len(line) <= 80 for line in printed if line not in commands)
    assert any(line.startswith("✗ problem Data folder") for line in printed)
    assert printed[-1] == "1 problem found."
    assert "\x1b" not in "".join(printed), "no colours in a file"


async def test_the_screen_without_unicode(tmp_path: Path) -> None:
    # Not forked, because Python chooses the encoding when it starts.
    _, printed, _ = await PorticoCommand(tmp_path, "doctor", env={"PYTHONIOENCODING": "ascii"}, own=True).run()
    assert printed.isascii()
    assert printed.startswith("+ ok      Portico")


async def test_control_characters_of_an_agent_are_not_printed(tmp_path: Path) -> None:
    play(tmp_path, {"text": "a\x1b[2Kb"})
    printed = await screen(tmp_path, "--try")
    assert r"a\x1b[2Kb" in printed and "\x1b" not in printed
