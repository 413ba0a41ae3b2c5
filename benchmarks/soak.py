"""A soak test: clients of many sessions disconnect and reconnect while the daemon is killed. No event is lost or duplicated."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.figures import Figure
from benchmarks.servers import KEY, first_line, serve_command, stop, write_config
from benchmarks.servers import start as start_process

Event = tuple[str, str, str]
"""(id, name, data) of one frame."""

TURNS, PARTS, BURST = 2, 5, 40
"""Turns of a session; bursts of a turn, with a pause in between; events of a burst."""
AT_ONCE = 24
"""Concurrent clients."""
KILLS = 2
TIMEOUT = 240.0
"""Maximum time of the whole test, in seconds."""
RETRY_SECONDS = 0.1
"""Time until a client repeats a rejected request."""
TEXT = "".join(f"{part}.{n} " for part in range(PARTS) for n in range(BURST))
STEPS = [step for part in range(PARTS) for step in ({"events": {"count": BURST, "text": f"{part}.{{n}} "}}, {"delay": 0.04})]


@dataclass
class RestartableDaemon:
    """A daemon that can be killed and restarted with the same data, on another port."""

    home: Path
    config: Path
    process: subprocess.Popen[bytes] | None = None
    url: str = ""
    turns: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def start(self) -> None:
        self.process = start_process(serve_command(self.config), self.home)
        self.url = "http://127.0.0.1:" + (await first_line(self.process, self.home)).rsplit(":", 1)[1]

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await asyncio.to_thread(self.process.wait)
        if self.process.stdout is not None:
            self.process.stdout.close()

    async def turn_finished(self) -> None:
        async with self.changed:
            self.turns += 1
            self.changed.notify_all()

    async def kill_after(self, marks: list[int]) -> int:
        """Kill and restart the daemon when each number of finished turns is reached. Return the number of kills."""
        for mark in marks:
            async with self.changed:
                await self.changed.wait_for(lambda mark=mark: self.turns >= mark)  # type: ignore[misc]
            await self.kill()
            await self.start()
        return len(marks)


@dataclass
class Reader:
    """The client of one session. `seen` has every frame that it has received completely, in order."""

    daemon: RestartableDaemon
    http: httpx.AsyncClient
    random_source: random.Random
    seen: list[Event] = field(default_factory=list)
    session: str = ""
    disconnects: int = 0
    broken: int = 0

    async def run(self) -> None:
        """Run all turns of the session."""
        for number in range(TURNS):
            await self._turn(number)
            await self.daemon.turn_finished()

    async def _turn(self, number: int) -> None:
        before = len(self.seen)
        body: dict[str, Any] = {"stream": "delta", "messages": [{"role": "user", "content": "soak"}]}
        headers = {"Idempotency-Key": f"{id(self)}-{number}"}
        while not (len(self.seen) > before and self.seen[-1][1] == "turn_stop"):
            if len(self.seen) > before:
                query = {"until": "turn_stop"}
                await self._read(
                    "GET", f"/session/{self.session}/events", params=query, headers={"Last-Event-ID": self.seen[-1][0]}
                )
            elif number:
                await self._read("POST", f"/session/{self.session}", json=body, headers=headers)
            else:
                await self._read("PUT", "/session", json={"agent": {"name": "script"}, **body}, headers=headers)

    async def _read(self, method: str, path: str, **request: Any) -> None:
        """Read a stream until its end, until a random size is reached, or until the connection is lost."""
        enough = self.random_source.choice((self.random_source.randint(1, 4000), self.random_source.randint(1, 30_000), 10**9))
        got = bytearray()
        try:
            async with self.http.stream(method, self.daemon.url + path, **request) as answer:
                if answer.status_code in (429, 503):
                    return await asyncio.sleep(RETRY_SECONDS)
                answer.raise_for_status()
                async for chunk in answer.aiter_raw():
                    got += chunk
                    if len(got) >= enough:
                        self.disconnects += 1
                        break
        except httpx.TransportError:
            self.broken += 1
            await asyncio.sleep(RETRY_SECONDS)
        self._keep(bytes(got[: min(len(got), enough)]))

    def _keep(self, got: bytes) -> None:
        found = events_in(got)
        if found and found[0][1] == "session_start":
            self.session = json.loads(found[0][2])["sessionId"]
        self.seen += found


@dataclass
class Comparison:
    """Compares the events that all clients have received with those in the store."""

    lost: int = 0
    duplicated: int = 0
    unstored: int = 0
    frames: int = 0
    whole: int = 0
    cut: int = 0

    def add(self, seen: list[Event], stored: list[Event]) -> None:
        """Add a session: `seen` are the events its client received, `stored` those of a replay of the whole session."""
        mine = [event for event in seen if event[1] not in ("session_start", "client_message", "gap")]
        theirs = [event for event in stored if event[1] not in ("client_message", "gap")]
        gaps = [json.loads(data) for _, name, data in stored if name == "gap"]
        self.frames += len(mine)
        self.duplicated += len(mine) - len({event[0] for event in mine})
        self.lost += len(set(theirs) - set(mine))
        extra = set(mine) - set(theirs)
        # Events that were sent but not stored when the daemon was killed are covered by a gap event.
        unstored = {event for event in extra if any(gap["from"] <= int(event[0].split(".")[0]) <= gap["to"] for gap in gaps)}
        self.unstored += len(unstored)
        self.lost += len(extra - unstored)
        self.lost += [event for event in mine if event not in extra] != theirs
        self._check_texts(theirs)

    def _check_texts(self, stored: list[Event]) -> None:
        text = ""
        for _, name, data in stored:
            if name == "text_delta":
                text += json.loads(data)["delta"]
            elif name == "turn_stop":
                end = json.loads(data)
                over = end["stopReason"] == "end_turn"
                self.whole, self.cut = self.whole + over, self.cut + (not over)
                # A turn that fails before it has text gets the reason as its text (`server.errors_as_text`).
                cut = TEXT.startswith(text) or text == end["x-portico"]["error"]
                self.lost += not (text == TEXT if over else cut)
                text = ""


def events_in(got: bytes) -> list[Event]:
    """Return the complete frames of the received bytes."""
    found = []
    for block in got.decode("utf-8", "ignore").split("\n\n")[:-1]:
        if not block.startswith(":"):
            name, data, number = block.split("\n")
            found.append((number.removeprefix("id: "), name.removeprefix("event: "), data.removeprefix("data: ")))
    return found


async def soak(quick: bool) -> list[Figure]:
    """Run sessions whose clients disconnect at random and resume by Last-Event-ID, while the daemon is killed twice."""
    return await run_soak(20 if quick else 200)


async def run_soak(count: int, seed: int = 1) -> list[Figure]:
    """Run the soak test with `count` sessions; the clients disconnect at the same points for the same `seed`."""
    began = time.perf_counter()
    async with asyncio.timeout(TIMEOUT), _daemon() as daemon, _client() as http:
        readers = [Reader(daemon, http, random.Random(seed * 1000 + n)) for n in range(count)]
        slots = asyncio.Semaphore(AT_ONCE)
        marks = [count * TURNS * (n + 1) // (KILLS + 1) for n in range(KILLS)]
        killing = asyncio.create_task(daemon.kill_after(marks))
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(_run_reader(slots, reader))
        kills = await killing
        comparison = Comparison()
        for reader in readers:
            comparison.add(reader.seen, await _replayed(http, daemon.url, reader.session))
    disconnects, broken = sum(reader.disconnects for reader in readers), sum(reader.broken for reader in readers)
    return [
        Figure(
            "events lost", comparison.lost, "", at_most=0.0, comment=f"of {comparison.frames} frames seen in {count} sessions"
        ),
        Figure("events duplicated", comparison.duplicated, "", at_most=0.0),
        Figure("turns that ended", comparison.whole + comparison.cut, "", at_least=count * TURNS, at_most=count * TURNS),
        Figure("turns cut by a kill", comparison.cut, "", comment="each ends with one turn_stop with an error"),
        Figure("sent but not stored", comparison.unstored, "", comment="at a kill; a gap event has the numbers"),
        Figure("kills", kills, "", at_least=KILLS),
        Figure(
            "disconnects by clients",
            disconnects,
            "",
            at_least=count / 2,
            comment=f"and {broken} connections that the daemon lost",
        ),
        Figure("wall", time.perf_counter() - began, "s"),
    ]


async def _run_reader(slots: asyncio.Semaphore, reader: Reader) -> None:
    async with slots:
        await reader.run()


async def _replayed(http: httpx.AsyncClient, url: str, session: str) -> list[Event]:
    found: list[Event] = []
    while True:
        query = {"until": "turn_stop", "after": found[-1][0] if found else "0"}
        answer = await http.get(f"{url}/session/{session}/events", params=query)
        more = events_in(answer.raise_for_status().content)
        if not more:
            return found
        found += more


def _client() -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {KEY}"}
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(headers=headers, timeout=60, limits=limits, verify=False)


@asynccontextmanager
async def _daemon() -> AsyncIterator[RestartableDaemon]:
    with tempfile.TemporaryDirectory(prefix="portico-soak-") as folder:
        home = Path(folder)
        config = write_config(home, {"live_agents": AT_ONCE})
        (home / "scenes" / "bench.json").write_text(json.dumps({"turns": [{"steps": STEPS}]}))
        daemon = RestartableDaemon(home, config)
        try:
            await daemon.start()
            yield daemon
        finally:
            if daemon.process is not None:
                await asyncio.to_thread(stop, daemon.process)
