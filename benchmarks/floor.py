"""The floor (the baseline): bare uvicorn that runs the same program over asyncio's pipes and sends each line as an SSE event.

`python -m benchmarks.floor OPEN PROGRAM [ARG ...]` prints its port. `POST /warm` starts emitters (`{"count": N}`) that wait for
a prompt; `POST /turn` (`{"prompt": TEXT, "fresh": false}`) gives one of them its prompt, or with `fresh` a new one.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from contextlib import suppress
from typing import Any

import uvicorn

Scope = dict[str, Any]


class Emitters:
    """The emitter processes, with a pool of idle ones."""

    def __init__(self, greeting: str, argv: list[str]) -> None:
        self._greeting, self._argv = greeting.encode() + b"\n", argv
        self._idle: list[asyncio.subprocess.Process] = []
        self._all: list[asyncio.subprocess.Process] = []

    async def start(self) -> asyncio.subprocess.Process:
        """Start an emitter and wait until it accepts a prompt."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._argv, stdin=pipe, stdout=pipe)
        self._all.append(process)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(self._greeting)
        await process.stdout.readline()
        return process

    async def warm(self, count: int) -> None:
        """Start emitters until `count` are idle."""
        while len(self._idle) < count:
            self._idle.append(await self.start())

    async def take(self, fresh: bool) -> asyncio.subprocess.Process:
        return self._idle.pop() if self._idle and not fresh else await self.start()

    def release(self, process: asyncio.subprocess.Process, fresh: bool) -> None:
        if fresh:
            assert process.stdin is not None
            process.stdin.close()
        else:
            self._idle.append(process)

    async def close(self) -> None:
        """Kill all emitters."""
        for process in self._all:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            await process.wait()


class Floor:
    """The ASGI application."""

    def __init__(self, emitters: Emitters) -> None:
        self._emitters = emitters

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._lifespan(receive, send)
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        command = json.loads(body or b"{}")
        if scope["path"] == "/turn":
            return await self._turn(command["prompt"], command.get("fresh", False), send)
        await self._emitters.warm(command.get("count", 0))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def _turn(self, prompt: str, fresh: bool, send: Any) -> None:
        process = await self._emitters.take(fresh)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"type": "prompt", "content": prompt}).encode() + b"\n")
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while line := await process.stdout.readline():
            await send({"type": "http.response.body", "body": b"data: %b\n" % line, "more_body": True})
            if b'"session_end"' in line:
                break
        await send({"type": "http.response.body"})
        self._emitters.release(process, fresh)

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._emitters.close()
        await send({"type": "lifespan.shutdown.complete"})


def main(greeting: str, *argv: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    # The protocol is given, because otherwise asyncio does not set TCP_NODELAY, and responses wait 40 ms for an acknowledgement.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    sock.listen(128)
    sys.stdout.write(f"{sock.getsockname()[1]}\n")
    sys.stdout.flush()
    app = Floor(Emitters(greeting, [*argv]))
    config = uvicorn.Config(
        app, http="httptools", loop="asyncio", ws="none", log_config=None, access_log=False, server_header=False
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main(*sys.argv[1:])
