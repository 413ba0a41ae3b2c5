"""The HTTP client between nodes, with a server that sends the bytes a test chooses: what it relays, refuses and uses again."""

from __future__ import annotations

import asyncio
import datetime
import gc
import ipaddress
import socket
import ssl
import struct
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.protocols.forwarding import node_client
from gateway.protocols.forwarding.node_client import NodeBroken, NodeClient, NodeUnreachable
from gateway.protocols.forwarding.node_connection import MAX_BUFFERED, MAX_HEAD, NodeConnection
from tests.manual_clock import ManualClock
from tests.waiting import wait_until

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
        self.requests.append((head, await self.reader.readexactly(length_of(head))))

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
    def count(self) -> int:
        return sum(len(peer.requests) for peer in self.peers)

    def answer(self, data: bytes, *, then: Callable[[Peer], object] | None = None) -> None:
        """Send these bytes for each request."""

        async def respond(peer: Peer) -> None:
            await peer.send(data)
            if then is not None:
                then(peer)

        self.respond = respond


def length_of(head: bytes) -> int:
    (length,) = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return int(length.partition(b":")[2])


@asynccontextmanager
async def serve(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
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

    listening = await asyncio.start_server(handle, host, 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    running.url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
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
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Send a request, and return the status, the headers and the body of its response."""

    async def exchange() -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        received = bytearray()
        async with client.request(server.url, method, target, headers, body) as response:
            while part := await response.read():
                received += part
            return response.status, response.headers, bytes(received)

    return await soon(exchange())


async def broken(client: NodeClient, server: Server, match: str | None = None) -> bytes:
    """Expect that a request raises NodeBroken, and return what was received of its body before."""
    received = bytearray()

    async def exchange() -> None:
        async with client.request(server.url, "POST", b"/x", (), b"") as response:
            while part := await response.read():
                received.extend(part)

    with pytest.raises(NodeBroken, match=match):
        await soon(exchange())
    assert server.count == 1, "a request was repeated"
    return bytes(received)


# -- the request --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 5, 16 * 1024, 16 * 1024 + 1, 3_000_000])
async def test_a_request_arrives_as_it_was_given(client: NodeClient, server: Server, size: int) -> None:
    headers = [(b"x-Mixed", b"a  b\xe9"), (b"x-twice", b"1"), (b"x-twice", b"2"), (b"x-empty", b"")]
    body = bytes(range(256)) * (size // 256) + b"y" * (size % 256)
    assert (await ask(client, server, "PUT", body, headers, b"/a%2Fb/../c?q=%20+")) == (200, [(b"content-length", b"2")], b"ok")
    ((head, received),) = server.peers[0].requests
    assert received == body
    host = server.url.removeprefix("http://").encode()
    assert head.split(b"\r\n") == [
        b"PUT /a%2Fb/../c?q=%20+ HTTP/1.1",
        b"Host: " + host,
        *(name + b": " + value for name, value in headers),
        b"Content-Length: %d" % size,
    ]


# -- the response -------------------------------------------------------------------------------------------------------------


async def test_headers_are_given_in_order_with_their_values_as_sent(client: NodeClient, server: Server) -> None:
    server.answer(
        b"HTTP/1.1 404 Nope\r\nX-A: One,  two\r\nSet-Cookie: a\r\nX-Empty:\r\nset-cookie: \xe9\r\ncontent-length: 0\r\n\r\n"
    )
    status, headers, body = await ask(client, server)
    assert (status, body) == (404, b"")
    assert headers == [
        (b"x-a", b"One,  two"),
        (b"set-cookie", b"a"),
        (b"x-empty", b""),
        (b"set-cookie", b"\xe9"),
        (b"content-length", b"0"),
    ]


FRAMED = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\n\r\n",
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Late: 1\r\nX-Later: 2\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\n"
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("each", [1, 7, 10_000])
@pytest.mark.parametrize("raw", FRAMED.values(), ids=FRAMED)
async def test_a_response_is_the_same_however_it_is_split(client: NodeClient, server: Server, raw: bytes, each: int) -> None:
    async def respond(peer: Peer) -> None:
        peer.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(raw), each):
            await peer.send(raw[start : start + each])
            await asyncio.sleep(0)

    server.respond = respond
    for _ in range(2):
        status, headers, body = await ask(client, server)
        assert (status, body) == (200, b"hello")
        assert {name for name, _ in headers} <= {b"content-length", b"transfer-encoding"}
    assert len(server.peers) == 1


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_ends_with_its_head(client: NodeClient, server: Server, status: int) -> None:
    server.answer(b"HTTP/1.1 %d Status\r\nX-A: b\r\n\r\n" % status)
    for _ in range(2):
        assert await ask(client, server) == (status, [(b"x-a", b"b")], b"")
    assert len(server.peers) == 1


async def test_the_response_to_a_head_has_no_body(client: NodeClient, server: Server) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    for _ in range(2):
        assert await ask(client, server, "HEAD") == (200, [(b"content-length", b"5")], b"")


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 5\r\n\r\nwrong", b"Transfer-Encoding: chunked\r\n\r\n5\r\nwrong\r\n0\r\n\r\n"]
)
async def test_a_body_behind_the_response_to_a_head_is_not_relayed(client: NodeClient, server: Server, framing: bytes) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\n" + framing)
    for _ in range(2):
        status, _, body = await ask(client, server, "HEAD")
        assert (status, body) == (200, b"")
    assert len(server.peers) == 2


async def test_a_body_can_end_with_the_connection(client: NodeClient, server: Server) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", then=lambda peer: peer.writer.close())
    for _ in range(2):
        assert await ask(client, server) == (200, [], b"until the end")
    assert len(server.peers) == 2


async def test_a_response_is_read_while_it_comes(client: NodeClient, server: Server) -> None:
    go = asyncio.Event()

    async def respond(peer: Peer) -> None:
        await peer.send(ENDLESS)
        await go.wait()
        await peer.send(b"1\r\n!\r\n0\r\n\r\n")

    server.respond = respond
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        assert await soon(response.read()) == b"part" and not response.complete
        go.set()
        rest = b""
        while part := await soon(response.read()):
            rest += part
        assert rest == b"!" and response.complete


async def test_a_slow_reader_stops_the_node(client: NodeClient, server: Server) -> None:
    """What was not read is bounded, and the rest comes once it is."""
    part, count = bytes(range(256)) * 256, 1000
    sent = 0

    async def respond(peer: Peer) -> None:
        nonlocal sent
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(part) * count))
        for _ in range(count):
            await peer.send(part)
            sent += 1

    server.respond = respond
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        await wait_until(lambda: response._paused)
        assert not response._transport.is_reading()
        # asyncio reads up to 256 KiB at once.
        assert MAX_BUFFERED < response._buffered <= MAX_BUFFERED + 256 * 1024
        received = bytearray(await soon(response.read()))
        assert sent < count
        while more := await soon(response.read()):
            assert len(more) <= MAX_BUFFERED + 256 * 1024
            received += more
    assert received == part * count
    assert (await ask(client, server, "HEAD"))[0] == 200
    assert len(server.peers) == 1


# -- responses that are refused -----------------------------------------------------------------------------------------------

GARBAGE = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "HTTP/"),
    "status": (b"HTTP/1.1 20 OK\r\n\r\n", "status code"),
    "status below 100": (b"HTTP/1.1 099 OK\r\n\r\n", "not a response: the status 99"),
    "header": (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "header"),
    "folded": (b"HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 0\r\n\r\n", "header"),
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello", "Content-Length"),
    "lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nhello", "Content-Length"),
    "length and chunked": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length",
    ),
    "upgrade": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", "another protocol"),
    "101": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "Upgrade"),
}


@pytest.mark.parametrize(("raw", "problem"), GARBAGE.values(), ids=GARBAGE)
async def test_what_is_no_response_closes_the_connection(client: NodeClient, server: Server, raw: bytes, problem: str) -> None:
    server.answer(raw)
    assert await broken(client, server, problem) == b""
    await soon(server.peers[0].closed.wait())


async def test_a_chunk_without_its_size_ends_the_body(client: NodeClient, server: Server) -> None:
    server.answer(ENDLESS + b"wrong\r\n")
    assert await broken(client, server) == b"part"
    await soon(server.peers[0].closed.wait())


ENDLESS_PARTS = {
    "header": (b"HTTP/1.1 200 OK\r\nX-A: ", b"a"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
    "interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailer": (ENDLESS + b"0\r\nX-A: ", b"a"),
    "trailers": (ENDLESS + b"0\r\n", b"X-A: b\r\n"),
    "extension": (ENDLESS + b"1;a=", b"b"),
}


@pytest.mark.parametrize(("first", "more"), ENDLESS_PARTS.values(), ids=ENDLESS_PARTS)
async def test_an_endless_head_or_trailer_is_cut_off(client: NodeClient, server: Server, first: bytes, more: bytes) -> None:
    async def respond(peer: Peer) -> None:
        await peer.send(first)
        for _ in range(2000):
            await peer.send(more * 1000)
        peer.writer.close()

    server.respond = respond
    relayed = await broken(client, server, match=f"more than {MAX_HEAD} bytes")
    assert relayed == (b"part" if first.startswith(ENDLESS) else b"")
    await soon(server.peers[0].closed.wait())


async def test_small_chunks_are_no_endless_head(client: NodeClient, server: Server) -> None:
    """What is around the chunks counts only until the next one."""
    count = MAX_HEAD // 16

    async def respond(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(count):
            await peer.send(b"1;extension=0123456789\r\n")
            await asyncio.sleep(0)
            await peer.send(b"a\r\n")
        await peer.send(b"0\r\n\r\n")

    server.respond = respond
    assert (await ask(client, server))[2] == b"a" * count


ENDS = {
    "nothing": (b"", b""),
    "head": (b"HTTP/1.1 200 OK\r\nContent-Le", b""),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\n", b""),
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", b"hel"),
    "chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", b"hel"),
    "last chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", b"hel"),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n", b"hel"),
    "closing": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhel", b"hel"),
}


@pytest.mark.parametrize(("raw", "relayed"), ENDS.values(), ids=ENDS)
async def test_a_connection_that_ends_too_early_is_an_error(
    client: NodeClient, server: Server, raw: bytes, relayed: bytes
) -> None:
    server.answer(raw, then=lambda peer: peer.writer.close())
    assert await broken(client, server) == relayed
    await wait_until(lambda: not client._all)


async def test_a_reset_is_an_error(client: NodeClient, server: Server) -> None:
    """Also where the end of the connection would be that of the body."""
    reset = asyncio.Event()

    async def respond(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\npart")
        await reset.wait()
        peer.reset()

    server.respond = respond
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        assert await soon(response.read()) == b"part"
        reset.set()
        with pytest.raises(NodeBroken, match="lost"):
            await soon(response.read())
    assert not client._all


async def test_a_node_that_closes_its_side_before_it_has_read_the_request_is_noticed(client: NodeClient, server: Server) -> None:
    """asyncio closes such a connection only once the rest of the request is sent."""
    go = asyncio.Event()

    async def begin(peer: Peer) -> None:
        if not peer.requests:
            peer.requests.append((await peer.reader.readuntil(b"\r\n\r\n"), b""))
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.writer.write_eof()
            await go.wait()
        raise ConnectionError

    server.begin = begin
    with pytest.raises(NodeBroken):
        await ask(client, server, body=b"x" * 30_000_000)
    go.set()


# -- the use of a connection for further requests -----------------------------------------------------------------------------


async def test_a_connection_is_used_for_one_request_after_the_other(client: NodeClient, server: Server) -> None:
    for number in range(5):
        assert (await ask(client, server, body=b"x" * number * 10_000))[2] == b"ok"
    assert [len(peer.requests) for peer in server.peers] == [5]


async def test_requests_at_the_same_time_have_connections_of_their_own(client: NodeClient, server: Server) -> None:
    both = asyncio.Barrier(2)

    async def respond(peer: Peer) -> None:
        await both.wait()
        await peer.send(OK)

    server.respond = respond
    for _ in range(2):
        await asyncio.gather(ask(client, server), ask(client, server))
    assert [len(peer.requests) for peer in server.peers] == [2, 2]


async def test_a_connection_that_was_idle_for_too_long_is_closed(server: Server, clock: ManualClock) -> None:
    client = NodeClient(clock)
    await ask(client, server)
    await clock.advance(node_client.IDLE_SECONDS)
    await ask(client, server)
    assert [len(peer.requests) for peer in server.peers] == [2]
    await clock.advance(node_client.IDLE_SECONDS + 1)
    await ask(client, server)
    assert [len(peer.requests) for peer in server.peers] == [2, 1]
    await soon(server.peers[0].closed.wait())
    await client.close()


@pytest.mark.parametrize("end", [lambda peer: peer.writer.close(), Peer.reset], ids=["closed", "reset"])
async def test_a_connection_that_the_node_has_closed_is_not_used(
    client: NodeClient, server: Server, end: Callable[[Peer], None]
) -> None:
    await ask(client, server)
    end(server.peers[0])
    await wait_until(lambda: not client._all)
    assert not client._idle[server.url]
    assert (await ask(client, server))[2] == b"ok"
    assert [len(peer.requests) for peer in server.peers] == [1, 1]


async def test_bytes_that_nobody_asked_for_close_the_connection(client: NodeClient, server: Server) -> None:
    await ask(client, server)
    await server.peers[0].send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")
    await soon(server.peers[0].closed.wait())
    assert (await ask(client, server))[2] == b"ok"
    assert len(server.peers) == 2


@pytest.mark.parametrize("raw", [OK + OK, OK + b"X", FRAMED["chunked"] + OK, b"HTTP/1.1 204 None\r\n\r\n" + OK])
async def test_what_is_behind_a_response_is_not_relayed(client: NodeClient, server: Server, raw: bytes) -> None:
    server.answer(raw)
    bodies = {(await ask(client, server))[2] for _ in range(3)}
    assert len(bodies) == 1 and bodies <= {b"ok", b"hello", b""}
    assert [len(peer.requests) for peer in server.peers] == [1, 1, 1]


CLOSING = {
    "close": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
    "close among others": b"HTTP/1.1 200 OK\r\nConnection: X-A, Close\r\nContent-Length: 2\r\n\r\nok",
    "1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
}


@pytest.mark.parametrize("raw", CLOSING.values(), ids=CLOSING)
async def test_a_connection_that_the_node_will_close_is_not_used(client: NodeClient, server: Server, raw: bytes) -> None:
    server.answer(raw)
    for _ in range(2):
        assert (await ask(client, server))[2] == b"ok"
    assert [len(peer.requests) for peer in server.peers] == [1, 1]
    await soon(server.peers[0].closed.wait())


async def test_a_connection_that_is_closed_with_the_response_is_not_kept(client: NodeClient, server: Server) -> None:
    """The response does not say that the connection ends."""
    server.answer(OK, then=lambda peer: peer.writer.close())
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        await wait_until(lambda: not client._all)
        assert await soon(response.read()) == b"ok" and response.complete
    assert not client._idle[server.url]


async def expect_unsent_rest_closes(client: NodeClient, server: Server) -> None:
    """The connection of a response that came before its request was sent has no other request."""

    async def begin(peer: Peer) -> None:
        peer.requests.append((await peer.reader.readuntil(b"\r\n\r\n"), b""))

    async def respond(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno")
        # The connection stays open, and what it sends is not read.
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await done.wait()
        raise ConnectionError

    done = asyncio.Event()
    server.begin, server.respond = begin, respond
    for number in range(2):
        assert (await ask(client, server, body=b"x" * 30_000_000))[0] == 413
        assert len(server.peers) == number + 1
        assert not client._idle[server.url]
        await wait_until(lambda: not client._all)
    done.set()


async def test_a_response_before_the_request_is_sent_does_not_leave_its_rest_to_the_next_one(
    client: NodeClient, server: Server
) -> None:
    await expect_unsent_rest_closes(client, server)


async def test_a_response_that_is_not_read_to_its_end_closes_the_connection(client: NodeClient, server: Server) -> None:
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        assert response.status == 200
    await soon(server.peers[0].closed.wait())
    assert (await ask(client, server))[2] == b"ok"
    assert [len(peer.requests) for peer in server.peers] == [1, 1]


async def test_a_discarded_response_closes_the_connection(client: NodeClient, server: Server) -> None:
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        while await soon(response.read()):
            pass
        assert response.reusable
        response.discard()
    await soon(server.peers[0].closed.wait())
    assert not client._idle[server.url]


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200 OK\r\n", ENDLESS], ids=["before", "head", "body"])
async def test_a_cancelled_request_closes_its_connection(client: NodeClient, server: Server, raw: bytes) -> None:
    sent = asyncio.Event()

    async def respond(peer: Peer) -> None:
        await peer.send(raw)
        sent.set()

    server.respond = respond
    asking = asyncio.create_task(ask(client, server))
    await soon(sent.wait())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await soon(server.peers[0].closed.wait())
    assert not client._all and not client._idle[server.url]


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\npart", ENDLESS], ids=["until the end", "chunked"])
async def test_close_ends_all_connections(client: NodeClient, server: Server, head: bytes) -> None:
    """A body that this node cuts off is not complete."""

    async def respond(peer: Peer) -> None:
        await peer.send(OK if server.count == 1 else head)

    server.respond = respond
    requests = [client.request(server.url, "GET", b"/x", (), b"") for _ in range(2)]
    async with requests[0] as idle, requests[1] as response:
        assert await soon(response.read()) == b"part"
        while await soon(idle.read()):
            pass
        await client.close()
        with pytest.raises(NodeBroken):
            await soon(response.read())
    for peer in server.peers:
        await soon(peer.closed.wait())
    with pytest.raises(NodeUnreachable, match="shuts down"):
        await ask(client, server)
    assert len(server.peers) == 2 and not client._all


# -- connecting ---------------------------------------------------------------------------------------------------------------


async def unreachable(client: NodeClient, url: str) -> str:
    with pytest.raises(NodeUnreachable) as caught:
        await ask(client, Server(url))
    assert not client._all
    return str(caught.value)


async def test_a_port_without_a_server_is_unreachable(client: NodeClient) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert "Connect call failed" in await unreachable(client, f"http://127.0.0.1:{unused.getsockname()[1]}")


@pytest.mark.parametrize("host", ["nothing.invalid:80", f"{'x' * 70}.invalid:80", "127.0.0.1:99999"])
async def test_an_address_that_cannot_be_one_is_unreachable(client: NodeClient, host: str) -> None:
    assert await unreachable(client, f"http://{host}")


async def test_a_server_that_does_not_shake_hands_is_unreachable(server: Server, clock: ManualClock) -> None:
    """The limit holds for TLS too, and the connection is closed."""
    client = NodeClient(clock)
    asking = asyncio.create_task(unreachable(client, server.url.replace("http:", "https:")))
    await wait_until(lambda: server.peers)
    await clock.expire(node_client.CONNECT_TIMEOUT)
    assert "3 seconds" in await asking
    await soon(server.peers[0].closed.wait())
    await client.close()


async def test_a_connection_is_closed_whenever_nobody_waits_for_it_any_more(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the connection and its handshake."""
    monkeypatch.setattr(node_client, "CONNECT_TIMEOUT", 1.0)
    address = server.url.replace("http:", "https:")
    client = NodeClient(ManualClock())
    await client._tls_context(urlsplit(address))
    for steps in range(20):
        asking = asyncio.create_task(unreachable(client, address))
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
    await client.close()
    assert server.peers
    # asyncio's own limit of a handshake is 60 s.
    async with asyncio.timeout(30):
        for peer in server.peers:
            await peer.closed.wait()


async def test_a_connection_that_is_lost_before_the_request_is_sent_is_unreachable(
    client: NodeClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    create = loop.create_connection

    async def create_and_lose(*args: Any, **options: Any) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        transport, made = await create(*args, **options)
        await wait_until(lambda: server.peers)
        server.peers[0].writer.close()
        await wait_until(lambda: made._transport is None)  # type: ignore[attr-defined]
        return transport, made

    monkeypatch.setattr(loop, "create_connection", create_and_lose)
    await unreachable(client, server.url)
    assert server.count == 0


async def test_a_cancelled_connect_leaves_no_connection(client: NodeClient, server: Server) -> None:
    asking = asyncio.create_task(ask(client, Server(server.url.replace("http:", "https:"))))
    await wait_until(lambda: server.peers)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await soon(server.peers[0].closed.wait())
    assert not client._all


async def test_cancelled_requests_leave_no_socket(client: NodeClient, server: Server) -> None:
    """Some of them are cancelled between the connection and the moment at which they get it."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for n in range(100):
            asking = asyncio.create_task(ask(client, server))
            for _ in range(n % 10):
                await asyncio.sleep(0)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
        gc.collect()
    assert not [str(warning.message) for warning in warned]
    await wait_until(lambda: all(peer.closed.is_set() or peer.requests for peer in server.peers))


async def test_a_machine_that_is_gone_is_noticed_with_and_without_data_on_the_way(client: NodeClient, server: Server) -> None:
    await ask(client, server)
    [connection] = client._idle[server.url]
    assert connection._transport is not None
    made = connection._transport.get_extra_info("socket")
    assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
        idle, each, count = (
            made.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + each * count == 25


async def test_a_client_that_is_closed_while_it_connects_sends_nothing(
    client: NodeClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, closing = asyncio.get_running_loop(), list[asyncio.Task[None]]()
    create = loop.create_connection

    async def create_and_close(*args: Any, **options: Any) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        made = await create(*args, **options)
        closing.append(asyncio.create_task(client.close()))
        await wait_until(lambda: client._closed)
        return made

    monkeypatch.setattr(loop, "create_connection", create_and_close)
    assert "shuts down" in await unreachable(client, server.url)
    await asyncio.wait_for(closing[0], 60)
    await wait_until(lambda: server.peers)
    await soon(server.peers[0].closed.wait())
    assert server.count == 0


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
async def test_an_ipv6_address(client: NodeClient) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no ::1")
    async with serve("::1") as server:
        assert (await ask(client, server))[2] == b"ok"
        assert b"Host: " + server.url.removeprefix("http://").encode() in server.peers[0].requests[0][0]


# -- TLS ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of 127.0.0.1 that it has signed itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = tmp_path / "node.pem"
    file.write_bytes(made.public_bytes(pem) + plain)
    return file


@pytest.fixture
async def tls_server(certificate: Path) -> AsyncIterator[Server]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with serve(tls=context) as running:
        yield running


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


async def test_a_certificate_that_is_not_trusted_is_refused(client: NodeClient, tls_server: Server) -> None:
    assert "certificate verify failed" in await unreachable(client, tls_server.url)
    assert tls_server.count == 0


@pytest.mark.usefixtures("trusted")
async def test_a_certificate_of_another_name_is_refused(client: NodeClient, tls_server: Server) -> None:
    assert "localhost" in await unreachable(client, tls_server.url.replace("127.0.0.1", "localhost"))
    assert tls_server.count == 0


@pytest.mark.usefixtures("trusted")
async def test_requests_over_tls(client: NodeClient, tls_server: Server) -> None:
    for body in (b"", b"x" * 3_000_000):
        assert (await ask(client, tls_server, body=body))[2] == b"ok"
    assert [[len(body) for _, body in peer.requests] for peer in tls_server.peers] == [[0, 3_000_000]]
    tls_server.peers[0].writer.close()
    await wait_until(lambda: not client._all)
    assert (await ask(client, tls_server))[2] == b"ok"


@pytest.mark.usefixtures("trusted")
async def test_a_slow_reader_stops_the_node_over_tls(client: NodeClient, tls_server: Server) -> None:
    """Also the end of the connection comes after what is before it."""
    part, count = bytes(range(256)) * 256, 500

    async def respond(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(part) * count))
        for _ in range(count):
            await peer.send(part)
        peer.writer.close()

    tls_server.respond = respond
    received = bytearray()
    async with client.request(tls_server.url, "GET", b"/x", (), b"") as response:
        await wait_until(lambda: response._paused)
        assert response._buffered < MAX_BUFFERED + 1024 * 1024
        while more := await soon(response.read()):
            received += more
    assert received == part * count
    await wait_until(lambda: not client._all)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("cut", [False, True], ids=["closed", "cut"])
async def test_a_body_over_tls_does_not_end_with_the_connection(client: NodeClient, tls_server: Server, cut: bool) -> None:
    """Anyone can cut a connection, and asyncio does not tell that from its end."""

    def end(peer: Peer) -> None:
        if cut:
            peer.writer.transport._ssl_protocol._transport.close()  # type: ignore[attr-defined]
        else:
            peer.writer.close()

    tls_server.answer(b"HTTP/1.1 200 OK\r\n\r\npart", then=end)
    assert await broken(client, tls_server) == b"part"


async def test_nothing_is_left_of_a_connection(client: NodeClient, server: Server) -> None:
    await ask(client, server)
    server.peers[0].writer.close()
    await wait_until(lambda: not client._all)
    gc.collect()
    assert not [found for found in gc.get_objects() if isinstance(found, NodeConnection)]


@pytest.mark.usefixtures("trusted")
async def test_a_response_before_the_request_is_sent_closes_a_tls_connection(client: NodeClient, tls_server: Server) -> None:
    """asyncio does not tell how much of it is not sent."""
    await expect_unsent_rest_closes(client, tls_server)
