"""Compares the gateway's ACP connection and transports with those of the package `agent-client-protocol`.

`python -m benchmarks.acp_transports [--quick]` prints two tables in Markdown. Both sides serve the same agent, which sends the
updates that its prompt requests (`COUNT SIZE`, updates and characters each) and then answers. The gateway's side is its
transports and its JSON-RPC connection without sessions, store and agent processes, because the package has none.
docs/decisions/acp-transport.md has the results.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self

import httpx
import psutil
import uvicorn
from websockets.asyncio.client import ClientConnection, connect

SIDES = ("gateway", "package")
MIB = 1024 * 1024
INITIALIZE = {"protocolVersion": 1, "clientCapabilities": {}}
NEW = {"cwd": "/", "mcpServers": []}

# -- the servers, in processes of their own -------------------------------------------------------------------------------


async def _gateway_side() -> tuple[Any, Any]:
    """Return the ASGI application, and a function that connects a client by its `send`."""
    from acp.schema import AgentMessageChunk, LoadSessionResponse, NewSessionResponse, PromptResponse, SessionNotification
    from fastapi import FastAPI

    from gateway.app import Gateway
    from gateway.config import Settings
    from gateway.protocols.acp import connection
    from gateway.protocols.acp.content import text
    from gateway.protocols.acp.routes import router
    from gateway.protocols.acp.session_methods import OpenSessions, Reply
    from gateway.security.authentication import ADMINISTRATOR
    from gateway.security.redaction import Redactor

    class BenchmarkSessions(OpenSessions):
        running: dict[str, tuple[asyncio.Task[None], Any]] = {}

        async def new(self, request: Any) -> Reply:
            return Reply(NewSessionResponse(session_id=f"s{next(NUMBERS)}"))

        async def load(self, request: Any) -> Reply:
            await asyncio.sleep(0.3)
            return Reply(LoadSessionResponse())

        async def prompt(self, request: Any, answer: Any) -> None:
            task = asyncio.create_task(self._work(request, answer))
            self.running[request.session_id] = (task, answer)

        async def cancel(self, request: Any) -> None:
            task, answer = self.running.pop(request.session_id)
            task.cancel()
            await answer(PromptResponse(stop_reason="cancelled"))

        async def _work(self, request: Any, answer: Any) -> None:
            count, size = map(int, request.prompt[0].text.split())
            for _ in range(count):
                chunk = AgentMessageChunk(session_update="agent_message_chunk", content=text("x" * size))
                update = SessionNotification(session_id=request.session_id, update=chunk)
                await self._client.notify("session/update", update)
                _sent()
            if count == 0:
                await asyncio.sleep(3600)
            await answer(PromptResponse(stop_reason="end_turn"))

    connection.OpenSessions = BenchmarkSessions  # type: ignore[misc]
    settings = Settings.model_validate({"server": {"data_dir": tempfile.mkdtemp()}})
    gateway = Gateway(settings, (), Redactor())
    await gateway.open()
    app = FastAPI()
    app.include_router(router(gateway))
    return app, lambda send: connection.Connection(gateway, "echo", ADMINISTRATOR, send)


def _package_agent() -> Callable[[Any], Any]:  # noqa: C901
    from acp.helpers import update_agent_message_text
    from acp.schema import InitializeResponse, LoadSessionResponse, NewSessionResponse, PromptResponse

    class BenchmarkAgent:
        def __init__(self, client: Any) -> None:
            self._client = client
            self._running: asyncio.Task[Any] | None = None

        async def initialize(self, protocol_version: int, **_: Any) -> Any:
            return InitializeResponse(protocol_version=protocol_version)

        async def new_session(self, cwd: str, mcp_servers: Any, additional_directories: Any = None) -> Any:
            return NewSessionResponse(session_id=f"s{next(NUMBERS)}")

        async def load_session(self, cwd: str, session_id: str, **_: Any) -> Any:
            await asyncio.sleep(0.3)
            return LoadSessionResponse()

        async def set_session_mode(self, mode_id: str, session_id: str) -> Any:
            return None

        async def close_session(self, session_id: str, **_: Any) -> Any:
            return None

        async def prompt(self, prompt: Any, session_id: str, **_: Any) -> Any:
            self._running = asyncio.create_task(self._work(prompt, session_id))
            await asyncio.wait([self._running])
            return PromptResponse(stop_reason="cancelled" if self._running.cancelled() else "end_turn")

        async def cancel(self, session_id: str, **_: Any) -> None:
            if self._running is not None:
                self._running.cancel()

        async def _work(self, prompt: Any, session_id: str) -> None:
            count, size = map(int, prompt[0].text.split())
            for _ in range(count):
                await self._client.session_update(session_id, update_agent_message_text("x" * size))
                _sent()
            if count == 0:
                await asyncio.sleep(3600)

    return BenchmarkAgent


def _numbers() -> Any:
    import itertools

    return itertools.count(1)


NUMBERS = _numbers()
SENT = 0


def _sent() -> None:
    global SENT
    SENT += 1


async def _serve(side: str) -> None:
    """Print the port and serve until the process is ended. `GET /sent` returns the number of updates that the agent has sent."""
    if side == "gateway":
        inner, _ = await _gateway_side()
    else:
        from acp.http.asgi import create_asgi_app

        inner = create_asgi_app(_package_agent())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/sent":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            return await send({"type": "http.response.body", "body": str(SENT).encode()})
        await inner(scope, receive, send)

    # With proto 0, asyncio does not set TCP_NODELAY.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    _write(str(listening.getsockname()[1]))
    config = uvicorn.Config(app, log_level="error", lifespan="off", http="httptools", access_log=False)
    await uvicorn.Server(config).serve(sockets=[listening])


async def _serve_stdio(side: str) -> None:
    if side == "package":
        from acp import run_agent

        return await run_agent(_package_agent())
    from gateway.protocols.acp.transport.messages import PARSE_ERROR, parse_message
    from gateway.protocols.acp.transport.stdio import StandardLines

    # gateway/cli/acp.py does the same.
    _, new_connection = await _gateway_side()
    lines = StandardLines()
    await lines.open()
    connection = new_connection(lines.write)
    async for line in lines.lines():
        try:
            message = parse_message(line)
        except ValueError:
            await lines.write(PARSE_ERROR)
        else:
            await connection.receive(message)
    await connection.drain(5.0)
    await connection.close()


@asynccontextmanager
async def _server(side: str) -> AsyncIterator[tuple[int, psutil.Process]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.acp_transports", "--serve", side, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    try:
        yield port, psutil.Process(process.pid)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


# -- the clients: raw messages, the same for both sides -------------------------------------------------------------------


class Client:
    """Sends requests and waits for responses. A subclass transports the messages."""

    def __init__(self) -> None:
        self._last = 0
        self.received: list[Any] = []
        self.answers: dict[int, asyncio.Future[Any]] = {}

    async def send(self, message: dict[str, Any], session: str | None = None) -> int:
        raise NotImplementedError

    async def start(self, method: str, params: Any, session: str | None = None) -> tuple[int, asyncio.Future[Any]]:
        self._last += 1
        future = self.answers[self._last] = asyncio.get_running_loop().create_future()
        status = await self.send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}, session)
        if status >= 400 and not future.done():
            future.set_result({"error": {"code": status}})
        return self._last, future

    async def request(self, method: str, params: Any, session: str | None = None, seconds: float = 60.0) -> Any:
        _, future = await self.start(method, params, session)
        return await asyncio.wait_for(future, seconds)

    async def prompt(self, session: str, text: str, seconds: float = 60.0) -> Any:
        params = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
        return await self.request("session/prompt", params, session, seconds)

    async def begin(self) -> str:
        """Initialize, and return a new session's id."""
        await self.request("initialize", INITIALIZE)
        return (await self.request("session/new", NEW))["result"]["sessionId"]

    def take(self, data: str | bytes) -> None:
        message = json.loads(data)
        future = self.answers.get(message.get("id")) if "method" not in message else None
        if future is not None and not future.done():
            future.set_result(message)
        else:
            self.received.append(message)


