"""The measured programs, the gateway and the floor: how each is started, and how a client opens a session and runs a turn."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.wire import CHUNKED_END, TIMEOUT, Collector, Turn, Wire, connect, http, session_id

KEY = "benchmark-key-0123456789"
ROOT = Path(__file__).parent.parent
STOP_SECONDS = 20.0
BURST, FAN, STEADY = 10_000, 400, 300
AT_ONCE = 16
"""Sessions that are opened at the same time."""
INTERVAL = 0.01
"""Seconds between two events of a turn of STEADY events."""
PACED = [
    step for n in range(STEADY) for step in ({"events": {"count": 1, "text": f"event {n} "}}, {"delay": {"seconds": INTERVAL}})
]
SCENARIO = {
    "turns": [
        *({"when": f"^{count}$", "steps": [{"events": {"count": count, "text": "event {n} "}}]} for count in (1, FAN, BURST)),
        {"when": f"^{STEADY}$", "steps": PACED},
    ]
}
"""What the agent of the gateway and of the floor does: as many events as its prompt requests."""


class Session(ABC):
    """A session with an agent. `wires` are its connections, where it has its own."""

    wires: Sequence[Wire] = ()

    @abstractmethod
    def begin(self, count: int) -> Collector:
        """Request `count` events, and return what collects them."""

    async def run(self, count: int) -> Turn:
        """Request `count` events and return what was received."""
        collector = self.begin(count)
        await asyncio.wait_for(collector.done, TIMEOUT)
        return collector.turn()

    async def whole(self, count: int) -> Turn:
        """Run a turn. Raises RuntimeError unless all its events were received, once and in order."""
        turn = await self.run(count)
        if turn.delivered(count) != count:
            raise RuntimeError(f"{turn.delivered(count)} events were received instead of {count}")
        return turn

    async def end(self) -> None:
        """End the session and its agent, and close the connections."""
        for wire in self.wires:
            wire.transport.close()

    async def resume(self, received: bytes) -> bytes:
        """Return what a client can still read of a turn whose connections it has lost after `received`."""
        return b""

    async def replay(self, received: bytes) -> bytes:
        """Return what a new client can read of the turn."""
        return b""


class Side(ABC):
    """A program that serves agents, in a process of its own with an empty home. It is started and stopped as a context."""

    name: str
    version = ""
    port: int

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> float:
        """Start the program. Return the seconds until it is healthy."""
        self._folder = tempfile.TemporaryDirectory(prefix="portico-bench-", ignore_cleanup_errors=True)
        self.home = Path(self._folder.name)
        self._command = self.command()
        began = time.perf_counter()
        await self._spawn()
        return time.perf_counter() - began

    async def _spawn(self) -> None:
        self.process = spawn(self._command, self.home)
        await asyncio.wait_for(self.until_healthy(), TIMEOUT)

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command, which may write files in `home`."""

    async def until_healthy(self) -> None:
        """Read the port from the first line of output."""
        assert self.process.stdout is not None
        line = (await asyncio.to_thread(self.process.stdout.readline)).decode()
        if not line:
            raise RuntimeError(f"{self.name} has ended: {(self.home / 'stderr').read_text()[-2000:]}")
        self.port = int(line.rsplit(":", 1)[-1])

    @abstractmethod
    async def session(self) -> Session:
        """Open a session, whose agent is started now or with its first turn."""

    async def sessions(self, count: int) -> list[Session]:
        """Open sessions whose agents have run a turn of one event."""
        opened: list[Session] = []
        while len(opened) < count:
            some = [await self.session() for _ in range(min(AT_ONCE, count - len(opened)))]
            await asyncio.gather(*(session.whole(1) for session in some))
            opened += some
        return opened

    def memory(self) -> float:
        """Return the resident memory of the program in MB, without its agents."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6

    def cpu_seconds(self) -> float:
        """Return the CPU time of the program's threads in seconds, without its agents."""
        if found := self._tasks("schedstat"):
            # In nanoseconds; the other clock counts hundredths of a second.
            return sum(int(file.read_text().split()[0]) for file in found) / 1e9
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def wake_ups(self) -> int:
        """Return how often a thread of the program has waited for something. Linux only: 0 elsewhere."""
        lines = [line for file in self._tasks("status") for line in file.read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

    def _tasks(self, name: str) -> list[Path]:
        return list(Path(f"/proc/{self.process.pid}/task").glob(f"*/{name}"))

    async def until_agents_end(self) -> None:
        """Wait until all agents are ended. Raises TimeoutError if they do not."""
        async with asyncio.timeout(TIMEOUT):
            while psutil.Process(self.process.pid).children():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def kill_and_restart(self) -> None:
        """Kill the program (SIGKILL) and the agents that it leaves behind, and start it again with the same home."""
        self.process.kill()
        await self._end()
        await self._spawn()

    async def stop(self) -> None:
        """End the program and the agents that it leaves behind."""
        await self._end()
        self._folder.cleanup()

    async def _end(self) -> None:
        agents = psutil.Process(self.process.pid).children(recursive=True)
        await asyncio.to_thread(stop, self.process)
        for process in agents:
            with suppress(psutil.Error):
                process.kill()


class FloorSession(Session):
    def __init__(self, wire: Wire) -> None:
        self._wire, self.wires = wire, (wire,)

    def begin(self, count: int) -> Collector:
        return self._wire.send(http("POST", "/", str(count)), CHUNKED_END)

    async def end(self) -> None:
        await self._wire.exchange(http("DELETE", "/"), b"\r\n\r\n")
        await super().end()


class Floor(Side):
    """Bare uvicorn: benchmarks/floor.py."""

    name = "floor"

    def command(self) -> list[str]:
        greeting = json.dumps({"type": "open", "options": {}, "scenario": SCENARIO})
        emitter = [sys.executable, "-I", "-S", str(ROOT / "drivers/script/program/main.py")]
        return [sys.executable, "-m", "benchmarks.floor", greeting, *emitter]

    async def session(self) -> Session:
        return FloorSession(await connect(self.port))


class PorticoSession(Session):
    def __init__(self, side: Portico, wire: Wire) -> None:
        self._side, self._wire, self.wires = side, wire, (wire,)
        self._id = ""

    def begin(self, count: int) -> Collector:
        body: dict[str, Any] = {"stream": "delta", "messages": [{"role": "user", "content": str(count)}]}
        if self._id:
            return self._wire.send(_http("POST", f"/session/{self._id}", body), CHUNKED_END)
        return self._wire.send(_http("PUT", "/session", {"agent": {"name": self._side.agent}, **body}), CHUNKED_END)

    async def run(self, count: int) -> Turn:
        collector = self.begin(count)
        await asyncio.wait_for(collector.done, TIMEOUT)
        self._id = self._id or session_id(collector.data)
        return collector.turn()

    async def end(self) -> None:
        await self._wire.exchange(_http("DELETE", f"/session/{self._id}"), b"\r\n\r\n")
        await super().end()

    async def resume(self, received: bytes) -> bytes:
        last = received[: received.rindex(b"\n\n")].rsplit(b"\nid: ", 1)[1].split(b"\n", 1)[0]
        return await self._events(session_id(received), "", Last_Event_ID=last.decode())

    async def replay(self, received: bytes) -> bytes:
        return await self._events(session_id(received), "&after=0")

    async def _events(self, session: str, query: str, **headers: str) -> bytes:
        request = _http("GET", f"/session/{session}/events?until=turn_stop{query}", **headers)
        return await (await connect(self._side.port)).read(request, CHUNKED_END, TIMEOUT)


def _http(method: str, path: str, body: object = None, **headers: str) -> bytes:
    return http(method, path, body, Authorization=f"Bearer {KEY}", **headers)


class Portico(Side):
    """The gateway, by AAP: the first turn of a session creates it."""

    name = "Portico"
    agent = "script"

    def __init__(self, **limits: float) -> None:
        self._limits = {"live_agents": 100, **limits}

    def command(self) -> list[str]:
        return [sys.executable, "-m", "gateway", "serve", "--config", str(write_config(self.home, self.agents(), self._limits))]

    def agents(self) -> list[str]:
        """Return the lines of the configuration for the agents."""
        (self.home / "scene.json").write_text(json.dumps(SCENARIO))
        folder = json.dumps(str(self.home))
        return ["[agents.script]", 'driver = "script"', f"cwd = {folder}", 'options = { scenario = "scene.json" }']

    async def until_healthy(self) -> None:
        await super().until_healthy()
        await self.get("/healthz", b'"ok"')

    async def get(self, path: str, end: bytes) -> None:
        """Request a page, and wait until its answer has `end`."""
        wire = await connect(self.port)
        await wire.exchange(_http("GET", path), end)
        wire.transport.close()

    async def session(self) -> Session:
        return PorticoSession(self, await connect(self.port))


def write_config(home: Path, agents: Sequence[str] = (), limits: dict[str, float] | None = None) -> Path:
    """Write a configuration with a free port and all data in `home`. Return its path."""
    lines = ["[server]", f"data_dir = {json.dumps(str(home / 'data'))}", "port = 0", "linger = 0.0", "[limits]"]
    lines += [f"{name} = {value}" for name, value in (limits or {}).items()]
    config = home / "portico.toml"
    config.write_text("\n".join([*lines, *agents]) + "\n")
    return config


def environment(home: Path) -> dict[str, str]:
    """Return the environment of the measured processes: nothing of the user's, and they may write byte code."""
    path = os.environ.get("PATH", "/usr/bin:/bin")
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), "PORTICO_API_KEY": KEY}


