"""A process that adopts the orphans of its agents, as the daemon does: `python -m tests.drivers.runtime.adopting_process NAME`.

Each function is a test of tests/drivers/runtime/test_process_descent.py.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from drivers.contract.codec import Command
from drivers.runtime.process import Ledger, Process, Spawner
from drivers.runtime.process_tree import MARKER, TICKS
from drivers.runtime.subreaper import adopted_orphans
from tests.drivers.small_programs import first_line, gone, python, until_gone

WAITS = "\nsys.stdin.read()"
HAS_NAMELESS_ORPHAN = """
code = "import os, time; pid = os.fork(); pid and (os.write(1, b'%d' % pid), os._exit(0)); os.closerange(0, 3); time.sleep(600)"
print(child(code, env={}, start_new_session=True, stdout=-1).communicate()[0].decode(), flush=True)
"""
"""Starts an orphan without the marker, in a session of its own, and writes its pid."""


class Unanswered:
    """A ledger that does not answer at the end of a process, so that its close waits a moment."""

    async def started(self, marker: str, pid: int, created: float) -> None: ...

    async def ended(self, marker: str) -> None:
        await asyncio.Event().wait()


async def start(code: str, ledger: Ledger | None = None) -> tuple[Process, bytes]:
    """Start an agent that writes one line. Returns it and the line."""
    process = await Spawner("test", ledger).spawn(Command(python(code), Path(tempfile.gettempdir()), dict(os.environ)))
    return process, await first_line(process)


async def an_orphan_without_the_marker_ends_with_its_agent() -> None:
    process, line = await start(HAS_NAMELESS_ORPHAN + WAITS)
    assert not gone(int(line))
    await process.close(1.0)
    assert gone(int(line))


async def an_orphan_of_an_agent_that_has_exited_ends() -> None:
    _, line = await start(HAS_NAMELESS_ORPHAN)
    await until_gone(int(line))


async def an_orphan_without_the_marker_may_belong_to_an_older_agent() -> None:
    older, _ = await start("print('up', flush=True)" + WAITS)
    process, line = await start(HAS_NAMELESS_ORPHAN + WAITS)
    # Start times are in ticks of the system's clock.
    await asyncio.sleep(2 / TICKS)
    younger, _ = await start("print('up', flush=True)" + WAITS)
    await process.close(1.0)
    assert not gone(int(line)), "it may be a process of the older agent"
    await older.close(1.0)
    assert gone(int(line)), "the younger agent cannot have started it"
    assert not gone(younger.pid)
    await younger.close(1.0)


async def an_orphan_without_the_marker_ends_with_two_agents_at_the_same_time() -> None:
    first, line = await start(HAS_NAMELESS_ORPHAN + WAITS, Unanswered())
    second, other = await start(HAS_NAMELESS_ORPHAN + WAITS, Unanswered())
    # Both are there until their last search is over.
    await asyncio.gather(first.close(0.0), second.close(0.0))
    assert gone(int(line)) and gone(int(other))


async def an_orphan_with_the_marker_ends_with_its_own_agent_only() -> None:
    first, stray = await start("stray()" + WAITS)
    second, other = await start("stray()" + WAITS)
    await second.close(1.0)
    assert gone(int(other)) and not gone(int(stray))
    await first.close(1.0)
    assert gone(int(stray))


async def an_agent_that_is_being_started_is_nobodys_orphan() -> None:
    process, _ = await start("print('up', flush=True)" + WAITS)
    for _ in range(20):
        # The end of one searches while the next is started.
        starting = asyncio.create_task(start("print('up', flush=True)" + WAITS))
        await asyncio.sleep(0)
        await process.close(0.0)
        process, _ = await starting
        await asyncio.sleep(0)
        assert process.is_there()
    await process.close(0.0)


async def helpers_of_the_daemon_are_left_alone() -> None:
    helper = await asyncio.create_subprocess_exec("sleep", "600", process_group=0)
    process, _ = await start("print('up', flush=True)" + WAITS)
    await process.close(0.0)
    assert helper.returncode is None
    helper.kill()
    assert await helper.wait() == -9


async def a_process_that_an_agent_has_marked_is_left_alone() -> None:
    process, marker = await start(f"print(os.environ[{MARKER!r}], flush=True)\n{SETS_LIMIT}")
    sys.stdout.write(f"{marker.decode()}\n")
    sys.stdout.flush()
    # The caller has started a process with this marker.
    process.write(sys.stdin.readline().encode())
    assert await first_line(process) == b"set"
    await process.close(1.0)


SETS_LIMIT = """
import resource
resource.prlimit(int(sys.stdin.readline()), 10, resource.getrlimit(10))
print("set", flush=True)
sys.stdin.read()
"""
"""Sets its own limit of locks for another process. In earlier versions its value said which agent a process belongs to."""


async def run(test: Callable[[], Awaitable[None]]) -> None:
    async with adopted_orphans(every=0.02):
        await test()


if __name__ == "__main__":
    asyncio.run(run(globals()[sys.argv[1]]))
