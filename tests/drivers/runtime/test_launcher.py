"""What the spawner does with the commands of launchers: their start, and what follows the end of the process."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from drivers.contract.codec import Command
from drivers.contract.errors import AgentUnavailable
from drivers.runtime.launcher import LaunchedCommand, Launcher
from drivers.runtime.process import RELEASE_SECONDS, Process, Spawner
from drivers.runtime.process_tree import MARKER, is_confined
from tests.drivers.small_programs import lines_of, python
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Place(Launcher):
    """A launcher that changes a command by a function."""

    change: Callable[[LaunchedCommand], LaunchedCommand]
    untrusted: tuple[Path, ...] = ()
    has_programs: bool = False

    async def launch(self, command: LaunchedCommand) -> LaunchedCommand:
        return self.change(command)


class Refusing(Launcher):
    async def launch(self, command: LaunchedCommand) -> LaunchedCommand:
        raise AgentUnavailable("the place is closed")


class Endless(Launcher):
    """A launcher that never returns; `entered` is set once it was called."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()

    async def launch(self, command: LaunchedCommand) -> LaunchedCommand:
        self.entered.set()
        await asyncio.Event().wait()
        raise AssertionError


@dataclass
class Recorded:
    """The calls of a launched command, and a ledger."""

    calls: list[str] = field(default_factory=list)
    problem: str | None = None

    def place(self) -> Place:
        return Place(lambda command: replace(command, release=(self.release,), ended=(self.has_ended,)))

    def release(self) -> None:
        self.calls.append("release")

    async def has_ended(self) -> str | None:
        self.calls.append("ended")
        return self.problem

    async def started(self, marker: str, pid: int, created: float) -> None:
        self.calls.append(f"ledger has {marker.partition('.')[0]}")

    async def ended(self, marker: str) -> None:
        self.calls.append(f"ledger without {marker.partition('.')[0]}")


def in_shell(script: str) -> Place:
    """A place whose processes are started by a shell script."""
    return Place(lambda command: replace(command, argv=("/bin/sh", "-c", f'{script}; exec "$@"', "sh", *command.argv)))


async def run(spawner: Spawner, command: Command) -> Process:
    process = await spawner.spawn(command)
    await process.exit_code(60)
    await process.close(0.0)
    return process


async def test_launchers_compose_with_the_last_one_inside(tmp_path: Path) -> None:
    outer, inner = in_shell("echo outer $0; export SEEN=outer"), in_shell("echo inner; export SEEN=$SEEN-inner")
    spawner = Spawner().with_launcher(outer).with_launcher(inner)
    code = "print(os.environ['SEEN'])"
    process = await spawner.spawn(Command(python(code), tmp_path, {}, stdin=b""))
    assert await lines_of(process) == [b"outer sh", b"inner", b"outer-inner"]
    await process.close(0.0)


