"""The programs that are compared: how each is started, and how a client opens a session and runs a turn."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
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
AGENTS = {"acp": HERE / "acp_agent.py", "claude": HERE / "claude_cli.py"}


class Session(ABC):
    """A session with an agent."""

    @abstractmethod
    async def run(self, count: int) -> Turn:
        """Request `count` events and return what was received."""


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
        command = self.command()
        began = time.perf_counter()
        self.process = self._spawn(command)
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
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {AGENTS[self.agent]} "$@"\n')
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

    async def stop(self) -> None:
        """End the program and the agents that it leaves behind."""
        own = psutil.Process(self.process.pid)
        children = own.children(recursive=True)
        await asyncio.to_thread(stop, self.process)
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        self._folder.cleanup()


def package_version(name: str) -> str:
    """Return the installed version of an npm package."""
    return str(json.loads((PACKAGES / name / "package.json").read_text())["version"])


# -- the floor ------------------------------------------------------------------------------------------------------------


class FloorSession(Session):
    def __init__(self, wire: Wire, number: str) -> None:
        self._wire, self._number = wire, number

    async def run(self, count: int) -> Turn:
        return await self._wire.run_turn(http("POST", f"/turn/{self._number}", prompt(3, "agent-session-1", count)), CHUNKED_END)


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
    def __init__(self, path: str, events: Wire, requests: Wire) -> None:
        self._path, self._events, self._requests = path, events, requests
        self._last = 10

    async def run(self, count: int) -> Turn:
        self._last += 1
        collector = self._events.collector = Collector(STOP_REASON)
        answer = self._requests.send(http("POST", self._path, prompt(self._last, "agent-session-1", count)), STOP_REASON)
        await asyncio.wait_for(answer.done, TIMEOUT)
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
        return SandboxAgentSession(path, events, requests)


# -- the Agent Client Protocol over a WebSocket ----------------------------------------------------------------------------


class WebSocketSession(Session):
    def __init__(self, wire: Wire, session: str) -> None:
        self._wire, self._session, self._last = wire, session, 10

    async def run(self, count: int) -> Turn:
        self._last += 1
        return await self._wire.run_turn(websocket_frame(prompt(self._last, self._session, count)), STOP_REASON)


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
    def __init__(self, wire: Wire, agent: str) -> None:
        self._wire, self._agent = wire, agent
        self._id = ""

    async def run(self, count: int) -> Turn:
        body: dict[str, Any] = {"stream": "delta", "messages": [{"role": "user", "content": str(count)}]}
        if self._id:
            return await self._wire.run_turn(_authorized("POST", f"/session/{self._id}", body), CHUNKED_END)
        collector = self._wire.send(_authorized("PUT", "/session", {"agent": {"name": self._agent}, **body}), CHUNKED_END)
        await asyncio.wait_for(collector.done, TIMEOUT)
        self._id = session_id(b"".join(collector.parts))
        return collector.turn()


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
        return PorticoSession(await connect(self.port), "mock")


class PorticoWebSocket(Portico):
    """The gateway, by the protocol that its agent speaks too."""

    name = "Portico, ACP agent, by ACP over WebSocket"

    async def session(self) -> Session:
        return await open_websocket_session(self.port, "/acp/mock", str(self.home), Authorization=f"Bearer {KEY}")


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

    async def run(self, count: int) -> Turn:
        number = self._side.next_number()
        collector = Collector(STOP_REASON)
        self._side.lines.collectors |= {str(number).encode(): collector, self._session.encode(): collector}
        self._side.write(prompt(number, self._session, count))
        await asyncio.wait_for(collector.done, TIMEOUT)
        return collector.turn()


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
