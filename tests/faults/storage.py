"""Faults of the real database file: a lock that another process holds, and a disk that is full."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.faults import oracles
from tests.faults.campaign import NotRun, Run
from tests.faults.daemon import BOUND, STOP_SECONDS, Client, Conversation, Daemon, Turn

LOCK_SECONDS, QUICK_LOCK_SECONDS = 23.0, 12.0
"""Longer than the busy timeout of 10 s, once and twice."""
BUSY_SECONDS = 10.0
DISK_MEGABYTES = 8
FULL_SECONDS, QUICK_FULL_SECONDS = 8.0, 6.0
"""Longer than the 5 s for which writes are retried at the end of a run."""

Call = asyncio.Task[Turn] | asyncio.Task[httpx.Response]


async def lock(run: Run) -> None:
    """Another process holds the write lock for 23 s while sessions are prompted, answered, cancelled and deleted."""
    seconds = QUICK_LOCK_SECONDS if run.quick else LOCK_SECONDS
    async with run.daemon() as daemon, daemon.client(seconds + 3 * BUSY_SECONDS) as client:
        sessions = await _Sessions.prepare(client)
        with closing(sqlite3.connect(daemon.data / "portico.db", isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            calls = sessions.start_calls(client)
            await asyncio.sleep(seconds)
            other.execute("ROLLBACK")
        # Writes that are queued behind others may each wait for the busy timeout.
        limit = seconds + BUSY_SECONDS + BOUND - (time.monotonic() - began)
        await sessions.check(run, calls, max(limit, 0.0))
        run.record("prompts are given once", oracles.given_once(daemon.prompts()))
    async with run.daemon() as daemon, daemon.client(seconds) as client:
        conversation, task = await _streaming(client, "stopped")
        with closing(sqlite3.connect(daemon.data / "portico.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await _stop(run, daemon, "SIGTERM while locked", [task], BUSY_SECONDS + BOUND)
        await _restart(run, daemon, "restart after SIGTERM while locked", [conversation])


async def disk(run: Run) -> None:
    """A tmpfs of 8 MB is the data directory and is full for 8 s; then it is full again at SIGTERM."""
    seconds = QUICK_FULL_SECONDS if run.quick else FULL_SECONDS
    async with run.daemon(start=False) as daemon, _tmpfs(daemon.data):
        await daemon.start()
        async with daemon.client() as client:
            sessions = await _Sessions.prepare(client)
            _fill(daemon.data)
            calls = sessions.start_calls(client)
            await asyncio.sleep(seconds / 2)
            run.record("/readyz while full", await _readiness(client, 503))
            await asyncio.sleep(seconds / 2)
            _free(daemon.data)
            await sessions.check(run, calls, BOUND)
            run.record("/readyz when free again", await _readiness(client, 200))
            working = [await _streaming(client, f"stop{n}") for n in range(6)]
            _fill(daemon.data)
            run.record("/readyz when full again", await _readiness(client, 503))
            await _stop(run, daemon, "SIGTERM while full, with 6 turns", [task for _, task in working], BOUND)
        _free(daemon.data)
        await _restart(run, daemon, "restart after SIGTERM while full", [each for each, _ in working])
        run.record("prompts are given once", oracles.given_once(daemon.prompts()))
        # Before the folder is unmounted.
        await daemon.kill()


class _Sessions:
    """Sessions in different states, one for each operation."""

    def __init__(self, streaming: Conversation, running: asyncio.Task[Turn]) -> None:
        self.streaming, self.running = streaming, running
        self.idle = self.waiting = self.cancelled = self.deleted = streaming
        self.cancelled_turn = self.deleted_turn = running
        self.call = ""

    @classmethod
    async def prepare(cls, client: Client) -> _Sessions:
        """Create them."""
        found = cls(*await _streaming(client, "streaming"))
        found.idle = await Conversation(client, name="idle").create()
        await found.idle.turn(["text", 1, 0])
        found.waiting = await Conversation(client, name="waiting").create()
        await found.waiting.turn(["text", 2, 0], ["ask"], ["text", 2, 0])
        found.call = "waiting-1-call-0"
        found.cancelled, found.cancelled_turn = await _streaming(client, "cancelled")
        found.deleted, found.deleted_turn = await _streaming(client, "deleted")
        return found

    def start_calls(self, client: Client) -> list[Call]:
        """Start the operations at the same time, while the store fails: a turn, an answer, a cancel and a delete."""
        return [
            asyncio.create_task(self.idle.turn(["text", 4, 0.01])),
            asyncio.create_task(self.waiting.answer(self.call)),
            asyncio.create_task(client.post(f"/session/{self.cancelled.id}/cancel")),
            asyncio.create_task(client.delete(f"/session/{self.deleted.id}")),
        ]

    async def check(self, run: Run, calls: list[Call], seconds: float) -> None:
        """The calls are answered within so many seconds from now, and the sessions work."""
        names = ("turn", "answer", "cancel", "delete")
        await asyncio.wait(calls, timeout=seconds)
        for name, call in zip(names, calls, strict=True):
            run.record(f"{name} is answered", _answer_problems(call))
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        deleted = not calls[3].cancelled() and not calls[3].exception() and _status(calls[3].result()) == 204
        for conversation in (self.streaming, self.idle, self.waiting, self.cancelled, *(() if deleted else (self.deleted,))):
            await run.case(f"session {conversation.name}", lambda each=conversation: _works(each))  # type: ignore[misc]
        for turn in (self.running, self.cancelled_turn, self.deleted_turn):
            turn.cancel()
        await asyncio.gather(self.running, self.cancelled_turn, self.deleted_turn, return_exceptions=True)


async def _works(conversation: Conversation) -> list[str]:
    """The session works once what is in progress has been cancelled, or its pending call has been answered."""
    await conversation.client.post(f"/session/{conversation.id}/cancel")
    return await conversation.check()


def _answer_problems(call: Call) -> list[str]:
    if not call.done():
        return ["no answer"]
    if error := call.exception():
        return [f"{type(error).__name__}: {error}"]
    answer = call.result()
    status, text = _status(answer), answer.body if isinstance(answer, Turn) else answer.text
    return [] if status in (200, 204, 503) else [f"{status} {text}"]


def _status(answer: Turn | httpx.Response) -> int:
    return answer.status if isinstance(answer, Turn) else answer.status_code


async def _streaming(client: Client, name: str) -> tuple[Conversation, asyncio.Task[Turn]]:
    """A session whose agent writes a message every 0.2 s for 100 s."""
    conversation = await Conversation(client, name=name).create()
    turn = Turn(prompt=conversation.next_prompt())
    steps: list[list[Any]] = [["text", 1, 0.2], ["end_message"]] * 500
    task = asyncio.create_task(conversation.turn(*steps, turn=turn, prompt_id=turn.prompt))
    async with asyncio.timeout(BOUND * 4):
        while turn.text.count("<") < 3:
            await asyncio.sleep(0.01)
    return conversation, task


async def _stop(run: Run, daemon: Daemon, name: str, tasks: list[asyncio.Task[Turn]], bound: float) -> None:
    code, seconds = await daemon.end(bound + STOP_SECONDS)
    problems = [] if code == 0 and seconds <= bound else [f"exit code {code} after {seconds:.1f} s"]
    for turn in await asyncio.gather(*tasks):
        problems += oracles.ends_once(turn.frames)
    run.record(name, problems + await daemon.none_left(0.5))


async def _restart(run: Run, daemon: Daemon, name: str, conversations: list[Conversation]) -> None:
    async def check() -> list[str]:
        await daemon.start()
        problems: list[str] = []
        async with daemon.client() as client:
            for conversation in conversations:
                conversation.client = client
                problems += await conversation.check(1)
        return problems

    await run.case(name, check)


async def _readiness(client: Client, expected: int) -> list[str]:
    """`/readyz` has this status within the bound."""
    deadline = time.monotonic() + BOUND
    while (answer := await client.get("/readyz")).status_code != expected and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    return [] if answer.status_code == expected else [f"{answer.status_code} {answer.text}"]


@asynccontextmanager
async def _tmpfs(folder: Path) -> AsyncIterator[None]:
    """Mount a tmpfs at the folder. Raises NotRun where that is not permitted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m,mode=700", "tmpfs", str(folder)]
    try:
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    except OSError as error:
        raise NotRun(f"mount: {error}") from error
    if done.returncode:
        raise NotRun(f"no tmpfs can be mounted: {done.stderr.strip() or done.returncode}")
    try:
        yield
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", "-l", str(folder)], capture_output=True)


def _fill(folder: Path) -> None:
    """Fill the disk to its last byte. The log of SQLite is emptied before, because it is written again from its beginning."""
    with closing(sqlite3.connect(folder / "portico.db", timeout=BUSY_SECONDS)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def _free(folder: Path) -> None:
    os.remove(folder / "filler")
