"""Processes of the same user cannot read the environment of a process that serves agents, which holds the API key."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drivers.contract.codec import Command
from drivers.runtime import process_tree
from drivers.runtime.process import Spawner
from drivers.runtime.process_tree import family
from gateway.cli.main import main
from gateway.security.process_inspection import ALLOWED_BY, PR_SET_DUMPABLE, deny_process_inspection
from tests.conftest import write_config
from tests.support.daemon import gateway_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_DUMPABLE is of Linux")
PR_CAPBSET_DROP, CAPABILITIES = 24, 64
CAPABILITY_VERSION_3 = 0x20080522


def _drop_capabilities() -> None:
    """Make the superuser one that has the rights of its own files only: with capabilities it can inspect every process."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in range(CAPABILITIES):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        assert libc.capset(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24)) == 0


def _environment_of(pid: int) -> bytes:
    """Return what a program of the user of the inspected process reads of its environment."""
    command = ("cat", f"/proc/{pid}/environ")
    return subprocess.run(command, capture_output=True, check=False, preexec_fn=_drop_capabilities).stdout


@contextmanager
def forked(command: Callable[[], None], until: bytes) -> Iterator[int]:
    """Run a function in a forked process of a user without capabilities, and yield its pid when it has printed a text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writing, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = os.fdopen(1, "w")
        _drop_capabilities()
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        try:
            command()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb", buffering=0) as printed:
            found = b""
            while until not in found:
                data = printed.read(1000)
                assert data, found
                found += data
            yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _print_and_wait() -> None:
    os.write(1, b"ready\n")
    signal.pause()


def test_process_is_inspected_without_the_protection() -> None:
    with forked(_print_and_wait, b"ready") as pid:
        assert b"PATH=" in _environment_of(pid)


def test_protected_process_is_not_inspected() -> None:
    def run() -> None:
        deny_process_inspection()
        _print_and_wait()

    with forked(run, b"ready") as pid:
        assert _environment_of(pid) == b""


def test_programs_that_it_starts_are_dumpable() -> None:
    """They need /proc of their own, and the gateway finds processes of agents by their environment."""

    def run() -> None:
        deny_process_inspection()
        # Only a process that is dumpable owns this file.
        subprocess.run(["cat", "/proc/self/environ"], check=True)
        _print_and_wait()

    with forked(run, b"PATH="):
        pass


def test_inspection_is_allowed_by_a_variable_of_the_environment() -> None:
    def run() -> None:
        deny_process_inspection({ALLOWED_BY: "1"})
        _print_and_wait()

    with forked(run, b"ready") as pid:
        assert b"PATH=" in _environment_of(pid)


def test_agents_start_from_a_protected_process(tmp_path: Path) -> None:
    """Their working folder is passed on by /proc, and their processes are found, without waiting for those of other rights."""

    async def spawn() -> None:
        command = Command(("cat", "/proc/self/environ"), tmp_path, {"PATH": os.environ["PATH"], "WHO": "agent"}, stdin=b"")
        process = await Spawner("inspection").spawn(command)
        os.write(1, b"".join(await process.read_lines()))
        waiting = await Spawner("inspection").spawn(Command(("sleep", "60"), tmp_path, {"PATH": os.environ["PATH"]}))
        os.write(1, b"found" * (waiting.pid in {found.pid for found in family(waiting.root)}))
        os.kill(waiting.pid, signal.SIGKILL)
        os.write(1, b"ended")
        # Without closing them, for which a forked process lacks the threads of its parent.
        os._exit(0)

    def run() -> None:
        # It is called once a process has been waited for.
        process_tree.log.warning = lambda *_: os._exit(1)  # type: ignore[method-assign]
        deny_process_inspection()
        asyncio.run(spawn())

    with forked(run, b"foundended") as pid:
        assert pid


def test_environment_of_the_daemon_is_not_read_by_a_process_of_its_user(tmp_path: Path) -> None:
    config = gateway_config(tmp_path)
    write_config(tmp_path, config)

    def serve() -> None:
        main(["serve", "--config", str(tmp_path / "config.toml")])

    with forked(serve, b"portico listening on") as pid:
        assert _environment_of(pid) == b""


@pytest.mark.parametrize("command", [["acp", "no-such-agent"], ["run", "no-such-agent", "hello"]])
def test_other_commands_that_start_agents_are_protected(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path, gateway_config(tmp_path))
    calls: list[int] = []
    monkeypatch.setattr(f"gateway.cli.{command[0]}.deny_process_inspection", lambda: calls.append(1))
    with pytest.raises(SystemExit):
        main([command[0], "--config", str(tmp_path / "config.toml"), *command[1:]])
    assert calls == [1]
