"""The programs that are compared: how each is started, and how a client opens a session and runs a turn."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.wire import (
    CHUNKED_END,
    TIMEOUT,
    Collector,
    Turn,
    Wire,
    connect,
    http,
    last_event_id,
    prompt,
    rpc,
    websocket_frame,
    websocket_upgrade,
)
from benchmarks.servers import KEY, ROOT, stop

HERE = Path(__file__).parent
PACKAGES = ROOT / ".peers" / "node_modules"
STOP_REASON = b'"stopReason"'
INITIALIZE: dict[str, Any] = {"protocolVersion": 1, "clientCapabilities": {}}
SILENCE = 0.3
"""After the answer to a prompt, a turn whose last event was lost is over when this many seconds pass without a byte."""
RETURN_SECONDS = 1.0
"""How long a client that has come back reads, where no end is sent."""
AGENTS = {"acp": HERE / "acp_agent.py", "claude": HERE / "claude_cli.py"}


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

    async def resume(self, received: bytes) -> bytes:
        """Return what a client can still read of a turn whose connections it has lost after `received`."""
        return b""

    async def replay(self, received: bytes) -> bytes:
        """Return what a new client can read of the turn."""
        return b""


class Side(ABC):
    """A program that serves agents, in a process of its own with an empty home."""

    name: str
    version = ""
    agent = "acp"

    async def start(self) -> float:
        """Start the program. Return the seconds until it is healthy."""
        self._folder = tempfile.TemporaryDirectory(prefix="portico-peers-", ignore_cleanup_errors=True)
        self.home = Path(self._folder.name)
        self.launcher = self.write_launcher(self.home / f"{self.agent}-agent")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._command = self.command()
        began = time.perf_counter()
        self.process = self._spawn(self._command)
        await asyncio.wait_for(self.until_healthy(), TIMEOUT)
        return time.perf_counter() - began

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.home / "stderr").open("wb") as errors:
            return subprocess.Popen(
                command, cwd=ROOT, env=self.environment(), stdin=subprocess.PIPE, stdout=self.stdout(), stderr=errors
            )

    def write_launcher(self, path: Path) -> Path:
        """Write an executable that starts the agent, the same for all sides."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {shlex.join((sys.executable, "-I", "-S", str(AGENTS[self.agent])))} "$@"\n')
        path.chmod(0o755)
        return path

    def environment(self) -> dict[str, str]:
        """Return an environment without anything of the user's."""
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "PORTICO_API_KEY": KEY,
            "ANTHROPIC_API_KEY": "no-key",
        }

    def stdout(self) -> int:
        return subprocess.DEVNULL

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command, which may write files in `home`."""

    health = "/"

    async def until_healthy(self) -> None:
        """Wait for the first HTTP response."""
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} has ended: {(self.home / 'stderr').read_text()[-2000:]}")
            with suppress(OSError, RuntimeError):
                wire = await connect(self.port)
                await wire.exchange(http("GET", self.health, Connection="close"), b"HTTP/1.1 ")
                wire.transport.close()
                return
            await asyncio.sleep(0.002)

    def memory(self) -> float:
        """Return the resident memory of the program and its own children, without the agents, in MB."""
        own = psutil.Process(self.process.pid)
        total = 0
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.Error):
                if not any(str(path) in process.cmdline() for path in AGENTS.values()):
                    total += process.memory_info().rss
        return total / 1e6

    @abstractmethod
    async def session(self) -> Session:
        """Open a session, whose agent is started now or with its first turn."""

    async def kill_and_restart(self) -> None:
        """Kill the program (SIGKILL) and the agents that it leaves behind, and start it again with the same home."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        await asyncio.to_thread(stop, self.process)
        _kill(children)
        self.process = self._spawn(self._command)
        await asyncio.wait_for(self.until_healthy(), TIMEOUT)

    async def stop(self) -> None:
        """End the program and the agents that it leaves behind."""
        own = psutil.Process(self.process.pid)
        children = own.children(recursive=True)
        await asyncio.to_thread(stop, self.process)
        _kill(children)
        self._folder.cleanup()


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def package_version(name: str) -> str:
    """Return the installed version of an npm package."""
    return str(json.loads((PACKAGES / name / "package.json").read_text())["version"])


