"""How git is run: output over its limit, time limits, and processes that outlive it."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path

import psutil
import pytest

from drivers.runtime import confined_program
from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.confined_program import Places
from gateway.errors import AgentProblem, TooMany
from gateway.worktrees.confinement import EACH, TOTAL, WAIT_SECONDS, Confinement, Confinements
from gateway.worktrees.git import Git, GitFailed
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

MIB = 1024 * 1024


def running(folder: Path, script: str, clock: Clock = SYSTEM_CLOCK) -> Git:
    """Git with the command `script`, a shell script."""
    return Git(Confinement(folder, None, "", Places(2, 4, 60.0), clock), folder, config={"alias.script": f"!{script}"})


def processes_in(folder: Path) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(folder)]


async def test_output_over_its_limit_is_cut(tmp_path: Path) -> None:
    """Neither the process nor its errors are waited for."""
    git = running(tmp_path, "head -c 8388608 /dev/zero; exec sleep 600")
    async with asyncio.timeout(60):
        output = await git("script", limit=MIB)
    assert (len(output.data), output.truncated) == (MIB, True)


async def test_output_of_just_the_limit_is_whole(tmp_path: Path) -> None:
    output = await running(tmp_path, "head -c 1048576 /dev/zero")("script", limit=MIB)
    assert (len(output.data), output.truncated) == (MIB, False)


async def test_output_over_the_limit_of_all_commands_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.worktrees.git.MAX_OUTPUT", MIB)
    async with asyncio.timeout(60):
        with pytest.raises(AgentProblem, match="more than 1048576 bytes"):
            await running(tmp_path, "head -c 8388608 /dev/zero; exec sleep 600")("script")


async def test_errors_are_read_to_their_end_and_are_no_part_of_the_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(GitFailed) as raised:
            await running(tmp_path, "printf '\\033xxx' >&2; head -c 1048576 /dev/zero >&2; exit 3; :")("script")
    assert str(raised.value) == "`git script` has ended with status 3; the gateway's log has what it says"
    assert (raised.value.status, raised.value.said[:4]) == (3, "\x1bxxx")
    # In one line, and without control characters.
    assert "says '\\x1bxxx" in caplog.text and len(raised.value.said) == 2000


async def test_input(tmp_path: Path) -> None:
    data = os.urandom(MIB)
    assert (await running(tmp_path, "cat")("script", entered=data)).data == data
    # One that does not read it ends all the same.
    assert (await running(tmp_path, "true")("script", entered=data)).data == b""


async def test_a_huge_file_takes_no_memory(tmp_path: Path) -> None:
    """An agent can make a sparse file of terabytes in the place of one that git reads as a whole."""
    assert (await running(tmp_path, "echo $GIT_ALLOC_LIMIT")("script")).text == "1g"


async def test_few_commands_run_at_a_time_and_one_that_waits_too_long_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    """With an error for the owner whose commands have all its places, and with another where there are too many in all."""
    script, work = "touch $$; until test -e end; do sleep 0.01; done; :", tmp_path / "work"
    confinements = Confinements(tmp_path / "own", (), lambda *_: None, clock)
    work.mkdir()

    async def run(owner: str) -> None:
        async with confinements.open(owner, "agent", work) as confinement:
            await Git(confinement, work, config={"alias.script": f"!{script}"})("script", seconds=600.0)

    owners = ["ann", "bob"] * EACH
    assert len(owners) == TOTAL
    at_work = [asyncio.create_task(run(owner)) for owner in owners]
    await wait_until(lambda: len(list(work.iterdir())) == TOTAL)
    for owner, error in (("ann", TooMany), ("eve", AgentProblem)):
        with pytest.raises(error, match="commands of git"):
            await clock.expire_until(run(owner), WAIT_SECONDS)
    assert len(list(work.iterdir())) == TOTAL
    (work / "end").touch()
    await asyncio.gather(*at_work)


async def test_command_over_its_time_may_remove_its_locks(tmp_path: Path, clock: ManualClock) -> None:
    git = running(tmp_path, "trap 'rm lock; exit 1' TERM; touch lock; touch started; while :; do sleep 0.05; done; :", clock)
    command = asyncio.create_task(git("script", seconds=2.0))
    await wait_until((tmp_path / "started").exists)
    await clock.expire(2.0)
    with pytest.raises(AgentProblem, match="not ended within 2 s"):
        await command
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("steps", range(4))
async def test_command_that_is_cancelled_at_its_start_ends_with_its_processes(tmp_path: Path, steps: int) -> None:
    git = running(tmp_path, "sleep 601 & sleep 601; :")
    await git("version")
    command = asyncio.create_task(git("script"))
    for _ in range(steps):
        await asyncio.sleep(0)
    command.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await command
        await wait_until(lambda: not processes_in(tmp_path))


async def test_process_that_has_left_the_group_and_keeps_the_output_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """Such as a filter that leaves a daemon behind. Git itself has ended: nobody waits for that."""
    monkeypatch.setattr(confined_program, "TERMINATION_SECONDS", 600.0)
    daemon = "import os, time; os.setsid(); print(os.getpid(), file=open('pid', 'w'), flush=True); time.sleep(600)"
    git = running(
        tmp_path, f'{shlex.quote(sys.executable)} -I -S -c "{daemon}" & until test -s pid; do sleep 0.05; done; :', clock
    )
    try:
        async with asyncio.timeout(60):
            command = asyncio.create_task(git("script", seconds=3.0))
            await wait_until((tmp_path / "pid").exists)
            await wait_until(lambda: len(processes_in(tmp_path)) == 1, "git has ended")
            await clock.expire(3.0)
            with pytest.raises(AgentProblem, match="not ended within 3 s"):
                await command
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
