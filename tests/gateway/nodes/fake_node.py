"""A server in the place of a node, whose responses a test chooses; and requests that a test signs itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from gateway.cluster.node_keys import NodeKeys, ReceivedSignature
from tests.gateway.nodes.cluster import NODE_KEY

Respond = Callable[["FakeRequest"], Awaitable[None]]


@dataclass
class FakeRequest:
    """A request that the server got, and the connection for the response."""

    head: bytes
    body: bytes
    signature: ReceivedSignature
    keys: NodeKeys
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def headers(self) -> dict[str, str]:
        lines = self.head.decode().split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def begin(self, status: int, *lines: str, proof: str | None = "") -> None:
        """Send the head of a response; with the right proof unless another one is given, or None."""
        if proof == "":
            proof = self.keys.proof(self.signature, status)
        proofs = [] if proof is None else [f"portico-node-proof: {proof}"]
        await self.send("\r\n".join([f"HTTP/1.1 {status} Status", *proofs, *lines, "", ""]).encode())


@asynccontextmanager
async def fake_node(respond: Respond, node: str = "b") -> AsyncIterator[str]:
    """Serve one request for each connection; give the base URL."""
    keys = NodeKeys(node, [NODE_KEY])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n"))[:-2]
            method, target, _ = head.split(b" ", 2)
            request = FakeRequest(head, b"", None, keys, reader, writer)  # type: ignore[arg-type]
            headers = request.headers()
            request.body = await reader.readexactly(int(headers.get("content-length", "0")))
            request.signature = keys.check(method.decode(), target, headers["portico-node"], headers["portico-caller"])
            await respond(request)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
