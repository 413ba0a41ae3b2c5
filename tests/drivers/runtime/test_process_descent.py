"""Which processes are an agent's: its descendants and its orphans, and no process that it has only marked."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from drivers.runtime import process_tree
from drivers.runtime.process_tree import MARKER, Root, end_processes, family, left_behind
from tests.drivers.small_programs import PRELUDE, StartProcess, first_line, gone, until_gone
from tests.support.waiting import wait_until

ADOPTING = (sys.executable, "-m", "tests.drivers.runtime.adopting_process")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has child subreapers")


@linux_only
@pytest.mark.parametrize(
    "name",
    [
        "an_orphan_without_the_marker_ends_with_its_agent",
        "an_orphan_of_an_agent_that_has_exited_ends",
        "an_orphan_without_the_marker_may_belong_to_an_older_agent",
        "an_orphan_without_the_marker_ends_with_two_agents_at_the_same_time",
        "an_orphan_with_the_marker_ends_with_its_own_agent_only",
        "an_agent_that_is_being_started_is_nobodys_orphan",
        "helpers_of_the_daemon_are_left_alone",
    ],
)
async def test_in_a_process_that_adopts_orphans(name: str) -> None:
    program = await asyncio.create_subprocess_exec(*ADOPTING, name, stderr=-1)
    _, stderr = await asyncio.wait_for(program.communicate(), 120)
    assert program.returncode == 0, stderr.decode()


@linux_only
async def test_a_process_that_an_agent_has_marked_is_left_alone() -> None:
    """The marker comes to it by a file that the agent has written, such as `.env`, and its resource limit by prlimit(2)."""
    program = await asyncio.create_subprocess_exec(
        *ADOPTING, "a_process_that_an_agent_has_marked_is_left_alone", stdin=-1, stdout=-1, stderr=-1
    )
    assert program.stdin is not None and program.stdout is not None
    marker = (await asyncio.wait_for(program.stdout.readline(), 60)).decode().strip()
    marked = await _orphan({MARKER: marker})
    program.stdin.write(b"%d\n" % marked)
    try:
        _, stderr = await asyncio.wait_for(program.communicate(), 120)
        assert program.returncode == 0, stderr.decode()
        assert not gone(marked)
    finally:
        psutil.Process(marked).kill()
        await until_gone(marked)


IN_NAMESPACE = """
import asyncio, os
from tests.drivers.runtime.adopting_process import run, start
from tests.drivers.small_programs import gone

CHILD = "print(child('import time; time.sleep(600)', start_new_session=True).pid, flush=True); sys.stdin.read()"

async def test():
    assert os.getpid() == 2
    process, line = await start(CHILD)
    await process.close(0.0)
    assert gone(int(line))

asyncio.run(run(test))
"""


@linux_only
def test_the_daemon_may_be_process_2_of_a_container() -> None:
    """Outside of a container, the children of process 2 are the kernel's own."""
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no pid namespace can be created")
    done = subprocess.run([*unshare, "sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", IN_NAMESPACE], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


BELOW_ANOTHER_REAPER = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
command = ("sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", sys.argv[1])
sys.exit(subprocess.run(command, start_new_session=sys.argv[2] == "True").returncode)
"""
ENDS_AN_AGENT = """
import asyncio, os, sys
from tests.drivers.runtime.adopting_process import WAITS, start
from tests.drivers.small_programs import gone

async def test():
    process, line = await start("stray()" + WAITS)
    await process.close(1.0)
    ended = gone(int(line))
    if not ended:
        os.kill(int(line), 9)
    print(ended)

asyncio.run(test())
"""


@linux_only
@pytest.mark.parametrize("apart", [True, False], ids=["another session", "a shell"])
async def test_orphans_that_another_process_has_adopted(apart: bool) -> None:
    """Such as `systemd --user`, above the shell of this process. The children of a shell, in this session, are no orphans."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BELOW_ANOTHER_REAPER, ENDS_AN_AGENT, str(apart), stdout=-1, stderr=-1
    )
    stdout, stderr = await asyncio.wait_for(program.communicate(), 120)
    assert stdout.decode().strip() == str(apart), stderr.decode()