class WebSocketClient(Client):
    """Over a WebSocket."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    async def __aenter__(self) -> Self:
        # A small queue, so that data that is not read is not buffered in the client.
        self.socket: ClientConnection = await connect(
            f"ws://127.0.0.1:{self._port}/acp/echo", proxy=None, max_size=None, max_queue=16, compression=None
        )
        self.reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.reader.cancel()
        self.socket.transport.abort()

    async def send(self, message: dict[str, Any], session: str | None = None) -> int:
        await self.socket.send(json.dumps(message))
        return 200

    async def _read(self) -> None:
        async for frame in self.socket:
            self.take(frame)


class HttpClient(Client):
    """Over streamable HTTP, with the streams of the connection and of each session."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._url = f"http://127.0.0.1:{port}/acp/echo"
        self._http = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None), trust_env=False)
        self._headers: dict[str, str] = {}
        self._readers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for reader in self._readers:
            reader.cancel()
        await self._http.aclose()

    async def send(self, message: dict[str, Any], session: str | None = None) -> int:
        answer = await self._http.post(self._url, json=message, headers=self._of(session))
        if message["method"] == "initialize":
            self._headers = {"Acp-Connection-Id": answer.headers["acp-connection-id"]}
            self.take(answer.content)
            self.listen(None)
        return answer.status_code

    def _of(self, session: str | None) -> dict[str, str]:
        return self._headers | ({"Acp-Session-Id": session} if session else {})

    def listen(self, session: str | None) -> asyncio.Task[None]:
        reader = asyncio.create_task(self._read(session))
        self._readers.add(reader)
        return reader

    async def begin(self) -> str:
        session = await super().begin()
        self.listen(session)
        return session

    async def status_of_stream(self, session: str) -> int:
        """Open a second stream of the session, and return the status."""
        headers = self._of(session) | {"Accept": "text/event-stream"}
        async with self._http.stream("GET", self._url, headers=headers) as answer:
            return answer.status_code

    async def hold(self, session: str) -> socket.socket:
        """Open the session's stream over a socket that is never read."""
        unread = socket.socket()
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect(("127.0.0.1", httpx.URL(self._url).port))
        lines = [f"{name}: {value}" for name, value in (self._of(session) | {"Accept": "text/event-stream", "Host": "x"}).items()]
        unread.sendall("\r\n".join(["GET /acp/echo HTTP/1.1", *lines, "", ""]).encode())
        await asyncio.sleep(0.3)
        return unread

    async def _read(self, session: str | None) -> None:
        headers = self._of(session) | {"Accept": "text/event-stream"}
        async with self._http.stream("GET", self._url, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    self.take(line[5:])


class StdioClient(Client):
    """Over the standard input and output of a process."""

    def __init__(self, side: str) -> None:
        super().__init__()
        self._side = side

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        argv = [sys.executable, "-m", "benchmarks.acp_transports", "--serve-stdio", self._side]
        self.process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=MIB
        )
        self.reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.reader.cancel()
        await asyncio.gather(self.reader, return_exceptions=True)
        with suppress(ProcessLookupError):
            self.process.kill()
        # Otherwise `wait` does not return, because it waits for the end of the output.
        while self.process.stdout is not None and await self.process.stdout.read(MIB):
            pass
        await self.process.wait()

    async def send(self, message: dict[str, Any], session: str | None = None) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        return 200

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.take(line)


