"""The floor (the baseline): bare uvicorn that runs the same program over asyncio's pipes and sends each line as an SSE event.

`python -m benchmarks.floor OPEN PROGRAM [ARG ...]` prints its port. Each connection has an emitter, which its first `POST` starts
and a `DELETE` ends; the body of a `POST`, a JSON string, is its prompt.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from contextlib import suppress
from typing import Any

import uvicorn


class Floor:
    """The ASGI application."""

    def __init__(self, greeting: str, argv: list[str]) -> None:
        self._greeting, self._argv = greeting.encode() + b"\n", argv
        self._emitters: dict[object, asyncio.subprocess.Process] = {}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._lifespan(receive, send)
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        connection = tuple(scope["client"])
        if scope["method"] == "DELETE":
            emitter = self._emitters.pop(connection)
            assert emitter.stdin is not None
            emitter.stdin.close()
            await emitter.wait()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            return await send({"type": "http.response.body"})
        if connection not in self._emitters:
            self._emitters[connection] = await self._start()
        await self._turn(self._emitters[connection], json.loads(body), send)

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._argv, stdin=pipe, stdout=pipe)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(self._greeting)
        await process.stdout.readline()
        return process

    async def _turn(self, process: asyncio.subprocess.Process, prompt: str, send: Any) -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"type": "prompt", "content": prompt}).encode() + b"\n")
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while line := await process.stdout.readline():
            await send({"type": "http.response.body", "body": b"data: %b\n" % line, "more_body": True})
            if b'"session_end"' in line:
                break
        await send({"type": "http.response.body"})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for process in self._emitters.values():
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await send({"type": "lifespan.shutdown.complete"})


def main(greeting: str, *argv: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    # The protocol is given, because otherwise asyncio does not set TCP_NODELAY, and responses wait 40 ms for an acknowledgement.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    sock.listen(128)
    sys.stdout.write(f"{sock.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(
        Floor(greeting, [*argv]),
        http="httptools",
        loop="asyncio",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        # Its connections wait while the other side is measured.
        timeout_keep_alive=300,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main(*sys.argv[1:])
