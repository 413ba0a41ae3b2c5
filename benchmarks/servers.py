"""The measured processes: `portico serve` and the floor (benchmarks/floor.py), each with its own empty folder."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.client import Connection, connection

KEY = "benchmark-key-0123456789"
ROOT = Path(__file__).parent.parent
PROGRAMS = {
    "echo": ROOT / "drivers/echo/program.py",
    "script": ROOT / "drivers/script/program/main.py",
    "paced": ROOT / "benchmarks/paced_agent.py",
}
BURST, FAN, FLOOD = 10_000, 400, 100_000
SCENARIO = {
    "turns": [
        {"when": "^burst$", "steps": [{"events": {"count": BURST, "text": "event {n} "}}]},
        {"when": "^fan$", "steps": [{"events": {"count": FAN, "text": "event {n} "}}]},
        {"when": "^flood$", "steps": [{"events": {"count": FLOOD, "text": "event {n} "}}]},
        {"steps": [{"text": {"text": "{prompt}"}}]},
    ]
}
STOP_SECONDS = 20.0
store_url = ""
"""The database of the daemons, one after the other; empty is an SQLite file for each."""


@dataclass
class RunningServer:
    """A server that accepts connections."""

    port: int
    process: psutil.Process
    key: str = ""

    def connect(self) -> AbstractAsyncContextManager[Connection]:
        return connection(self.port, self.key)

    def memory(self) -> float:
        """Return the resident memory of the server in MB, without its agents."""
        return float(self.process.memory_info().rss) / 1e6

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server's threads in seconds, without its agents."""
        if found := self._tasks("schedstat"):
            # In nanoseconds; the other clock counts hundredths of a second.
            return sum(int(file.read_text().split()[0]) for file in found) / 1e9
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def wake_ups(self) -> int:
        """Return how often a thread of the server has waited for something. Linux only: 0 elsewhere."""
        lines = [line for file in self._tasks("status") for line in file.read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

    def _tasks(self, name: str) -> list[Path]:
        return list(Path(f"/proc/{self.process.pid}/task").glob(f"*/{name}"))

    async def wait_for_agents_to_end(self, seconds: float = 60.0) -> None:
        """Wait until all agents are ended. Raises TimeoutError after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.process.children():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.process.children())} agents still run after {seconds:g} s")
            await asyncio.sleep(0.05)


def environment(home: Path) -> dict[str, str]:
    """Return the environment of the measured processes, which is that of a user's shell and lets them write byte code."""
    path = os.environ.get("PATH", "/usr/bin:/bin")
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), "PORTICO_API_KEY": KEY}


def write_config(
    home: Path, limits: Mapping[str, float], durability: str = "sent-first", node: tuple[int, str] | None = None
) -> Path:
    """Write a configuration whose `script` agent plays SCENARIO, with a free port and all data in `home`. Return its path.

    With `node`, a port and the URL of a database, it is that of a node.
    """
    scenes = home / "scenes"
    scenes.mkdir()
    (scenes / "bench.json").write_text(json.dumps(SCENARIO))
    port, url = node or (0, store_url)
    lines = ["[server]", f"data_dir = {json.dumps(str(home / 'data'))}", f"port = {port}", "linger = 0.0"]
    lines += ["[store]", f"url = {json.dumps(url)}", f"durability = {json.dumps(durability)}", "[limits]"]
    lines += [f"{name} = {value}" for name, value in limits.items()]
    lines += ["[agents.script]", 'driver = "script"', f"cwd = {json.dumps(str(scenes))}", 'options = { scenario = "bench.json" }']
    if node is not None:
        lines += ["[node]", f'address = "http://127.0.0.1:{port}"']
    config = home / "portico.toml"
    config.write_text("\n".join(lines) + "\n")
    return config


def serve_command(config: Path, module: str = "gateway") -> list[str]:
    return [sys.executable, "-m", module, "serve", "--config", str(config)]


@asynccontextmanager
async def portico(
    *,
    durability: str = "sent-first",
    prepare: Callable[[Path], None] = lambda data_dir: None,
    module: str = "gateway",
    **limits: float,
) -> AsyncIterator[RunningServer]:
    """Run a daemon with the given `store.durability` and `[limits]`. `prepare` is called with its data directory before.

    `module` is one that takes the arguments of the command, and may change what it runs.
    """
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
        home = Path(folder)
        await asyncio.to_thread(prepare, home / "data")
        process = start(serve_command(write_config(home, limits, durability), module), home)
        try:
            line = await first_line(process, home)
            yield RunningServer(int(line.rsplit(":", 1)[1]), psutil.Process(process.pid), KEY)
        finally:
            await asyncio.to_thread(stop, process)


@asynccontextmanager
async def cluster_node(url: str, module: str = "gateway", **limits: float) -> AsyncIterator[RunningServer]:
    """Run a node of the cluster of a database of PostgreSQL."""
    secrets = [f"PORTICO_NODE_KEYS={'n' * 32}", f"PORTICO_ENCRYPTION_KEY={base64.b64encode(bytes(32)).decode()}"]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
        home = Path(folder)
        process = start(["env", *secrets, *serve_command(write_config(home, limits, node=(port, url)), module)], home)
        try:
            await first_line(process, home)
            yield RunningServer(port, psutil.Process(process.pid), KEY)
        finally:
            await asyncio.to_thread(stop, process)


@asynccontextmanager
async def floor(program: str) -> AsyncIterator[RunningServer]:
    """Run the floor with one of PROGRAMS."""
    greeting = json.dumps({"type": "open", "options": {}, "scenario": SCENARIO if program == "script" else None})
    emitter = [sys.executable, "-I", "-S", str(PROGRAMS[program])]
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
        home = Path(folder)
        write_config(home, {})
        process = start([sys.executable, "-m", "benchmarks.floor", greeting, *emitter], home, home / "scenes")
        try:
            yield RunningServer(int(await first_line(process, home)), psutil.Process(process.pid))
        finally:
            await asyncio.to_thread(stop, process)


def start(command: list[str], home: Path, cwd: Path = ROOT, stdin: int | None = None) -> subprocess.Popen[bytes]:
    """Start a process; its standard error goes to a file in `home`."""
    with (home / "stderr").open("wb") as errors:
        return subprocess.Popen(command, cwd=cwd, env=environment(home), stdin=stdin, stdout=subprocess.PIPE, stderr=errors)


async def first_line(process: subprocess.Popen[bytes], home: Path) -> str:
    """Return the line that the process prints when it listens. Raises RuntimeError with its standard error if it ends before."""
    assert process.stdout is not None
    line = (await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), STOP_SECONDS)).decode().strip()
    if not line:
        raise RuntimeError(f"{process.args!r} did not start: {(home / 'stderr').read_text()[-2000:]}")
    return line


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


@contextmanager
def own_processor() -> Iterator[bool]:
    """Give a processor to this thread and the processes that it starts, before all others. Yields whether that is permitted."""
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


async def let_server_finish(seconds: float = 0.2) -> None:
    """Wait for background work of the last repetition: writes to the store, exits of processes."""
    await asyncio.sleep(seconds)


def seconds_of(command: list[str], home: Path) -> float:
    """Run a command and return its time in seconds."""
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