@asynccontextmanager
async def _client(transport: str, side: str) -> AsyncIterator[tuple[Any, psutil.Process, int]]:
    """Yield a client with the server's process and port (0 over stdio)."""
    if transport == "stdio":
        async with StdioClient(side) as client:
            yield client, psutil.Process(client.process.pid), 0
        return
    kind = {"websocket": WebSocketClient, "http": HttpClient}[transport]
    async with _server(side) as (port, process), kind(port) as client:
        yield client, process, port


# -- the figures ----------------------------------------------------------------------------------------------------------


async def _speed(transport: str, side: str, quick: bool) -> tuple[float, float, float]:
    """Return the median milliseconds of a prompt with one update, and of one with 1,000 updates, and the server's CPU time per
    update of the latter in microseconds, which other processes disturb least."""
    async with _client(transport, side) as (client, process, _):
        session = await client.begin()
        medians, cpu = [], 0.0
        for text, repeat in (("1 100", 20 if quick else 300), ("1000 100", 5 if quick else 40)):
            await client.prompt(session, text)
            times, before = [], process.cpu_times()
            for _ in range(repeat):
                begin = time.perf_counter()
                await client.prompt(session, text)
                times.append(time.perf_counter() - begin)
            after = process.cpu_times()
            cpu = (after.user + after.system - before.user - before.system) / repeat / 1000 * 1e6
            medians.append(statistics.median(times) * 1000)
        return medians[0], medians[1], cpu


