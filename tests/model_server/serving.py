"""Runs an ASGI model server on loopback and records its requests.

Owns the port, the server's life inside the caller's event loop or by hand, and the
record of requests. Credentials are redacted before a request is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp

SECRET_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "cookie"})


@dataclass(frozen=True)
class RecordedRequest:
    """One request as the server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    scenario: str = ""
    index: int = 0


@dataclass
class ModelServer:
    """A running server: its URL and the requests that it received."""

    url: str
    requests: list[RecordedRequest] = field(default_factory=list)

    def bodies(self, scenario: str | None = None) -> list[dict[str, Any]]:
        """Bodies of the model requests, optionally of one scenario only."""
        return [
            request.body
            for request in self.requests
            if request.body.get("messages") is not None and scenario in (None, request.scenario)
        ]


class Recorder:
    """Appends requests to a list that tests read."""

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []

    async def record(self, request: Request, scenario: str = "", index: int = 0) -> RecordedRequest:
        """Keep one request and return it."""
        headers = {name: "<redacted>" if name.lower() in SECRET_HEADERS else value for name, value in request.headers.items()}
        body = parse_object(await request.body())
        kept = RecordedRequest(request.method, request.url.path, headers, body, scenario, index)
        self.requests.append(kept)
        return kept


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body; anything else reads as empty."""
    try:
        value = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class StreamCut(Exception):
    """Ends a response without its last chunk."""


def pieces(text: str, size: int) -> Iterator[str]:
    """A text in pieces of so many characters."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def serving(app: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """Serve `app` on loopback for the length of the block; yields its base URL."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await server.ready.wait()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


def serve_by_hand(model_server: Callable[..., AbstractAsyncContextManager[ModelServer]], description: str) -> None:
    """The command line of a dialect: print the URL and serve until interrupted."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free port")

    async def serve(port: int) -> None:
        async with model_server(port=port) as server:
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args().port))