# -- the floor ------------------------------------------------------------------------------------------------------------


class FloorSession(Session):
    def __init__(self, wire: Wire, number: str) -> None:
        self._wire, self._number, self.wires = wire, number, (wire,)

    def begin(self, count: int) -> Collector:
        return self._wire.send(http("POST", f"/turn/{self._number}", prompt(3, "agent-session-1", count)), CHUNKED_END)


class Floor(Side):
    name = "floor: pipe to SSE, nothing parsed"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.peers.floor", str(self.port), str(self.launcher)]

    async def session(self) -> Session:
        wire = await connect(self.port)
        found = re.search(rb"agent (\d+);", await wire.exchange(http("POST", "/session"), b";"))
        assert found is not None
        return FloorSession(wire, found[1].decode())


# -- sandbox-agent --------------------------------------------------------------------------------------------------------


class SandboxAgentSession(Session):
    def __init__(self, port: int, path: str, events: Wire, requests: Wire) -> None:
        self._port, self._path, self._events, self._requests = port, path, events, requests
        self.wires = (events, requests)
        self._last = 10

    def begin(self, count: int) -> Collector:
        self._last += 1
        collector = self._events.collector = Collector(STOP_REASON)
        request = http("POST", self._path, prompt(self._last, "agent-session-1", count))
        self._answer = self._requests.send(request, STOP_REASON)
        return collector

    async def resume(self, received: bytes) -> bytes:
        request = http("GET", self._path, Accept="text/event-stream", Last_Event_ID=last_event_id(received))
        return await (await connect(self._port)).read(request, STOP_REASON, RETURN_SECONDS)

    async def replay(self, received: bytes) -> bytes:
        request = http("GET", self._path, Accept="text/event-stream")
        return await (await connect(self._port)).read(request, STOP_REASON, RETURN_SECONDS)

    async def run(self, count: int) -> Turn:
        collector = self.begin(count)
        await asyncio.wait_for(self._answer.done, TIMEOUT)
        while not collector.done.done():
            before = collector.last
            await asyncio.wait([collector.done], timeout=SILENCE)
            if collector.last == before:
                break
        return collector.turn()


class SandboxAgent(Side):
    name = "sandbox-agent"
    health = "/v1/health"

    @property
    def version(self) -> str:  # type: ignore[override]
        return package_version("@sandbox-agent/cli")

    def command(self) -> list[str]:
        # The agent "mock" is taken from this folder, without a download.
        installed = self.home / ".local/share/sandbox-agent/bin"
        self.write_launcher(installed / "agent_processes/mock-acp")
        # The program itself, without the node process of its launcher.
        program = next(PACKAGES.glob("@sandbox-agent/cli-*/bin/sandbox-agent"))
        return [str(program), "server", "--no-token", "--no-telemetry", "--port", str(self.port)]

    _servers = 0

    async def session(self) -> Session:
        self._servers += 1
        path = f"/v1/acp/s{self._servers}"
        requests, events = await connect(self.port), await connect(self.port)
        await requests.exchange(http("POST", f"{path}?agent=mock", rpc(1, "initialize", INITIALIZE)), b'"agentCapabilities"')
        await events.exchange(http("GET", path, Accept="text/event-stream"), b"\r\n\r\n")
        await requests.exchange(http("POST", path, rpc(2, "session/new", {"cwd": "/", "mcpServers": []})), b'"sessionId"')
        return SandboxAgentSession(self.port, path, events, requests)


# -- the Agent Client Protocol over a WebSocket ----------------------------------------------------------------------------


class WebSocketSession(Session):
    def __init__(self, wire: Wire, session: str) -> None:
        self._wire, self._session, self._last, self.wires = wire, session, 10, (wire,)

    def begin(self, count: int) -> Collector:
        self._last += 1
        return self._wire.send(websocket_frame(prompt(self._last, self._session, count)), STOP_REASON)


async def open_websocket_session(port: int, path: str, cwd: str, **headers: str) -> Session:
    """Open a WebSocket, initialize, and open a session."""
    wire = await connect(port)
    head = await wire.exchange(websocket_upgrade(path, **headers), b"\r\n\r\n")
    if b" 101 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError(head[:500].decode())
    await wire.exchange(websocket_frame(rpc(1, "initialize", INITIALIZE)), b'"agentCapabilities"')
    answer = await wire.exchange(websocket_frame(rpc(2, "session/new", {"cwd": cwd, "mcpServers": []})), b'"sessionId"')
    return WebSocketSession(wire, session_id(answer))


