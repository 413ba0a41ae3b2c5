"""`python -m tests.faults.volume [--megabytes N]`: a flood of output with a slow client, and the memory of the daemon meanwhile.

The agent writes one message without an end. A client reads its stream at 1 KB/s. The ceiling holds while the output is written,
when the run ends, while the whole history is read, when the next agent is seeded with it, and when a daemon that was killed in
the middle of such a run starts again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx
import psutil

from tests.faults import daemon as faulty
from tests.faults.campaign import Run
from tests.faults.daemon import KEY

CEILING = 250.0
"""MB of resident memory of the daemon, at any time."""
EVENT = 2500
"""Bytes of text of an event."""
INPUT_CEILING = 550.0
"""MB while messages of 50 MB are sent: one is in memory several times while it is parsed and passed on (400 to 480 MB measured).
If all four were kept, it would be more than 700: each message added 170 MB when there was no limit.
"""
SECONDS = 900.0
"""Seconds within which the output must be stored."""


@dataclass
class Volume:
    """What was measured: the largest resident memory of each phase in MB, its seconds, and what was wrong."""

    megabytes: int
    peaks: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def check(self, expected: bool, problem: str) -> None:
        if not expected:
            self.problems.append(problem)

    def record(self, phase: str, peak: float, seconds: float, ceiling: float = CEILING) -> None:
        self.peaks[phase], self.seconds[phase] = peak, seconds
        self.check(peak <= ceiling, f"{phase}: {peak:.0f} MB of memory, the ceiling is {ceiling:.0f} MB")

    def lines(self) -> list[str]:
        """A table of the phases."""
        rows = [f"| {phase} | {peak:.0f} | {self.seconds[phase]:.0f} |" for phase, peak in self.peaks.items()]
        return [f"{self.megabytes} MB of output, ceiling {CEILING:.0f} MB", "", "| phase | MB | s |", "|---|---:|---:|", *rows]


class Daemon(faulty.Daemon):
    """A daemon with the script agent. `http` is its client."""

    def __init__(self, home: Path, megabytes: int) -> None:
        script = {"driver": "script", "cwd": str(home / "work")}
        super().__init__(home, tables={"agents.script": script})
        text = "|{n}|" + "x" * (EVENT - 8)
        flood = {"when": "^flood$", "steps": [{"events": {"count": megabytes * 1_000_000 // EVENT, "text": text}}]}
        hold = {"when": "^hold$", "steps": [{"text": "begin"}, {"wait_for_file": "go"}]}
        turns = [flood, {"when": "^next$", "steps": [{"text": "next"}]}, hold]
        (self.work / "flood.json").write_text(json.dumps({"turns": turns}))
        self.http = httpx.AsyncClient()

    async def start(self) -> Self:
        await super().start()
        self.http = self.client(SECONDS)
        return self

    @property
    def peak(self) -> float:
        """The largest resident memory since the start or the last `reset_peak`, in MB, as the kernel records it."""
        status = dict(line.split(":", 1) for line in self._proc("status").read_text().splitlines() if ":" in line)
        return int(status["VmHWM"].split()[0]) * 1024 / 1e6

    def agents(self) -> list[psutil.Process]:
        """The processes of its agents."""
        return [child for child in psutil.Process(self.pid).children() if "script" in " ".join(child.cmdline())]

    def reset_peak(self) -> None:
        self._proc("clear_refs").write_text("5")

    def _proc(self, name: str) -> Path:
        return Path("/proc", str(self.pid), name)

    @asynccontextmanager
    async def phase(self, volume: Volume, name: str, ceiling: float = CEILING) -> AsyncIterator[None]:
        """Measure the largest memory of the body."""
        began = time.monotonic()
        self.reset_peak()
        yield
        volume.record(name, self.peak, time.monotonic() - began, ceiling)

    async def create(self) -> str:
        body = {"agent": {"name": "script", "options": {"scenario": "flood.json"}}, "messages": []}
        answer = await self.http.post("/aap/v3/sessions", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["sessionId"])

    async def state(self, session: str) -> str:
        return str((await self.http.get(f"/aap/v3/sessions/{session}")).json()["x-portico"]["state"])

    async def until_idle(self, session: str) -> None:
        async with asyncio.timeout(SECONDS):
            while await self.state(session) != "idle":
                await asyncio.sleep(0.2)


class SlowClient:
    """Sends a prompt, and reads the stream of its turn at 1 KB/s."""

    def __init__(self, daemon: Daemon, session: str, prompt: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        url = httpx.URL(daemon.url)
        self._socket.connect((url.host, url.port))
        body = json.dumps({"messages": [{"role": "user", "content": prompt}], "stream": "delta"})
        self._socket.sendall(
            f"POST /aap/v3/sessions/{session}/turns HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        self._socket.setblocking(False)
        self.begun: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while data := await asyncio.get_running_loop().sock_recv(self._socket, 1024):
            if not self.begun.done():
                self.begun.set_result(data)
            await asyncio.sleep(1.0)

    def close(self) -> None:
        self._reading.cancel()
        self._socket.close()


async def measure(megabytes: int) -> Volume:
    """Run all phases with one daemon, and one that is killed."""
    volume = Volume(megabytes)
    with tempfile.TemporaryDirectory(prefix="portico-volume-", ignore_cleanup_errors=True) as folder:
        daemon = Daemon(Path(folder), megabytes)
        async with faulty.closing(daemon):
            await daemon.start()
            await _phases(daemon, volume)
    return volume


async def _phases(daemon: Daemon, volume: Volume) -> None:
    count = volume.megabytes * 1_000_000 // EVENT
    async with daemon.phase(volume, "idle"):
        session = await daemon.create()
    async with daemon.phase(volume, "output, client at 1 KB/s"):
        client = SlowClient(daemon, session, "flood")
        assert b" 200 " in await asyncio.wait_for(client.begun, 60), client.begun.result()
        await daemon.until_idle(session)
    client.close()
    async with daemon.phase(volume, "history"):
        await _check_history(daemon, volume, session, ["flood"], count)
    async with daemon.phase(volume, "answer of the next turn, warm agent"):
        volume.check(await _answer(daemon, session, "next") == ["next"], "the warm agent did not answer")
    await daemon.end(SECONDS)
    await daemon.start()
    async with daemon.phase(volume, "answer of the next turn, seeded agent"):
        volume.check(await _answer(daemon, session, "next") == ["next"], "the seeded agent did not answer")
    killed = await daemon.create()
    client = SlowClient(daemon, killed, "flood")
    assert b" 200 " in await asyncio.wait_for(client.begun, 60), client.begun.result()
    while await _events(daemon, killed) < count // 2:
        await asyncio.sleep(0.2)
    await daemon.kill()
    client.close()
    began = time.monotonic()
    await daemon.start()
    volume.record("start after a kill", daemon.peak, time.monotonic() - began)
    async with daemon.phase(volume, "history after a kill"):
        await _check_history(daemon, volume, killed, ["flood"], None)
    await daemon.kill()
    await daemon.start()
    await _check_input(daemon, volume)


async def _check_input(daemon: Daemon, volume: Volume) -> None:
    """Send messages of 50 MB to an agent that does not read: the first is taken, the others are refused."""
    session = await daemon.create()
    client = SlowClient(daemon, session, "hold")
    assert b" 200 " in await asyncio.wait_for(client.begun, 60), client.begun.result()
    (agent,) = daemon.agents()
    agent.suspend()
    message = {"role": "user", "content": "x" * 50_000_000}
    body = json.dumps({"messages": [message], "stream": "delta", "when_busy": "steer"}).encode()
    headers = {"Content-Type": "application/json"}
    statuses = []
    async with daemon.phase(volume, "input of 4 x 50 MB, unread", INPUT_CEILING):
        for _ in range(4):
            url = f"/aap/v3/sessions/{session}/turns"
            async with daemon.http.stream("POST", url, content=body, headers=headers) as answer:
                statuses.append(answer.status_code)
    volume.check(statuses == [200, 429, 429, 429], f"messages to an agent that does not read: {statuses}")
    agent.resume()
    client.close()


async def _events(daemon: Daemon, session: str) -> int:
    """The events that are stored of a session, about, read from the database of the daemon."""

    def count() -> int:
        path = f"file:{daemon.home / 'data' / 'portico.db'}?mode=ro"
        with closing(sqlite3.connect(path, uri=True)) as database:
            return int(database.execute("SELECT COALESCE(MAX(last), 0) FROM events WHERE log_id = ?", (session,)).fetchone()[0])

    return await asyncio.to_thread(count)


async def _answer(daemon: Daemon, session: str, prompt: str) -> list[str]:
    body = {"messages": [{"role": "user", "content": prompt}], "stream": "none"}
    answer = await daemon.http.post(f"/aap/v3/sessions/{session}/turns", json=body)
    if answer.status_code != 200:
        return [f"{answer.status_code} {answer.text[:300]}"]
    return [message["content"] for message in answer.json()["messages"]]


async def _check_history(daemon: Daemon, volume: Volume, session: str, prompts: list[str], count: int | None) -> None:
    """Read the history by its chunks, and check the numbers of all events in it."""
    text = bytearray()
    expected = total = 0
    async with daemon.http.stream("GET", f"/aap/v3/sessions/{session}/history?type=full") as answer:
        volume.check(answer.status_code == 200, f"the history is a {answer.status_code}")
        async for chunk in answer.aiter_bytes():
            total += len(chunk)
            text += chunk
            *whole, rest = text.split(b"|")
            for one in whole[1 if expected == 0 else 0 :]:
                if one.isdigit():
                    if int(one) != expected and len(volume.problems) < 10:
                        volume.problems.append(f"the history has event {int(one)} where {expected} is expected")
                    expected += 1
            text = bytearray(rest if expected else b"|".join([*whole, rest]))
    if count is not None:
        volume.check(expected == count, f"the history has {expected} of {count} events")
        volume.check(total > 0.95 * volume.megabytes * 1e6, f"the history has {total} bytes")


async def volume(run: Run) -> None:
    """The campaign: 500 MB of output, 100 MB if it is quick. Each phase is a case."""
    measured = await measure(100 if run.quick else 500)
    for phase in measured.peaks:
        run.record(phase, [problem for problem in measured.problems if problem.startswith(f"{phase}: ")])
    run.record("contents", [problem for problem in measured.problems if problem.partition(": ")[0] not in measured.peaks])
    peaks = ", ".join(f"{phase} {peak:.0f}" for phase, peak in measured.peaks.items())
    run.report.remarks.append(f"{measured.megabytes} MB of output; MB of memory: {peaks}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="output of the agent (500)")
    volume = asyncio.run(measure(parser.parse_args().megabytes))
    sys.stdout.write("\n".join([*volume.lines(), *volume.problems]) + "\n")
    return 1 if volume.problems else 0


if __name__ == "__main__":
    sys.exit(main())
