"""A daemon with few file descriptors and more connections: agents start, requests are answered, and it does not spin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from urllib.parse import urlsplit

import httpx
import psutil

from tests.faults import oracles
from tests.faults.campaign import Run
from tests.faults.daemon import BOUND, KEY, Client, Conversation, Daemon

LIMITS = {64: 2, 256: 8}
"""RLIMIT_NOFILE of the daemon, and its `live_agents`."""
EXCESS = 32
"""Connections over the limit of open files."""
SPARE = 4
"""Connections besides one for each agent that followers leave free."""
PORTS = (("main",), ("MCP",), ("main", "MCP"))
KINDS = ("silent", "unfinished", "followers")
"""Connections that send nothing; that send half of a request; that follow the events of a session (on the main port)."""
CPU_SECONDS, CPU_LIMIT = 2.0, 0.5
"""The processor time that the daemon may need within so many seconds, while connections are open and nothing is done."""
LOG_BYTES = 64 * 1024
"""How much a case may add to the daemon's log."""
TOOL = {"name": "look", "description": "", "parameters": {"type": "object"}}
"""An application-side tool: an agent that has one needs the MCP server."""
UNFINISHED = b"POST /session HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-le"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def descriptors(run: Run) -> None:
    """Connections up to and over RLIMIT_NOFILE on the main port, the MCP port and both; then turns, `/healthz` and SIGTERM."""
    await run.concurrently([partial(_limit, run, limit, agents, kind) for limit, agents in LIMITS.items() for kind in KINDS], 4)


async def _limit(run: Run, limit: int, agents: int, kind: str) -> None:
    """One daemon with this limit, and this kind of connections to its ports, one case after the other."""
    shell = ("/bin/sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh")
    combinations = [ports for ports in PORTS if kind != "followers" or "main" in ports]
    counts = [limit // 4, limit + EXCESS]
    if run.quick:
        combinations, counts = combinations[-1:], counts[-1:]
    async with run.daemon(command=shell, limits={"live_agents": agents}) as daemon:
        for ports in combinations:
            for count in counts:
                name = f"limit {limit}: {count} {kind} connections on {' and '.join(ports)}"
                await run.case(name, partial(_case, daemon, kind, ports, count, agents), daemon)
                if not daemon.running:
                    await daemon.start()
        code, seconds = await daemon.end()
        problems = [] if code == 0 and seconds <= BOUND else [f"exit code {code} after {seconds:.1f} s"]
        run.record(f"limit {limit}: exit after {kind} connections", problems)


async def _case(daemon: Daemon, kind: str, ports: Sequence[str], count: int, agents: int) -> list[str]:
    logged = daemon.log.stat().st_size
    async with daemon.client() as client:
        # The first agent with a tool makes the daemon listen on its MCP port.
        watched = Conversation(client)
        problems = await _turns(client, [watched])
        sent = {"silent": b"", "unfinished": UNFINISHED, "followers": _follow(watched.id)}[kind]
        numbers = {"main": urlsplit(daemon.url).port or 0, "MCP": _mcp_port(daemon)}
        async with AsyncExitStack() as stack:
            held = []
            for port in ports:
                # The MCP port has no events to follow: its connections send nothing.
                first = b"" if kind == "followers" and port == "MCP" else sent
                held.append(await stack.enter_async_context(_connections(numbers[port], count, first)))
            problems += await _idle_cpu(daemon)
            if kind == "followers":
                # All connections are in use: one more may be refused, until some are closed.
                problems += await _health(client, 200, 503)
                _close(held[0][: agents + SPARE])
            problems += await _health(client, 200)
            if "MCP" in ports:
                problems += await _mcp_answers(numbers["MCP"])
            problems += await _turns(client, conversations := [Conversation(client) for _ in range(agents)])
        for conversation in (watched, *conversations):
            problems += await conversation.check(1)
            await client.delete(f"/session/{conversation.id}")
    if (grown := daemon.log.stat().st_size - logged) > LOG_BYTES:
        problems.append(f"the log has grown by {grown} bytes: …{daemon.log_tail(300)}")
    return problems + await daemon.none_left()


async def _turns(client: Client, conversations: Sequence[Conversation]) -> list[str]:
    """Create the sessions; the first turn of each starts an agent, all at the same time."""
    for conversation in conversations:
        await conversation.create(tools=[TOOL])
    problems: list[str] = []
    for turn in await asyncio.gather(*(conversation.turn(["text", 2, 0]) for conversation in conversations)):
        if turn.status != 200 or turn.broken:
            problems.append(f"a turn: {turn.status} {turn.body} {turn.broken}")
            continue
        problems += oracles.ends_once(turn.frames) + oracles.answers_only(turn.prompt, turn.text, 2)
    return problems


def _follow(session: str) -> bytes:
    head = f"GET /session/{session}/events HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n\r\n"
    return head.encode()


@asynccontextmanager
async def _connections(port: int, count: int, sent: bytes) -> AsyncIterator[list[Connection]]:
    """Open connections that have sent this. The daemon may close some of them."""
    opened: list[Connection] = []
    try:
        for _ in range(count):
            with suppress(OSError):
                opened.append(await asyncio.open_connection("127.0.0.1", port))
                opened[-1][1].write(sent)
        yield opened
    finally:
        _close(opened)


def _close(connections: Sequence[Connection]) -> None:
    for _, writer in connections:
        writer.transport.abort()


def _mcp_port(daemon: Daemon) -> int:
    """The port that the daemon listens on besides the main one. Raises StopIteration."""
    listening = [each.laddr.port for each in psutil.Process(daemon.pid).net_connections("inet") if each.status == "LISTEN"]
    return next(port for port in listening if port != urlsplit(daemon.url).port)


async def _idle_cpu(daemon: Daemon) -> list[str]:
    """Whether the daemon is idle while the connections are open."""
    await asyncio.sleep(0.5)
    before = sum(psutil.Process(daemon.pid).cpu_times()[:2])
    await asyncio.sleep(CPU_SECONDS)
    used = sum(psutil.Process(daemon.pid).cpu_times()[:2]) - before
    return [f"{used:.2f} s of processor time within {CPU_SECONDS:g} s"] if used > CPU_LIMIT else []


async def _health(client: Client, *expected: int) -> list[str]:
    """`/healthz` answers with one of these within the bound."""
    deadline, found = time.monotonic() + BOUND, ""
    while time.monotonic() < deadline:
        try:
            answer = await client.get("/healthz", timeout=BOUND)
            if answer.status_code in expected:
                return []
            found = f"{answer.status_code} {answer.text}"
        except httpx.HTTPError as error:
            found = f"{type(error).__name__}: {error}"
        await asyncio.sleep(0.1)
    return [f"/healthz: {found}"]


async def _mcp_answers(port: int) -> list[str]:
    """A request to the MCP port gets an answer; without a token it is a refusal."""
    async with httpx.AsyncClient(timeout=BOUND, verify=False, trust_env=False) as client:
        try:
            answer = await client.post(f"http://127.0.0.1:{port}/mcp", json={})
        except httpx.HTTPError as error:
            return [f"the MCP port: {type(error).__name__}: {error}"]
    return [] if 400 <= answer.status_code < 500 else [f"the MCP port: {answer.status_code} {answer.text}"]