def session_id(answer: bytes) -> str:
    """Return the session's id in a response. Raises RuntimeError with the response if there is none."""
    found = re.search(rb'"sessionId": ?"([^"]+)"', answer)
    if found is None:
        raise RuntimeError(f"no session: {answer[-500:]!r}")
    return found[1].decode()


class StdioToWs(Side):
    name = "stdio-to-ws"

    @property
    def version(self) -> str:  # type: ignore[override]
        return package_version("stdio-to-ws")

    def command(self) -> list[str]:
        program = str(PACKAGES / "stdio-to-ws/dist/main.js")
        return ["node", "--require", str(HERE / "loopback.cjs"), program, "--quiet", "--port", str(self.port), str(self.launcher)]

    async def session(self) -> Session:
        return await open_websocket_session(self.port, "/", "/")


# -- the gateway ----------------------------------------------------------------------------------------------------------


class PorticoSession(Session):
    def __init__(self, port: int, wire: Wire, agent: str) -> None:
        self._port, self._wire, self._agent, self.wires = port, wire, agent, (wire,)
        self._id = ""

    def begin(self, count: int) -> Collector:
        body: dict[str, Any] = {"stream": "delta", "messages": [{"role": "user", "content": str(count)}]}
        if self._id:
            return self._wire.send(_authorized("POST", f"/session/{self._id}", body), CHUNKED_END)
        return self._wire.send(_authorized("PUT", "/session", {"agent": {"name": self._agent}, **body}), CHUNKED_END)

    async def run(self, count: int) -> Turn:
        collector = self.begin(count)
        await asyncio.wait_for(collector.done, TIMEOUT)
        self._id = self._id or session_id(collector.data)
        return collector.turn()

    async def resume(self, received: bytes) -> bytes:
        return await self._events(session_id(received), Last_Event_ID=last_event_id(received))

    async def replay(self, received: bytes) -> bytes:
        return await self._events(session_id(received))

    async def _events(self, session: str, **headers: str) -> bytes:
        path = f"/session/{session}/events?until=turn_stop" + ("" if headers else "&after=0")
        request = http("GET", path, Authorization=f"Bearer {KEY}", **headers)
        return await (await connect(self._port)).read(request, CHUNKED_END, TIMEOUT)


def _authorized(method: str, path: str, body: object) -> bytes:
    return http(method, path, body, Authorization=f"Bearer {KEY}")


class Portico(Side):
    """The gateway, by AAP: the first turn opens the session."""

    name = "Portico, ACP agent"
    driver = "acp"
    health = "/healthz"

    def command(self) -> list[str]:
        config = self.home / "portico.toml"
        lines = ["[server]", f"data_dir = {json.dumps(str(self.home / 'data'))}", f"port = {self.port}"]
        lines += ["[limits]", "live_agents = 100", "[agents.mock]", f'driver = "{self.driver}"']
        lines += [f"program = {json.dumps(str(self.launcher))}", f"cwd = {json.dumps(str(self.home))}"]
        config.write_text("\n".join(lines) + "\n")
        return [sys.executable, "-m", "gateway", "serve", "--config", str(config)]

    async def session(self) -> Session:
        return PorticoSession(self.port, await connect(self.port), "mock")


class PorticoWebSocket(Portico):
    """The gateway, by the protocol that its agent speaks too."""

    name = "Portico, ACP agent, by ACP over WebSocket"

    async def session(self) -> Session:
        return await open_websocket_session(self.port, "/acp/mock", str(self.home), Authorization=f"Bearer {KEY}")


class StdioSession(Session):
    def __init__(self, side: PorticoStdio, session: str) -> None:
        self._side, self._session, self._last = side, session, 10

    def begin(self, count: int) -> Collector:
        self._last += 1
        return self._side.send(prompt(self._last, self._session, count), STOP_REASON)


