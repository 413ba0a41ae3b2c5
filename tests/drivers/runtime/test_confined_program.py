"""Programs of the gateway's own in the sandbox: what they write and read, what is left of them, and how many run at a time."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from drivers.contract.errors import AgentUnavailable
from drivers.runtime.confined_program import Ended, NoPlace, Places, Program, run
from drivers.runtime.sandbox import Sandbox, unavailable
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
needs_landlock = pytest.mark.skipif(unavailable() is not None, reason=f"no sandbox here: {unavailable()}")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with `data` (hidden, with `data/part` in it), `work` and `other`. Not pytest's, which has many entries."""
    path = Path(tempfile.mkdtemp(prefix="portico-confined-"))
    for name in ("data/part", "work", "other"):
        (path / name).mkdir(parents=True)
    (path / "data" / "api-key").write_text("secret")
    (path / "data" / "part" / "file").write_text("part")
    yield path
    shutil.rmtree(path)


async def confined(folder: Path, script: str, *, readable: tuple[Path, ...] = ()) -> Ended:
    sandbox = Sandbox((), (folder / "data",), folders=(folder / "work",), readable=readable)
    ruleset = sandbox.ruleset()
    try:
        return await run(Program(("sh", "-c", script), folder, ENV, 60.0, 100_000), ruleset)
    finally:
        os.close(ruleset)


@needs_landlock
async def test_program_writes_in_its_folders_and_reads_no_secret(folder: Path) -> None:
    script = (
        "echo 1 > work/new; echo 1 > other/new; cat data/api-key data/part/file; mkdir sub; (echo 1 > other/nested); echo end"
    )
    ended = await confined(folder, script)
    assert (ended.status, ended.output, ended.errors.count(b"ermission denied")) == (0, b"end\n", 5)
    assert [list((folder / name).iterdir()) != [] for name in ("work", "other")] == [True, False]


@needs_landlock
async def test_part_of_a_hidden_folder_is_read_and_not_written(folder: Path) -> None:
    script = "cat data/part/file; echo 1 > data/part/new; echo 1 >> data/part/file; cat data/api-key"
    ended = await confined(folder, script, readable=(folder / "data" / "part",))
    assert (ended.output, ended.errors.count(b"ermission denied")) == (b"part", 3)


@needs_landlock
async def test_nothing_else_is_confined(folder: Path) -> None:
    """Neither this process nor what it starts afterwards: the thread that was restricted has ended."""
    await confined(folder, "true")
    for n in range(5):
        await asyncio.to_thread((folder / "other" / f"file{n}").write_text, "x")
    status = await run(Program(("sh", "-c", "echo 1 > other/new; cat data/api-key"), folder, ENV, 60.0, 1000), None)
    assert (status.output, (folder / "other" / "new").exists()) == (b"secret", True)
    assert "NoNewPrivs:\t0" in await asyncio.to_thread(Path("/proc/self/status").read_text)


@needs_landlock
@pytest.mark.parametrize("name", ["work", "data/part"])
async def test_folder_that_has_become_a_link_is_refused(folder: Path, name: str) -> None:
    (folder / name).rename(folder / "moved")
    (folder / name).symlink_to(folder / "other")
    with pytest.raises(AgentUnavailable, match="has become a symbolic link"):
        await confined(folder, "echo 1 > work/new", readable=(folder / "data" / "part",))
    assert list((folder / "other").iterdir()) == []


async def test_what_is_left_in_its_process_group_ends_with_it(folder: Path) -> None:
    async with asyncio.timeout(30):
        ended = await run(Program(("sh", "-c", "sleep 600 & echo $!"), folder, ENV, 600.0, 1000), None)
    assert ended.status == 0
    process = int(ended.output)
    await wait_until(lambda: not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE)


async def test_exit_code_of_a_program_whose_output_another_process_keeps_open(folder: Path) -> None:
    """It is reaped at once: the search for orphans reaps what nothing else does."""
    other = "setsid sh -c 'echo > ready; until test -e end; do sleep 0.05; done'"
    script = f"{other} & until test -e ready; do sleep 0.01; done; echo $$ > pid; exit 7"
    running = asyncio.create_task(run(Program(("sh", "-c", script), folder, ENV, 60.0, 1000), None))
    pid = int(await wait_until(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip()))
    await wait_until(lambda: not psutil.pid_exists(pid))
    assert not running.done()
    (folder / "end").touch()
    assert (await running).status == 7


async def test_places_are_limited_for_each_owner_and_in_all() -> None:
    places, owners = Places(2, 3, 60.0), ["a"] * 5 + ["b"] * 5
    most, inside, done = dict[str, int](), list[str](), asyncio.Event()

    async def use(owner: str) -> None:
        async with places.place(owner):
            inside.append(owner)
            for name in ("a", "b"):
                most[name] = max(most.get(name, 0), inside.count(name))
            most["all"] = max(most.get("all", 0), len(inside))
            await done.wait()
            inside.remove(owner)

    tasks = [asyncio.create_task(use(owner)) for owner in owners]
    await wait_until(lambda: len(inside) == 3)
    # Those of one owner who wait are in nobody's way.
    assert sorted(inside) == ["a", "a", "b"]
    done.set()
    await asyncio.gather(*tasks)
    assert (most["all"], max(most["a"], most["b"])) == (3, 2)


async def test_waiting_for_a_place_ends(clock: ManualClock) -> None:
    places = Places(1, 2, 60.0, clock)

    async def take(owner: str) -> None:
        async with places.place(owner):
            pass

    async with places.place("a"):
        with pytest.raises(NoPlace) as raised:
            await clock.expire_until(take("a"), 60.0)
        assert raised.value.of_owner
        async with places.place("b"):
            with pytest.raises(NoPlace) as raised:
                await clock.expire_until(take("c"), 60.0)
            assert not raised.value.of_owner
    async with places.place("a"), places.place("c"):
        # The limit of the waiting is none of the work.
        await clock.advance(600.0)
    with pytest.raises(TimeoutError):
        async with places.place("a"):
            raise TimeoutError


async def test_the_end_of_a_cancelled_program_is_no_error_in_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = asyncio.create_task(run(Program(("sh", "-c", "touch started; sleep 600"), folder, ENV, 60.0, 100_000), None))
    await wait_until((folder / "started").exists)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    del running
    gc.collect()
    assert caplog.text == ""