async def _orphan(env: dict[str, str]) -> int:
    """Start a process whose parent has exited, in a session of its own."""
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", PRELUDE + "stray()", env=env, stdout=-1)
    assert program.stdout is not None
    pid = int(await program.stdout.readline())
    await program.wait()
    return pid


async def test_what_a_killed_daemon_left_is_found_by_its_stored_identity_and_its_marker(start: StartProcess) -> None:
    process = await start("print(child('import time; time.sleep(600)', start_new_session=True).pid, flush=True); time.sleep(600)")
    child = int(await first_line(process))
    marker = process.root.marker
    orphan, other = await _orphan({MARKER: marker}), await _orphan({MARKER: f"{marker}0"})
    marked = await asyncio.create_subprocess_exec("sleep", "600", env={**os.environ, MARKER: marker})
    try:
        stored = Root.stored(marker, process.pid, process.created)
        assert {found.pid for found in left_behind([stored])} == {process.pid, child, orphan}
        later = Root.stored(marker, process.pid, time.time() + 100)
        assert not left_behind([later]), "another process has the pid, and the orphan was started before the agent"
        ended = await end_processes(lambda: left_behind([stored]), 1.0, lambda: None)
        assert {found.pid for found in ended.found} == {process.pid, child, orphan} and not ended.left
        assert gone(child) and gone(orphan) and not gone(other) and marked.returncode is None
        assert await process.exit_code() == -15
    finally:
        marked.kill()
        psutil.Process(other).kill()
        await marked.wait()
        await until_gone(other)


async def test_a_process_is_found_although_the_clock_was_changed(start: StartProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await start("print(child('import time; time.sleep(600)', start_new_session=True).pid, flush=True); time.sleep(600)")
    child = int(await first_line(process))
    booted = psutil.boot_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: booted + 3600)
    await process.close(0.0)
    assert gone(child)


@linux_only
@pytest.mark.parametrize(("field", "value"), [(0, b"D"), (48, b"0")])
async def test_an_orphan_whose_environment_cannot_be_read_at_first(
    start: StartProcess, monkeypatch: pytest.MonkeyPatch, field: int, value: bytes
) -> None:
    """It is in uninterruptible sleep, as a process that waits for a disk, or has no environment yet in execve(2)."""
    process = await start("stray()" + "\nsys.stdin.read()")
    orphan = int(await first_line(process))
    # A moment before it is a descendant still, and its environment is of no interest.
    agent = psutil.Process(process.pid)
    await wait_until(lambda: orphan not in {one.pid for one in agent.children(recursive=True)})
    read = process_tree._read
    monkeypatch.setattr(process_tree, "_read", lambda path: b"" if path == f"/proc/{orphan}/environ" and seen < 5 else read(path))
    stat, seen = process_tree._stat, 0

    def asleep_at_first(pid: int) -> list[bytes]:
        nonlocal seen
        seen += pid == orphan
        found = stat(pid)
        return [*found[:field], value, *found[field + 1 :]] if pid == orphan and seen < 5 else found

    monkeypatch.setattr(process_tree, "_stat", asleep_at_first)
    assert orphan in {found.pid for found in await asyncio.to_thread(family, process.root)} and seen >= 5


def test_only_agents_get_sessions_of_their_own() -> None:
    """Another child of the daemon in a session of its own would be taken for an orphan; `process_group=0` makes it a group."""
    root = Path(process_tree.__file__).parents[2]
    sources = [path for package in ("drivers", "gateway") for path in (root / package).rglob("*.py")]
    found = {str(path.relative_to(root)) for path in sources if re.search(r"start_new_session=|\bsetsid\(", path.read_text())}
    # `portico acp` starts a daemon; the program of the script driver is an agent.
    assert found == {"drivers/runtime/process.py", "drivers/script/program/steps.py", "gateway/cli/local_daemon.py"}