def spawn(command: list[str], home: Path, stdin: int | None = None) -> subprocess.Popen[bytes]:
    """Start a process; its standard error goes to a file in `home`."""
    with (home / "stderr").open("wb") as errors:
        return subprocess.Popen(command, cwd=ROOT, env=environment(home), stdin=stdin, stdout=subprocess.PIPE, stderr=errors)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that this benchmark has started."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


async def seconds_of(command: list[str]) -> float:
    """Run a command with an empty home and return its time in seconds."""
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as home:
        return await asyncio.to_thread(_seconds_of, command, Path(home))


def _seconds_of(command: list[str], home: Path) -> float:
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env=environment(home), stdout=subprocess.DEVNULL)
    # With a timeout, `wait` looks for the end only every 50 ms.
    watchdog = threading.Timer(STOP_SECONDS, process.kill)
    watchdog.start()
    try:
        code = process.wait()
    finally:
        watchdog.cancel()
    seconds = time.perf_counter() - began
    if code:
        raise subprocess.CalledProcessError(code, command)
    return seconds


async def settle(seconds: float = 0.2) -> None:
    """Wait for background work of the last repetition: writes to the store, exits of processes."""
    await asyncio.sleep(seconds)


@contextmanager
def own_processor() -> Iterator[bool]:
    """Give a processor to this thread and the processes that it starts, before all others. Yields whether that is permitted.

    So other work on the machine does not slow them. With more processors the ratios are the same or less.
    """
    try:
        policy, priority, processors = os.sched_getscheduler(0), os.sched_getparam(0), os.sched_getaffinity(0)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
        os.sched_setaffinity(0, {max(processors)})
    except (AttributeError, OSError):
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setaffinity(0, processors)
        os.sched_setscheduler(0, policy, priority)
