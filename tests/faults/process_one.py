"""The daemon as process 1 of a pid namespace, as in a container without an init process: it reaps orphans, and exits with 0."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from functools import partial

import psutil

from drivers.runtime.subreaper import REAP_SECONDS
from tests.faults.agent import KINDS
from tests.faults.campaign import NotRun, Run
from tests.faults.daemon import BOUND, STOP_SECONDS, Conversation, Daemon

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
ORPHANS = 20
ZOMBIE_SECONDS = 2 * REAP_SECONDS + BOUND
"""How long a zombie may remain: the daemon reaps what it has found twice."""


async def process_one(run: Run) -> None:
    """Orphans that exit, orphans that are ended with their agents, and SIGTERM, with the daemon as process 1."""
    try:
        done = await asyncio.to_thread(subprocess.run, [*NAMESPACE, "true"], capture_output=True, text=True)
    except OSError as error:
        raise NotRun(f"unshare: {error}") from error
    if done.returncode:
        raise NotRun(f"no pid namespace can be created: {done.stderr.strip() or done.returncode}")
    async with run.daemon(command=NAMESPACE) as daemon:
        try:
            await run.case(f"{ORPHANS} orphans exit while their agent runs", partial(_exits, daemon))
            for kind in ("plain", "orphan") if run.quick else KINDS:
                await run.case(f"delete with a process: {kind}", partial(_deleted, daemon, kind))
            await run.case("the agent exits before its orphans", partial(_agent_exits, daemon))
            await run.case("SIGTERM with a turn and orphans", partial(_stopped, daemon))
        finally:
            # Its numbers are those of the namespace, where other processes have them outside.
            (daemon.work / "processes.log").write_text("")


async def _exits(daemon: Daemon) -> list[str]:
    async with daemon.client() as client:
        conversation = await Conversation(client).create()
        await conversation.turn(["orphans", ORPHANS], ["text", 1, 0])
        problems = await _zombies_reaped(daemon)
        problems += await conversation.check(1)
        await client.delete(f"/session/{conversation.id}")
    return problems + await _all_gone(daemon)


async def _deleted(daemon: Daemon, kind: str) -> list[str]:
    async with daemon.client() as client:
        conversation = await Conversation(client).create()
        await conversation.turn(["spawn", kind])
        if len(_descendants(daemon)) < 2:
            return ["the process was not started"]
        answer = await client.delete(f"/session/{conversation.id}")
    return ([] if answer.status_code == 204 else [f"{answer.status_code} {answer.text}"]) + await _all_gone(daemon)


async def _agent_exits(daemon: Daemon) -> list[str]:
    async with daemon.client() as client:
        conversation = await Conversation(client).create()
        await conversation.turn(["spawn", "orphan"], ["orphans", ORPHANS], ["exit", 3])
        problems = await _all_gone(daemon)
        problems += await conversation.check(1)
        await client.delete(f"/session/{conversation.id}")
    return problems


async def _stopped(daemon: Daemon) -> list[str]:
    async with daemon.client() as client:
        conversation = await Conversation(client).create()
        task = asyncio.create_task(conversation.turn(["spawn", "orphan"], ["orphans", 3], ["text", 1000, 0.05]))
        async with asyncio.timeout(BOUND * 4):
            while not daemon.started("orphan") or len(_descendants(daemon)) < 2:
                await asyncio.sleep(0.05)
        process, began = daemon.process, time.monotonic()
        assert process is not None
        os.kill(_daemon(daemon).pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.communicate(), STOP_SECONDS)
        except TimeoutError:
            return [f"not stopped after {STOP_SECONDS:g} s"]
        seconds = time.monotonic() - began
        await task
    return [] if process.returncode == 0 and seconds <= BOUND else [f"exit code {process.returncode} after {seconds:.1f} s"]


def _daemon(daemon: Daemon) -> psutil.Process:
    """The daemon, as this namespace sees it: the only child of `unshare`."""
    (found,) = psutil.Process(daemon.pid).children()
    return found


def _descendants(daemon: Daemon) -> list[psutil.Process]:
    """All processes of its namespace but itself, zombies included."""
    return _daemon(daemon).children(recursive=True)


async def _zombies_reaped(daemon: Daemon) -> list[str]:
    """Wait until no process of the namespace is a zombie."""
    deadline = time.monotonic() + ZOMBIE_SECONDS
    while (zombies := [each for each in _descendants(daemon) if _is_zombie(each)]) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    return [f"{len(zombies)} zombies after {ZOMBIE_SECONDS:g} s"] if zombies else []


async def _all_gone(daemon: Daemon) -> list[str]:
    """Wait until the daemon is the only process of the namespace: agents and orphans have ended and are reaped."""
    problems = []
    deadline = time.monotonic() + BOUND
    while (left := [each for each in _descendants(daemon) if not _is_zombie(each)]) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    if left:
        problems.append(f"left running: {left}")
    return problems + await _zombies_reaped(daemon)


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        # Reaped meanwhile, which both callers count as one that is gone.
        return True
