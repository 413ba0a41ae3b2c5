"""The other programs that are compared, and the gateway with the same agent: how each is started and runs a turn."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.sides import KEY, ROOT, Portico, Session, Side
from benchmarks.wire import (
    TIMEOUT,
    Collector,
    Turn,
    Wire,
    connect,
    http,
    prompt,
    rpc,
    session_id,
    websocket_frame,
    websocket_upgrade,
)

HERE = Path(__file__).parent
PACKAGES = ROOT / ".peers" / "node_modules"
AGENT = HERE / "acp_agent.py"
STOP_REASON = b'"stopReason"'
INITIALIZE: dict[str, Any] = {"protocolVersion": 1, "clientCapabilities": {}}
SILENCE = 0.3
"""After the answer to a prompt, a turn whose last event was lost is over when this many seconds pass without a byte."""
RETURN_SECONDS = 1.0
"""How long a client that has come back reads, where no end is sent."""


def write_launcher(path: Path) -> Path:
    """Write an executable that starts the agent, the same for all sides."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.join((sys.executable, "-I", "-S", str(AGENT)))} "$@"\n')
    path.chmod(0o755)
    return path


class NpmSide(Side):
    """A program from npm, which listens on a port that it is given."""

    package: str
    health = "/"

    @property
    def version(self) -> str:  # type: ignore[override]
        return str(json.loads((PACKAGES / self.package / "package.json").read_text())["version"])

    def command(self) -> list[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        return self.serve(write_launcher(self.home / "acp-agent"))

    def serve(self, agent: Path) -> list[str]:
        """Return the command that serves an agent."""
        raise NotImplementedError

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
        last = received[: received.rindex(b"\n\n")].rsplit(b"\nid:", 1)[1].split(b"\n", 1)[0]
        return await self._read(Last_Event_ID=last.decode().strip())

    async def replay(self, received: bytes) -> bytes:
        return await self._read()

    async def _read(self, **headers: str) -> bytes:
        request = http("GET", self._path, Accept="text/event-stream", **headers)
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


class SandboxAgent(NpmSide):
    name = "sandbox-agent"
    package = "@sandbox-agent/cli"
    health = "/v1/health"
    _servers = 0

    def serve(self, agent: Path) -> list[str]:
        # The agent "mock" is taken from this folder, without a download.
        write_launcher(self.home / ".local/share/sandbox-agent/bin/agent_processes/mock-acp")
        # The program itself, without the node process of its launcher.
        program = next(PACKAGES.glob("@sandbox-agent/cli-*/bin/sandbox-agent"))
        return [str(program), "server", "--no-token", "--no-telemetry", "--port", str(self.port)]

    async def session(self) -> Session:
        self._servers += 1
        path = f"/v1/acp/s{self._servers}"
        requests, events = await connect(self.port), await connect(self.port)
        await requests.exchange(http("POST", f"{path}?agent=mock", rpc(1, "initialize", INITIALIZE)), b'"agentCapabilities"')
        await events.exchange(http("GET", path, Accept="text/event-stream"), b"\r\n\r\n")
        await requests.exchange(http("POST", path, rpc(2, "session/new", {"cwd": "/", "mcpServers": []})), b'"sessionId"')
        return SandboxAgentSession(self.port, path, events, requests)


class WebSocketSession(Session):
    """A session of the Agent Client Protocol over a WebSocket."""

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


class StdioToWs(NpmSide):
    name = package = "stdio-to-ws"

    def serve(self, agent: Path) -> list[str]:
        program = str(PACKAGES / "stdio-to-ws/dist/main.js")
        return ["node", "--require", str(HERE / "loopback.cjs"), program, "--quiet", "--port", str(self.port), str(agent)]

    async def session(self) -> Session:
        return await open_websocket_session(self.port, "/", "/")


class PorticoAcp(Portico):
    """The gateway with the agent of the others, by AAP."""

    name = "Portico"
    agent = "mock"

    def agents(self) -> list[str]:
        program = json.dumps(str(write_launcher(self.home / "acp-agent")))
        return ["[agents.mock]", 'driver = "acp"', f"program = {program}", f"cwd = {json.dumps(str(self.home))}"]


class PorticoWebSocket(PorticoAcp):
    """The gateway, by the protocol that its agent speaks too."""

    name = "Portico, by ACP over WebSocket"

    async def session(self) -> Session:
        return await open_websocket_session(self.port, "/acp/mock", str(self.home), Authorization=f"Bearer {KEY}")


SIDES: Sequence[type[Side]] = (SandboxAgent, StdioToWs, PorticoAcp, PorticoWebSocket)