class PorticoStdio(Portico):
    """The gateway on a pipe, as an editor starts it."""

    name = "Portico, ACP agent, by ACP over stdio"

    def stdout(self) -> int:
        return subprocess.PIPE

    def command(self) -> list[str]:
        *command, _, _, config = super().command()
        return [*command, "acp", "--config", config, "mock"]

    async def until_healthy(self) -> None:
        _, self._wire = await asyncio.get_running_loop().connect_read_pipe(Wire, self.process.stdout)
        await self._exchange(rpc(1, "initialize", INITIALIZE), b'"agentCapabilities"')

    def send(self, message: bytes, end: bytes) -> Collector:
        assert self.process.stdin is not None
        collector = self._wire.collector = Collector(end)
        self.process.stdin.write(message + b"\n")
        self.process.stdin.flush()
        return collector

    async def _exchange(self, message: bytes, end: bytes) -> bytes:
        collector = self.send(message, end)
        await asyncio.wait_for(collector.done, TIMEOUT)
        return b"".join(collector.parts)

    async def session(self) -> Session:
        answer = await self._exchange(rpc(2, "session/new", {"cwd": str(self.home), "mcpServers": []}), b'"sessionId"')
        return StdioSession(self, session_id(answer))


class PorticoClaude(Portico):
    name = "Portico, claude stream-json"
    driver = "claude"
    agent = "claude"


# -- claude-agent-acp -----------------------------------------------------------------------------------------------------


class Lines(Wire):
    """The output of a program that serves several sessions in one pipe: each line goes to the collector of its session."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: dict[bytes, Collector] = {}
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            start = line.find(b'"sessionId":"')
            key = line[start + 13 : line.index(b'"', start + 13)] if start >= 0 and b'"method"' in line else _request_id(line)
            if (collector := self.collectors.get(key)) is not None:
                collector.add(line, now)

    def connection_lost(self, exc: Exception | None) -> None:
        for collector in self.collectors.values():
            if not collector.done.done():
                collector.done.set_exception(RuntimeError("the program has closed its output"))


def _request_id(line: bytes) -> bytes:
    found = re.search(rb'"id":(\d+)', line)
    return found[1] if found else b""


class AdapterSession(Session):
    def __init__(self, side: ClaudeAgentAcp, session: str) -> None:
        self._side, self._session = side, session

    def begin(self, count: int) -> Collector:
        number = self._side.next_number()
        collector = Collector(STOP_REASON)
        self._side.lines.collectors |= {str(number).encode(): collector, self._session.encode(): collector}
        self._side.write(prompt(number, self._session, count))
        return collector


class ClaudeAgentAcp(Side):
    """The official adapter: one process on a pipe, which an editor starts."""

    name = "claude-agent-acp, on a pipe"
    agent = "claude"

    @property
    def version(self) -> str:  # type: ignore[override]
        return package_version("@agentclientprotocol/claude-agent-acp")

    def environment(self) -> dict[str, str]:
        # The agent instead of the CLI; without an address for requests that the adapter may make itself.
        own = {"CLAUDE_CODE_EXECUTABLE": str(self.launcher), "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
        return {**super().environment(), **own}

    def stdout(self) -> int:
        return subprocess.PIPE

    def command(self) -> list[str]:
        self._last = 0
        return ["node", str(PACKAGES / "@agentclientprotocol/claude-agent-acp/dist/index.js")]

    async def until_healthy(self) -> None:
        _, self.lines = await asyncio.get_running_loop().connect_read_pipe(Lines, self.process.stdout)
        await self.request("initialize", INITIALIZE)

    def next_number(self) -> int:
        self._last += 1
        return self._last

    def write(self, message: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(message + b"\n")
        self.process.stdin.flush()

    async def request(self, method: str, params: dict[str, Any]) -> bytes:
        number = self.next_number()
        collector = self.lines.collectors[str(number).encode()] = Collector(b"{")
        self.write(rpc(number, method, params))
        await asyncio.wait_for(collector.done, TIMEOUT)
        return b"".join(collector.parts)

    async def session(self) -> Session:
        answer = await self.request("session/new", {"cwd": str(self.home), "mcpServers": []})
        return AdapterSession(self, session_id(answer))


SIDES: tuple[type[Side], ...] = (Floor, SandboxAgent, StdioToWs, Portico, PorticoWebSocket, PorticoClaude, ClaudeAgentAcp)