async def test_a_process_has_the_environment_descriptors_and_marker_of_the_launched_command(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("by a descriptor")
    opened = list[int]()

    def change(command: LaunchedCommand) -> LaunchedCommand:
        opened.append(os.open(tmp_path / "given", os.O_RDONLY))
        marker = f"{command.marker}.elsewhere"
        env = {**command.env, MARKER: marker, "FD": str(opened[0])}
        return replace(command, env=env, marker=marker, pass_fds=tuple(opened), confined=True)

    code = "print(json.dumps([os.environ['OWN'], os.environ['PORTICO_AGENT_ID'], os.read(int(os.environ['FD']), 99).decode()]))"
    spawner = Spawner("test").with_launcher(Place(change))
    process = await spawner.spawn(Command(python(f"{code}; sys.stdout.flush(); read()"), tmp_path, {"OWN": "x"}))
    (line,) = await process.read_lines()
    own, marker, text = json.loads(line)
    assert (own, text) == ("x", "by a descriptor")
    assert marker == process.root.marker and marker.startswith("test.") and marker.endswith(".elsewhere")
    assert is_confined(process.pid)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
    await process.close(0.0)


@pytest.mark.parametrize("descends", [True, False])
async def test_the_use_of_a_program_that_does_not_descend_is_unknown(tmp_path: Path, descends: bool) -> None:
    spawner = Spawner().with_launcher(Place(lambda command: replace(command, descends=descends)))
    process = await spawner.spawn(Command(python("read()"), tmp_path, {}))
    assert (await process.use() is not None) is descends
    await process.close(0.0)


async def test_what_a_launcher_made_is_released_and_removed_after_the_end(tmp_path: Path) -> None:
    recorded = Recorded()
    spawner = Spawner("test", recorded).with_launcher(recorded.place())
    process = await run(spawner, Command(python(""), tmp_path, {}))
    await process.close(0.0)
    assert recorded.calls == ["ledger has test", "release", "ended", "ledger without test"]


async def test_a_process_whose_removal_fails_stays_in_the_ledger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A later daemon tries again."""
    recorded = Recorded(problem="the runtime does not answer")
    await run(Spawner("test", recorded).with_launcher(recorded.place()), Command(python(""), tmp_path, {}))
    assert recorded.calls == ["ledger has test", "release", "ended"]
    assert "the runtime does not answer" in caplog.text


async def test_a_launcher_releases_although_all_threads_are_blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()
    process = await Spawner().with_launcher(recorded.place()).spawn(Command(python(""), tmp_path, {}))
    monkeypatch.setattr("drivers.runtime.file_threads.MAX_THREADS", 0)
    await process.close(0.0)
    assert recorded.calls == ["release", "ended"]


async def test_a_close_does_not_wait_for_a_release_that_blocks(tmp_path: Path, clock: ManualClock) -> None:
    go = threading.Event()

    def release() -> None:
        go.wait()

    spawner = Spawner(clock=clock).with_launcher(Place(lambda command: replace(command, release=(release,))))
    process = await spawner.spawn(Command(python(""), tmp_path, {}))
    try:
        closing = asyncio.create_task(process.close(0.0))
        await clock.expire(RELEASE_SECONDS)
        await asyncio.wait_for(closing, 60)
    finally:
        go.set()


@pytest.mark.parametrize("program", ["no-such-program", "true"])
async def test_a_failed_start_releases_and_removes_nothing(tmp_path: Path, program: str) -> None:
    """By the program itself, or by another launcher."""
    recorded, before = Recorded(), len(os.listdir("/dev/fd"))
    own = Place(lambda command: replace(command, pass_fds=(os.open(tmp_path, os.O_RDONLY),)))
    place = Spawner("test", recorded) if program != "true" else Spawner("test", recorded).with_launcher(Refusing())
    with pytest.raises(AgentUnavailable, match="the place is closed" if program == "true" else "cannot start 'no-such-program'"):
        await place.with_launcher(own).with_launcher(recorded.place()).spawn(Command((program,), tmp_path, {}))
    assert recorded.calls == ["release"]
    assert len(os.listdir("/dev/fd")) == before


async def test_a_cancelled_launch_releases_what_the_others_made(tmp_path: Path) -> None:
    recorded, endless, before = Recorded(), Endless(), len(os.listdir("/dev/fd"))
    spawner = Spawner().with_launcher(endless).with_launcher(recorded.place())
    spawning = asyncio.create_task(spawner.spawn(Command(("true",), tmp_path, {})))
    await endless.entered.wait()
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    await wait_until(lambda: recorded.calls == ["release"] and len(os.listdir("/dev/fd")) == before)


async def test_files_are_written_through_no_link_out_of_an_untrusted_folder(tmp_path: Path) -> None:
    for name in ("home", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "link").symlink_to(tmp_path / "outside")
    command = Command(("true",), tmp_path, {}, files={tmp_path / "home" / "link" / "file": b"x"})
    place = Place(lambda command: command, untrusted=(tmp_path / "home",))
    with pytest.raises(AgentUnavailable, match="a symbolic link leads out of"):
        await Spawner().with_launcher(place).spawn(command)
    assert os.listdir(tmp_path / "outside") == []


def test_programs_of_this_machine_are_looked_for_unless_a_launcher_has_its_own() -> None:
    spawner = Spawner()
    assert spawner.finds("sh", "/bin") and not spawner.finds("no-such-program", "/bin")
    assert spawner.with_launcher(Place(lambda command: command, has_programs=True)).finds("no-such-program", "/bin")
