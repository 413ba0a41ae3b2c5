"""The folder of a probe, and that of the processes of an agent: where only the gateway or they write, and gone afterwards."""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.codec import Command
from drivers.contract.errors import AgentUnavailable
from drivers.runtime.cli_driver import run_to_end
from drivers.runtime.file_threads import wait_for_threads
from drivers.runtime.process import Process, Spawner
from drivers.runtime.sandbox import Sandbox, unavailable
from drivers.runtime.temporary_folder import AgentTemporary, remove_left_behind, throwaway_folder
from tests.support.waiting import wait_until

needs_landlock = pytest.mark.skipif(unavailable() is not None, reason="needs Landlock")
ENV = {"PATH": os.environ["PATH"], "TMPDIR": "/tmp", "OTHER": "kept"}


async def test_the_folder_of_a_probe_is_in_that_of_the_spawner_and_removed(tmp_path: Path) -> None:
    async with throwaway_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("x")
    assert not os.listdir(tmp_path)


@needs_landlock
async def test_a_probe_in_the_sandbox_writes_in_its_own_folders_only(tmp_path: Path) -> None:
    temporary = tmp_path / "data" / "temporary"
    temporary.mkdir(parents=True)
    spawner = Spawner().with_launcher(Sandbox((), (tmp_path / "data",)))
    async with throwaway_folder(temporary) as own, throwaway_folder(temporary) as state, throwaway_folder(temporary) as other:
        for folder in (own, state, other):
            await run_to_end(Command(("/bin/sh", "-c", f"echo x > {folder}/file"), own, {}, state=state), spawner)
        assert [folder.joinpath("file").exists() for folder in (own, state, other)] == [True, True, False]


class Place:
    """A hidden data directory, in which agents have their temporary folders."""

    def __init__(self, base: Path) -> None:
        self.base, self.temporary, self.work = base, base / "data" / "temporary", base / "work"
        for folder in (self.temporary, self.work):
            folder.mkdir(parents=True)

    def agent(self) -> Spawner:
        temporary = AgentTemporary(self.temporary, ("TMPDIR", "TMP"))
        sandbox = Sandbox((), (self.base / "data",), folders=(self.work,))
        return Spawner().with_launcher(sandbox).with_launcher(temporary)

    def command(self, script: str) -> Command:
        return Command(("/bin/sh", "-c", f"exec 2>&1; {script}"), self.work, ENV)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def ended(process: Process) -> list[str]:
    """Wait for the end of the output, end the process, and return the lines."""
    lines = []
    while more := await process.read_lines():
        lines += [line.decode().strip() for line in more]
    await process.close(0.0)
    return lines


@needs_landlock
async def test_processes_of_an_agent_share_a_folder_and_others_do_not_see_it(place: Place) -> None:
    agent, other = place.agent(), place.agent()
    first = await agent.spawn(place.command("echo secret > $TMPDIR/file && echo $TMPDIR $TMP $OTHER; read line"))
    [line] = await first.read_lines()
    folder = Path(line.decode().split()[0])
    assert line.decode().split() == [str(folder), str(folder), "kept"]
    assert (folder.parent, os.stat(folder).st_mode & 0o777) == (place.temporary, 0o700)
    assert len(folder.name) <= 10, "leaves a place for the names of sockets"
    assert await ended(await agent.spawn(place.command("cat $TMPDIR/file"))) == ["secret"]
    lines = await ended(await other.spawn(place.command(f"cat {folder}/file; echo x > {folder}/new; echo x > $TMPDIR/new")))
    assert len(lines) == 2 and all("ermission denied" in line for line in lines)
    assert os.listdir(place.temporary) == [folder.name], "that of the other agent is gone"
    await first.close(0.0)
    assert os.listdir(place.temporary) == []


@needs_landlock
async def test_a_failed_start_leaves_no_folder(place: Place) -> None:
    agent = place.agent()
    for command in (Command(("true",), place.base / "missing", ENV), Command(("true",), place.work, {"A\0": ""})):
        with pytest.raises(AgentUnavailable):
            await agent.spawn(command)
    (place.base / "work").rename(place.base / "moved")
    (place.base / "work").symlink_to("moved")
    with pytest.raises(AgentUnavailable):
        await agent.spawn(Command(("true",), place.base / "moved", ENV))
    assert os.listdir(place.temporary) == []


@needs_landlock
@pytest.mark.parametrize("step", ["process.open_folder", "temporary_folder._make", "sandbox._all_but"])
async def test_a_cancelled_start_leaves_no_folder_and_no_descriptor(
    place: Place, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled while a thread is in this step."""
    begun, go, before = threading.Event(), threading.Event(), len(os.listdir("/dev/fd"))
    module, _, name = step.partition(".")
    called = getattr(importlib.import_module(f"drivers.runtime.{module}"), name)

    def blocked(*args: Any) -> Any:
        begun.set()
        go.wait()
        return called(*args)

    monkeypatch.setattr(f"drivers.runtime.{step}", blocked)
    starting = asyncio.create_task(place.agent().spawn(place.command("true")))
    await asyncio.to_thread(begun.wait)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    go.set()
    await asyncio.to_thread(wait_for_threads)
    await wait_until(lambda: os.listdir(place.temporary) == [] and len(os.listdir("/dev/fd")) == before)


def test_what_a_killed_daemon_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("t-abc/deep", "portico-probe-abc", "portico-run-abc"):
        (tmp_path / name).mkdir(parents=True)
    remove_left_behind(tmp_path)
    assert os.listdir(tmp_path) == ["portico-run-abc"]
