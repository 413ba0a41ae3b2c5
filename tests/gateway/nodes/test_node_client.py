"""The HTTP client between nodes, with a server that sends the bytes a test chooses.

aiohttp reads and writes HTTP. These tests are about what the client has chosen: nothing is added, followed or repeated, and which
errors say that the other node may have begun.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.cluster.forwarding.node_client import NodeBroken, NodeClient, NodeUnreachable

Result = TypeVar("Result")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n"


@dataclass
class Peer:
    """One connection that the server has accepted, and the requests that it got."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    """The head and the body of each."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_request(self) -> None:
        head = (await self.reader.readuntil(b"\r\n\r\n"))[:-4]
        lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        length = int(lengths[0].partition(b":")[2]) if lengths else 0
        self.requests.append((head, await self.reader.readexactly(length)))

    def end(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """End the connection without a FIN."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass
class Server:
    """The server: its URL, its connections, and what it does with each after a request was read."""

    url: str = ""
    respond: Callable[[Peer], Awaitable[None]] = lambda peer: peer.send(OK)
    begin: Callable[[Peer], Awaitable[None]] = Peer.read_request
    peers: list[Peer] = field(default_factory=list)

    @property
    def requests(self) -> list[int]:
        """The number of requests of each connection."""
        return [len(peer.requests) for peer in self.peers]

    def answer(self, data: bytes, *, then: Callable[[Peer], object] | None = None) -> None:
        """Send these bytes for each request."""

        async def respond(peer: Peer) -> None:
            await peer.send(data)
            if then is not None:
                then(peer)

        self.respond = respond


@asynccontextmanager
async def serve(tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    running = Server()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        running.peers.append(peer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while not writer.is_closing():
                    await running.begin(peer)
                    await running.respond(peer)
        finally:
            peer.closed.set()
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    running.url = f"{'https' if tls else 'http'}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield running
    finally:
        listening.close()
        for peer in running.peers:
            peer.writer.transport.abort()
            await soon(peer.closed.wait())


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serve() as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[NodeClient]:
    made = NodeClient()
    yield made
    await made.close()


async def soon(work: Coroutine[Any, Any, Result]) -> Result:
    """What hangs fails within a minute."""
    return await asyncio.wait_for(work, 60)


async def ask(
    client: NodeClient,
    server: Server,
    method: str = "POST",
    body: bytes = b"",
    headers: Sequence[tuple[bytes, bytes]] = (),
    target: bytes = b"/x",
    received: bytearray | None = None,
) -> tuple[int, Sequence[tuple[bytes, bytes]], bytes]:
    """Send a request, and return the status, the headers and the body of its response. `received` gets the body as it comes."""
    received = bytearray() if received is None else received

    async def exchange() -> tuple[int, Sequence[tuple[bytes, bytes]], bytes]:
        async with client.request(server.url, method, target, headers, body) as response:
            while part := await response.content.readany():
                received.extend(part)
            return response.status, response.raw_headers, bytes(received)

    return await soon(exchange())


async def broken(client: NodeClient, server: Server, method: str = "POST", body: bytes = b"") -> bytes:
    """Expect that a request raises NodeBroken, and return what was received of its body before."""
    received = bytearray()
    with pytest.raises(NodeBroken):
        await ask(client, server, method, body, received=received)
    return bytes(received)


async def test_a_request_arrives_as_it_was_given(client: NodeClient, server: Server) -> None:
    headers = [(b"x-Mixed", b"a  b"), (b"x-twice", b"1"), (b"x-other", "ä".encode()), (b"x-twice", b"2"), (b"x-empty", b"")]
    body = bytes(range(256)) * 300
    assert (await ask(client, server, "PUT", body, headers, b"/a%2Fb/../c?q=%20+&&"))[2] == b"ok"
    await ask(client, server, "GET", headers=[(b"x-a", b"b")])
    # aiohttp sends headers as UTF-8.
    await ask(client, server, "GET", headers=[(b"x-a", b"caf\xe9")])
    [with_body, without, escaped] = server.peers[0].requests
    host = b"Host: " + server.url.removeprefix("http://").encode()
    assert with_body[1] == body
    assert with_body[0].split(b"\r\n") == [
        b"PUT /a%2Fb/../c?q=%20+&& HTTP/1.1",
        host,
        *(name + b": " + value for name, value in headers),
        b"Content-Length: %d" % len(body),
    ]
    assert without[0].split(b"\r\n") == [b"GET /x HTTP/1.1", host, b"x-a: b"]
    assert escaped[0].endswith(b"\r\nx-a: caf\\xe9")


async def test_a_response_is_given_as_it_was_sent_and_nothing_is_done_with_it(client: NodeClient, server: Server) -> None:
    server.answer(
        b"HTTP/1.1 404 Nope\r\nX-A: One,  two\r\nSet-Cookie: a\r\nX-Empty:\r\nset-cookie: \xe9\r\ncontent-length: 0\r\n\r\n"
    )
    status, headers, body = await ask(client, server)
    assert (status, body) == (404, b"")
    assert list(headers) == [
        (b"X-A", b"One,  two"),
        (b"Set-Cookie", b"a"),
        (b"X-Empty", b""),
        (b"set-cookie", b"\xe9"),
        (b"content-length", b"0"),
    ]
    # Cookies are kept for names only.
    server.url = server.url.replace("127.0.0.1", "localhost")
    for head in (
        b"HTTP/1.1 307 Elsewhere\r\nLocation: /y\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n",
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\n",
    ):
        server.answer(head + b"Content-Length: 2\r\n\r\nok")
        for _ in range(2):
            assert (await ask(client, server))[2] == b"ok", head
    assert server.requests == [1, 6]
    assert all(request == server.peers[1].requests[0] for request in server.peers[1].requests)


NO_RESPONSES = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a wrong length": b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
    "a large head": b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 100_000,
    "a wrong chunk": ENDLESS + b"wrong\r\n",
    "nothing": b"",
    "a part of the head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "a part of the body": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
    "chunks without an end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
}


async def test_what_is_no_whole_response_is_an_error_and_the_request_is_not_sent_again(
    client: NodeClient, server: Server
) -> None:
    for name, raw in NO_RESPONSES.items():
        for end in (Peer.end, Peer.reset):
            server.answer(raw, then=end)
            assert await broken(client, server) in (b"", b"part", b"hel"), name
    assert server.requests == [1] * 2 * len(NO_RESPONSES)


@pytest.mark.parametrize("end", [Peer.end, Peer.reset])
async def test_a_request_is_not_sent_twice(client: NodeClient, server: Server, end: Callable[[Peer], None]) -> None:
    """Many HTTP clients repeat it where a kept connection ends before the response."""

    async def respond(peer: Peer) -> None:
        if len(peer.requests) == 1:
            await peer.send(OK)
        else:
            end(peer)

    server.respond = respond
    for number, method in enumerate(("GET", "HEAD", "PUT", "DELETE", "POST"), 1):
        await ask(client, server)
        assert await broken(client, server, method) == b""
        assert server.requests == [2] * number, method


async def test_a_node_that_ends_before_it_has_read_the_request_is_noticed(client: NodeClient, server: Server) -> None:
    async def begin(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        raise ConnectionError

    server.begin = begin
    assert await broken(client, server, body=b"x" * 30_000_000) == b""
    assert len(server.peers) == 1


async def test_a_response_that_is_not_read_to_its_end_closes_the_connection(client: NodeClient, server: Server) -> None:
    server.answer(ENDLESS)
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        assert response.status == 200
    await soon(server.peers[0].closed.wait())


async def test_a_cancelled_request_closes_its_connection(client: NodeClient, server: Server) -> None:
    for number, raw in enumerate((b"", b"HTTP/1.1 200 OK\r\n", ENDLESS)):
        sent = asyncio.Event()
        server.answer(raw, then=lambda _, sent=sent: sent.set())  # type: ignore[misc]
        asking = asyncio.create_task(ask(client, server))
        await soon(sent.wait())
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await soon(server.peers[number].closed.wait())


async def test_close_ends_all_connections(client: NodeClient, server: Server) -> None:
    await asyncio.gather(ask(client, server), ask(client, server))
    await client.close()
    for peer in server.peers:
        await soon(peer.closed.wait())
    with pytest.raises(NodeUnreachable, match="shuts down"):
        await ask(client, server)


async def unreachable(client: NodeClient, url: str) -> str:
    with pytest.raises(NodeUnreachable) as caught:
        await ask(client, Server(url))
    return str(caught.value)


async def test_what_cannot_be_connected_to_is_unreachable(client: NodeClient) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert f"127.0.0.1:{port}" in await unreachable(client, f"http://127.0.0.1:{port}")
    # The second one cannot be a name.
    for host in ("nothing.invalid:80", f"{'x' * 70}.invalid:80"):
        assert await unreachable(client, f"http://{host}")


async def test_a_server_that_does_not_shake_hands_is_unreachable(server: Server) -> None:
    """The limit holds for TLS too, and the connection is closed."""
    client = NodeClient(connect_timeout=0.1)
    assert "timeout" in await unreachable(client, server.url.replace("http:", "https:"))
    await soon(server.peers[0].closed.wait())
    await client.close()


async def test_a_machine_that_is_gone_is_noticed_with_and_without_data_on_the_way(client: NodeClient, server: Server) -> None:
    server.answer(ENDLESS)
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        assert response.connection is not None and response.connection.transport is not None
        made = response.connection.transport.get_extra_info("socket")
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
            idle, each, count = (
                made.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + each * count == 25


def own_certificate(folder: Path) -> ssl.SSLContext:
    """Make a certificate of 127.0.0.1 that nobody else has signed, for a server."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "node.pem"
    file.write_bytes(made.public_bytes(pem) + plain)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context


async def test_a_certificate_that_is_not_trusted_is_refused(client: NodeClient, tmp_path: Path) -> None:
    async with serve(own_certificate(tmp_path)) as server:
        assert "certificate verify failed" in await unreachable(client, server.url)
        assert sum(server.requests) == 0