async def _unread(transport: str, side: str, quick: bool) -> tuple[float, int | None]:
    """Return by how many MiB the server grows, and how many updates of 10,000 characters the agent sends, with a stopped reader.

    The prompt requests 30,000 of them, 286 MiB. The figures are taken after 10 seconds.
    """
    async with _client(transport, side) as (client, process, port):
        if transport == "http":
            await Client.begin(client)
            session = (await client.request("session/new", NEW))["result"]["sessionId"]
            unread = await client.hold(session)
        else:
            session = await client.begin()
            client.reader.cancel()
            unread = None
        before = process.memory_info().rss
        with suppress(asyncio.TimeoutError):
            await client.prompt(session, f"{3000 if quick else 30000} 10000", 10.0)
        grown = (process.memory_info().rss - before) / MIB
        sent = None
        if port:
            async with httpx.AsyncClient(trust_env=False) as http:
                sent = int((await http.get(f"http://127.0.0.1:{port}/sent")).text)
        if unread is not None:
            unread.close()
        return grown, sent


# -- the rules ------------------------------------------------------------------------------------------------------------


async def _answers_after_end_of_input(side: str) -> bool:
    async with StdioClient(side) as client:
        _, first = await client.start("initialize", INITIALIZE)
        _, second = await client.start("session/load", {"sessionId": "stored", **NEW})
        client.process.stdin.close()
        await asyncio.wait([first, second], timeout=10)
        return first.done() and second.done()


async def _reports_invalid_json(side: str) -> bool:
    async with StdioClient(side) as client:
        await client.begin()
        client.process.stdin.write(b"{nonsense\n")
        await asyncio.sleep(1)
        return any(message.get("error", {}).get("code") == -32700 for message in client.received)


async def _survives_batch(transport: str, side: str) -> bool:
    async with _client(transport, side) as (client, _, _):
        await client.begin()
        await client.send([])
        with suppress(asyncio.TimeoutError):
            return "result" in await client.request("session/new", NEW, seconds=3)
        return False


async def _cancels_by_request_id(side: str) -> bool:
    async with StdioClient(side) as client:
        session = await client.begin()
        params = {"sessionId": session, "prompt": [{"type": "text", "text": "0 0"}]}
        request_id, answer = await client.start("session/prompt", params)
        await asyncio.sleep(0.5)
        await client.send({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": request_id}})
        with suppress(asyncio.TimeoutError):
            return (await asyncio.wait_for(answer, 3))["result"]["stopReason"] == "cancelled"
        return False


async def _meta_is_separate(side: str) -> bool:
    """Whether a field of `_meta` named like a parameter leaves that parameter alone."""
    async with StdioClient(side) as client:
        session = await client.begin()
        params = {"sessionId": session, "prompt": [{"type": "text", "text": "1 1"}], "_meta": {"session_id": "other"}}
        await client.request("session/prompt", params, seconds=5)
        return all(message["params"]["sessionId"] == session for message in client.received)


async def _serves_method(transport: str, side: str, method: str) -> bool:
    async with _client(transport, side) as (client, _, _):
        session = await client.begin()
        answer = await client.request(method, {"sessionId": session}, session, seconds=5)
        return answer.get("error", {}).get("code") != -32601


async def _binary_frames(side: str) -> bool:
    async with _client("websocket", side) as (client, _, _):
        client.answers[1] = answer = asyncio.get_running_loop().create_future()
        await client.socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}).encode())
        done, _ = await asyncio.wait([answer], timeout=2)
        return bool(done)


async def _loads_over_http(side: str) -> bool:
    async with _client("http", side) as (client, _, _):
        await client.begin()
        await client.request("session/load", {"sessionId": "stored", **NEW}, seconds=5)
        client.listen("stored")
        await asyncio.sleep(0.3)
        return "result" in await client.prompt("stored", "1 1", 5)


