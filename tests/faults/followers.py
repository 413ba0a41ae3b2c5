"""Followers that drop their connections: each still receives every event once."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import httpx
import psutil

from tests.faults import oracles
from tests.faults.campaign import Run
from tests.faults.daemon import BOUND, Conversation, Daemon
from tests.support.sse import NumberedEvent as Frame
from tests.support.sse import StreamParser

FOLLOWERS, QUICK_FOLLOWERS = 200, 40
TEXTS, EVERY = 3000, 0.003
"""Texts of the turn, and the seconds in between."""
KEPT_FILES = 20
"""How many more files the daemon may have open than before the followers came."""


async def followers(run: Run) -> None:
    """200 followers of one turn drop their connections at random and resume by Last-Event-ID."""
    count = QUICK_FOLLOWERS if run.quick else FOLLOWERS
    async with run.daemon() as daemon, daemon.client() as client:
        conversation = await Conversation(client, name="followed").create()
        await conversation.turn(["text", 1, 0])
        files = psutil.Process(daemon.pid).num_fds()
        texts = TEXTS // 3 if run.quick else TEXTS
        turn = asyncio.create_task(conversation.turn(["text", texts, EVERY]))
        seen: list[list[Frame]] = [[] for _ in range(count)]
        drops = [0] * count
        async with asyncio.TaskGroup() as group:
            for n in range(count):
                group.create_task(_follow(daemon, conversation.id, run.random(n), seen[n], drops, n))
        await turn
        replayed = await conversation.replay()
        for n in range(count):
            run.record(f"follower {n + 1}", _complete(seen[n], replayed))
        run.report.remarks.append(f"{count} followers dropped {sum(drops)} connections")
        await run.case("files are closed", partial(_files, daemon, files))
        await run.case("session", conversation.check)


async def _follow(daemon: Daemon, session: str, rng: random.Random, seen: list[Frame], drops: list[int], n: int) -> None:
    """Follow until the second turn stops, with a new connection after each drop."""
    async with daemon.client() as client:
        while _stops(seen) < 2:
            limit = rng.choice((rng.randint(1, 5000), rng.randint(1, 50_000), 10**9))
            after = {"Last-Event-ID": seen[-1][0] if seen else "0"}
            parser, size, stops, seen_stops = StreamParser(), 0, 0, _stops(seen)
            try:
                async with client.stream("GET", f"/session/{session}/events", headers=after) as answer:
                    async for chunk in answer.aiter_raw():
                        frames = parser.feed(chunk)
                        seen += frames
                        size += len(chunk)
                        stops += _stops(frames)
                        if size >= limit or (stops and size > 10_000) or seen_stops + stops >= 2:
                            break
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
            drops[n] += 1


def _stops(frames: list[Frame]) -> int:
    """The number of turns that end in these frames."""
    return sum(name == "turn_stop" for _, name, _ in frames)


def _complete(seen: list[Frame], replayed: list[Frame]) -> list[str]:
    problems = oracles.numbers_increase(seen) + oracles.seen_in_log(seen, replayed)
    missing = {number for number, _, _ in replayed} - {number for number, _, _ in seen}
    return problems + ([f"{len(missing)} frames were not received, such as {sorted(missing)[:3]}"] if missing else [])


async def _files(daemon: Daemon, before: int) -> list[str]:
    """The connections of the followers do not stay open."""
    for _ in range(int(BOUND * 10)):
        if (now := psutil.Process(daemon.pid).num_fds()) <= before + KEPT_FILES:
            return []
        await asyncio.sleep(0.1)
    return [f"{now} files are open, {before} before"]
