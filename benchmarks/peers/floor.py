"""The lean floor: bare uvicorn that copies what the agent writes to the response, as server-sent events, and parses nothing.

`python -m benchmarks.peers.floor PORT AGENT`. `POST /session` starts an agent and returns `agent NUMBER;`. `POST /turn/NUMBER`
sends its body, one line, to the agent and copies its output until the line with `"stopReason"`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress
from typing import Any

import uvicorn

LINES = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}\n'
    b'{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}\n'
)
BLOCK = 256 * 1024


class Floor:
    """The ASGI application."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._agents: list[asyncio.subprocess.Process] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._lifespan(receive, send)
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        if scope["path"].startswith("/turn/"):
            return await self._turn(self._agents[int(scope["path"].rsplit("/", 1)[1])], body, send)
        answer = b"agent %d;" % await self._start() if scope["path"] == "/session" else b""
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _start(self) -> int:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(self._agent, stdin=pipe, stdout=pipe, limit=2 * BLOCK)
        self._agents.append(process)
        number = len(self._agents) - 1
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(LINES)
        await process.stdout.readline()
        await process.stdout.readline()
        return number

    async def _turn(self, process: asyncio.subprocess.Process, line: bytes, send: Any) -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line + b"\n")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        start, tail = b"data: ", b""
        while block := await process.stdout.read(BLOCK):
            tail = (tail + block)[-200:]
            last = tail.endswith(b"\n") and b'"stopReason"' in tail
            framed = start + block.replace(b"\n", b"\n\ndata: ")
            await send(
                {"type": "http.response.body", "body": framed.removesuffix(b"data: ") if last else framed, "more_body": True}
            )
            start = b""
            if last:
                break
        await send({"type": "http.response.body"})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for process in self._agents:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await send({"type": "lifespan.shutdown.complete"})


def main(port: str, agent: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    # With proto 0, asyncio does not set TCP_NODELAY.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", int(port)))
    sock.listen(128)
    config = uvicorn.Config(
        Floor(agent),
        http="httptools",
        loop="asyncio",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        # The other sides of a measurement are started after a client has connected.
        timeout_keep_alive=300,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main(*sys.argv[1:])
