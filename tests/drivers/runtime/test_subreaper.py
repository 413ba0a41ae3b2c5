"""Orphans that a process has adopted are reaped, and killed at the end. asyncio's children keep their exit codes."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.drivers.small_programs import gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has child subreapers")

ADOPTS = """
import asyncio, os, sys
import psutil
from drivers.runtime.subreaper import adopted_orphans

ORPHAN = "(setsid sleep {} >&- 2>&- & echo $!)"

async def output(command):
    child = await asyncio.create_subprocess_exec("sh", "-c", command, stdout=-1, start_new_session=True)
    line = await child.stdout.readline()
    return child, int(line)

async def main():
    async with adopted_orphans(every=0.02):
        child, short = await output(ORPHAN.format(600))
        assert await child.wait() == 0
        assert psutil.Process(short).ppid() == os.getpid()
        # So that the exit of `sh` has been handled, and the next one is the orphan's alone.
        await asyncio.sleep(0.1)
        os.kill(short, 9)
        while psutil.pid_exists(short):
            await asyncio.sleep(0.01)
        exits = [await asyncio.create_subprocess_exec("sh", "-c", f"exit {n}") for n in range(20)]
        await asyncio.sleep(0.1)
        assert [await child.wait() for child in exits] == list(range(20))
        child, long = await output(ORPHAN.format(600))
        await child.wait()
    assert not psutil.pid_exists(long)
    print(short, long)

asyncio.run(main())
"""


async def test_orphans_are_adopted_reaped_and_killed_at_the_end() -> None:
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", ADOPTS, stdout=-1, stderr=-1)
    stdout, stderr = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode == 0, stderr.decode()
    assert all(gone(int(pid)) for pid in stdout.split())
    assert b"killing processes" in stderr


NO_TIMERS = """
import asyncio
from drivers.runtime.subreaper import adopted_orphans

async def main():
    async with adopted_orphans(every=0.001):
        await asyncio.sleep(0.05)
        loop, timers = asyncio.get_running_loop(), []
        call_at = loop.call_at
        loop.call_at = lambda *args, **options: timers.append(args) or call_at(*args, **options)
        await asyncio.sleep(0.05)
        assert len(timers) == 1, timers

asyncio.run(main())
"""


async def test_nothing_is_searched_while_no_child_exits() -> None:
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", NO_TIMERS)
    assert await asyncio.wait_for(program.wait(), 60) == 0


async def test_orphans_are_reaped_outside_of_the_main_thread() -> None:
    start = "thread = threading.Thread(target=asyncio.run, args=(main(),)); thread.start(); thread.join()"
    in_thread = "import threading" + ADOPTS.replace("asyncio.run(main())", start)
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", in_thread, stdout=-1, stderr=-1)
    stdout, stderr = await asyncio.wait_for(program.communicate(), 60)
    assert len(stdout.split()) == 2, stderr.decode()


HAS_CHILD = """
import asyncio, subprocess
from drivers.runtime.subreaper import adopted_orphans

sleep = subprocess.Popen(["sleep", "600"], start_new_session=True)

async def main():
    async with adopted_orphans():
        pass

asyncio.run(main())
assert sleep.poll() is None
sleep.kill()
sleep.wait()
"""


async def test_a_child_that_was_there_before_is_not_killed() -> None:
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", HAS_CHILD)
    assert await asyncio.wait_for(program.wait(), 60) == 0