async def _rejects_second_reader(side: str) -> bool:
    async with _client("http", side) as (client, _, _):
        session = await client.begin()
        await client.prompt(session, "1 1")
        with suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(client.status_of_stream(session), 10) >= 400
        return False


async def _delivers_to_returning_reader(side: str) -> bool:
    """Whether the next reader of a stream gets all messages that are sent while the stream has no reader."""
    async with _client("http", side) as (client, _, _):
        await Client.begin(client)
        session = (await client.request("session/new", NEW))["result"]["sessionId"]
        reader = client.listen(session)
        await asyncio.sleep(0.3)
        reader.cancel()
        await asyncio.sleep(0.5)
        _, answer = await client.start(
            "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "10 1"}]}, session
        )
        await asyncio.sleep(0.5)
        client.listen(session)
        await asyncio.wait([answer], timeout=3)
        return answer.done() and len(client.received) == 10


async def _sessions_are_independent(side: str) -> bool:
    """Whether a prompt is answered while another session of the connection has a stream that is not read."""
    async with _client("http", side) as (client, _, _):
        first = await client.begin()
        second = (await client.request("session/new", NEW))["result"]["sessionId"]
        unread = await client.hold(second)
        params = {"sessionId": second, "prompt": [{"type": "text", "text": "2500 10000"}]}
        await client.start("session/prompt", params, second)
        await asyncio.sleep(3)
        with suppress(asyncio.TimeoutError):
            return "result" in await client.prompt(first, "1 1", 5)
        unread.close()
        return False


RULES: dict[str, Callable[[str], Awaitable[bool]]] = {
    "stdio: a request is answered that is not finished at the end of the input": _answers_after_end_of_input,
    "stdio: invalid JSON is answered with -32700": _reports_invalid_json,
    "stdio: the connection survives a message that is not an object": lambda side: _survives_batch("stdio", side),
    "`$/cancel_request` cancels a prompt": _cancels_by_request_id,
    "`_meta` cannot replace a parameter": _meta_is_separate,
    "`session/delete` is served": lambda side: _serves_method("stdio", side, "session/delete"),
    "HTTP: `session/close` is served": lambda side: _serves_method("http", side, "session/close"),
    "WebSocket: binary frames are read": _binary_frames,
    "HTTP: `session/load`, then a prompt": _loads_over_http,
    "HTTP: a second reader of a stream is refused": _rejects_second_reader,
    "HTTP: a reader that returns gets what was sent meanwhile": _delivers_to_returning_reader,
    "HTTP: a session that is not read does not stop the others": _sessions_are_independent,
}


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _tables(quick: bool) -> None:
    names = ("agent-client-protocol", "uvicorn", "websockets", "httpx", "pydantic")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    _write(f"{packages}, Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    _write("| transport | side | 1 update, ms | 1,000 updates, ms | CPU per update, µs | stopped reader: MiB | updates sent |")
    _write("|---|---|---|---|---|---|---|")
    for transport in ("stdio", "websocket", "http"):
        for side in SIDES:
            short, long, cpu = await _speed(transport, side, quick)
            grown, sent = await _unread(transport, side, quick)
            figures = f"{short:.2f} | {long:.0f} | {cpu:.0f} | {grown:.0f} | {'' if sent is None else format(sent, ',')}"
            _write(f"| {transport} | {side} | {figures} |")
    _write("\n| | gateway | package |\n|---|---|---|")
    for rule, holds in RULES.items():
        _write(f"| {rule} | {' | '.join([await _verdict(holds, side) for side in SIDES])} |")


async def _verdict(holds: Callable[[str], Awaitable[bool]], side: str) -> str:
    try:
        return "yes" if await holds(side) else "no"
    except Exception as error:
        return f"no ({type(error).__name__})"


def main() -> None:
    """Measure both sides, or serve one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.acp_transports", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--serve-stdio", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(_serve(given.serve))
    elif given.serve_stdio:
        asyncio.run(_serve_stdio(given.serve_stdio))
    else:
        asyncio.run(_tables(given.quick))


if __name__ == "__main__":
    main()
