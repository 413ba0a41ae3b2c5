"""The HTTP client between nodes, with a server that sends the bytes a test chooses."""

from __future__ import annotations

import asyncio
import datetime
import gc
import ipaddress
import socket
import ssl
import struct
import sys
import warnings
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

from gateway.cluster.forwarding import node_client
from gateway.cluster.forwarding.node_client import NodeBroken, NodeClient, NodeUnreachable
from tests.support.waiting import wait_until

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


def length_of(head: bytes) -> int:
    found = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return int(found[0].partition(b":")[2]) if found else 0


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


# -- the request --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 70_000, 3_000_000])
async def test_a_request_arrives_as_it_was_given(client: NodeClient, server: Server, size: int) -> None:
    headers = [(b"x-Mixed", b"a  b"), (b"x-twice", b"1"), (b"x-other", "ä".encode()), (b"x-twice", b"2"), (b"x-empty", b"")]
    body = bytes(range(256)) * (size // 256) + b"y" * (size % 256)
    assert (await ask(client, server, "PUT", body, headers, b"/a%2Fb/../c?q=%20+&&"))[2] == b"ok"
    ((head, received),) = server.peers[0].requests
    assert received == body
    assert head.split(b"\r\n") == [
        b"PUT /a%2Fb/../c?q=%20+&& HTTP/1.1",
        b"Host: " + server.url.removeprefix("http://").encode(),
        *(name + b": " + value for name, value in headers),
        b"Content-Length: %d" % size,
    ]


async def test_a_request_without_a_body(client: NodeClient, server: Server) -> None:
    await ask(client, server, "GET", headers=[(b"x-a", b"b")])
    head = server.peers[0].requests[0][0].split(b"\r\n")
    assert head == [b"GET /x HTTP/1.1", b"Host: " + server.url.removeprefix("http://").encode(), b"x-a: b"]


async def test_a_header_that_is_no_utf_8_is_sent_with_escapes(client: NodeClient, server: Server) -> None:
    await ask(client, server, headers=[(b"x-a", b"caf\xe9")])
    assert b"\r\nx-a: caf\\xe9\r\n" in server.peers[0].requests[0][0]


# -- the response -------------------------------------------------------------------------------------------------------------


async def test_headers_are_given_in_order_with_their_values_as_sent(client: NodeClient, server: Server) -> None:
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


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 307 Elsewhere\r\nLocation: /y\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n",
    ],
    ids=["redirect", "encoded", "cookie"],
)
async def test_a_response_is_relayed_and_nothing_is_done_with_it(client: NodeClient, server: Server, head: bytes) -> None:
    server.answer(head + b"\r\nok")
    # Cookies are kept for names only.
    server.url = server.url.replace("127.0.0.1", "localhost")
    for _ in range(2):
        assert (await ask(client, server))[2] == b"ok"
    assert server.requests == [2] and server.peers[0].requests[0] == server.peers[0].requests[1]


FRAMED = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\n\r\n",
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Late: 1\r\nX-Later: 2\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\n"
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("each", [1, 10_000])
@pytest.mark.parametrize("raw", FRAMED.values(), ids=FRAMED)
async def test_a_response_is_the_same_however_it_is_split(client: NodeClient, server: Server, raw: bytes, each: int) -> None:
    async def respond(peer: Peer) -> None:
        for start in range(0, len(raw), each):
            await peer.send(raw[start : start + each])
            await asyncio.sleep(0)

    server.respond = respond
    for _ in range(2):
        status, headers, body = await ask(client, server)
        assert (status, body) == (200, b"hello")
        assert {name for name, _ in headers} <= {b"Content-Length", b"Transfer-Encoding"}
    assert server.requests == [2]


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_ends_with_its_head(client: NodeClient, server: Server, status: int) -> None:
    server.answer(b"HTTP/1.1 %d Status\r\nX-A: b\r\n\r\n" % status)
    for _ in range(2):
        assert await ask(client, server) == (status, ((b"X-A", b"b"),), b"")
    assert server.requests == [2]


async def test_the_response_to_a_head_has_no_body(client: NodeClient, server: Server) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    for _ in range(2):
        assert await ask(client, server, "HEAD") == (200, ((b"Content-Length", b"5"),), b"")


async def test_a_body_can_end_with_the_connection(client: NodeClient, server: Server) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", then=Peer.end)
    for _ in range(2):
        assert await ask(client, server) == (200, (), b"until the end")
    assert server.requests == [1, 1]


async def test_a_response_is_read_while_it_comes(client: NodeClient, server: Server) -> None:
    go = asyncio.Event()

    async def respond(peer: Peer) -> None:
        await peer.send(ENDLESS)
        await go.wait()
        await peer.send(b"1\r\n!\r\n0\r\n\r\n")

    server.respond = respond
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        assert await soon(response.content.readany()) == b"part" and not response.content.at_eof()
        go.set()
        assert await soon(response.content.read()) == b"!" and response.content.at_eof()


async def test_a_slow_reader_stops_the_node(client: NodeClient, server: Server) -> None:
    """What was not read is bounded, and the rest comes once it is."""
    part, count = bytes(range(256)) * 256, 1000
    sent, full = 0, asyncio.Event()

    async def respond(peer: Peer) -> None:
        nonlocal sent
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(part) * count))
        for _ in range(count):
            peer.writer.write(part)
            if peer.writer.transport.get_write_buffer_size():
                full.set()
            await peer.writer.drain()
            sent += 1

    server.respond = respond
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        await soon(full.wait())
        # A client that reads on would have all by then.
        for _ in range(2000):
            await asyncio.sleep(0)
        assert sent < count / 2
        received = bytearray()
        while more := await soon(response.content.readany()):
            received += more
    assert received == part * count


# -- responses that are refused -----------------------------------------------------------------------------------------------

WRONG = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "header": b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
    "lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nhello",
    "large head": b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 100_000,
    "chunk": ENDLESS + b"wrong\r\n",
}


@pytest.mark.parametrize("raw", WRONG.values(), ids=WRONG)
async def test_what_is_no_response_closes_the_connection(client: NodeClient, server: Server, raw: bytes) -> None:
    server.answer(raw)
    assert await broken(client, server) in (b"", b"part")
    await soon(server.peers[0].closed.wait())
    assert server.requests == [1]


ENDS = {
    "nothing": b"",
    "head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n",
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    "last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
}


@pytest.mark.parametrize("end", [Peer.end, Peer.reset])
@pytest.mark.parametrize("raw", ENDS.values(), ids=ENDS)
async def test_a_connection_that_ends_too_early_is_an_error(
    client: NodeClient, server: Server, raw: bytes, end: Callable[[Peer], None]
) -> None:
    server.answer(raw, then=end)
    assert await broken(client, server) in (b"", b"hel")
    assert server.requests == [1]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "POST"])
@pytest.mark.parametrize("end", [Peer.end, Peer.reset])
async def test_a_request_is_not_sent_twice(client: NodeClient, server: Server, method: str, end: Callable[[Peer], None]) -> None:
    """Many HTTP clients repeat it where a kept connection ends before the response."""

    async def respond(peer: Peer) -> None:
        if server.requests == [1]:
            await peer.send(OK)
        else:
            end(peer)

    server.respond = respond
    await ask(client, server)
    assert await broken(client, server, method) == b""
    assert server.requests == [2]


async def test_a_node_that_ends_before_it_has_read_the_request_is_noticed(client: NodeClient, server: Server) -> None:
    async def begin(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        raise ConnectionError

    server.begin = begin
    assert await broken(client, server, body=b"x" * 30_000_000) == b""
    assert len(server.peers) == 1


# -- the use of a connection for further requests -----------------------------------------------------------------------------


async def test_a_connection_is_used_for_one_request_after_the_other(client: NodeClient, server: Server) -> None:
    for number in range(5):
        assert (await ask(client, server, body=b"x" * number * 10_000))[2] == b"ok"
    assert server.requests == [5]


async def test_requests_at_the_same_time_have_connections_of_their_own(client: NodeClient, server: Server) -> None:
    both = asyncio.Barrier(2)

    async def respond(peer: Peer) -> None:
        await both.wait()
        await peer.send(OK)

    server.respond = respond
    for _ in range(2):
        await asyncio.gather(ask(client, server), ask(client, server))
    assert server.requests == [2, 2]


async def test_a_connection_without_a_request_is_closed_after_a_while(
    client: NodeClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "IDLE_SECONDS", 0.01)
    await ask(client, server)
    # aiohttp's own limit is 15 s.
    await asyncio.wait_for(server.peers[0].closed.wait(), 10)


@pytest.mark.parametrize("end", [Peer.end, Peer.reset])
async def test_a_connection_that_the_node_has_closed_is_not_used(
    client: NodeClient, server: Server, end: Callable[[Peer], None]
) -> None:
    await ask(client, server)
    end(server.peers[0])
    await soon(server.peers[0].closed.wait())
    assert (await ask(client, server))[2] == b"ok"
    assert server.requests == [1, 1]


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nConnection: X-A, Close\r\n", b"HTTP/1.0 200 OK\r\n"])
async def test_a_connection_that_the_node_will_close_is_not_used(client: NodeClient, server: Server, head: bytes) -> None:
    server.answer(head + b"Content-Length: 2\r\n\r\nok")
    for _ in range(2):
        assert (await ask(client, server))[2] == b"ok"
    assert server.requests == [1, 1]
    await soon(server.peers[0].closed.wait())


async def test_a_response_before_the_request_is_sent_does_not_leave_its_rest_to_the_next_one(
    client: NodeClient, server: Server
) -> None:
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
    for _ in range(2):
        assert (await ask(client, server, body=b"x" * 30_000_000))[0] == 413
    assert server.requests == [1, 1]
    done.set()


async def test_a_response_that_is_not_read_to_its_end_closes_the_connection(client: NodeClient, server: Server) -> None:
    server.answer(ENDLESS)
    async with client.request(server.url, "GET", b"/x", (), b"") as response:
        assert response.status == 200
    await soon(server.peers[0].closed.wait())


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


async def test_close_ends_all_connections(client: NodeClient, server: Server) -> None:
    await asyncio.gather(ask(client, server), ask(client, server))
    await client.close()
    for peer in server.peers:
        await soon(peer.closed.wait())
    with pytest.raises(NodeUnreachable, match="shuts down"):
        await ask(client, server)


# -- connecting ---------------------------------------------------------------------------------------------------------------


async def unreachable(client: NodeClient, url: str) -> str:
    with pytest.raises(NodeUnreachable) as caught:
        await ask(client, Server(url))
    return str(caught.value)


async def test_a_port_without_a_server_is_unreachable(client: NodeClient) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert f"127.0.0.1:{port}" in await unreachable(client, f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("host", ["nothing.invalid:80", f"{'x' * 70}.invalid:80"])
async def test_a_name_that_cannot_be_one_is_unreachable(client: NodeClient, host: str) -> None:
    assert await unreachable(client, f"http://{host}")


async def test_a_server_that_does_not_shake_hands_is_unreachable(
    client: NodeClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit holds for TLS too, and the connection is closed."""
    monkeypatch.setattr(node_client, "CONNECT_TIMEOUT", 0.1)
    assert "timeout" in await unreachable(client, server.url.replace("http:", "https:"))
    await soon(server.peers[0].closed.wait())


async def test_cancelled_requests_leave_no_socket(client: NodeClient, server: Server) -> None:
    """Some of them are cancelled while they connect."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for n in range(100):
            asking = asyncio.create_task(ask(client, server))
            for _ in range(n % 20):
                await asyncio.sleep(0)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
        gc.collect()
    assert not [str(warning.message) for warning in warned]
    await wait_until(lambda: all(peer.closed.is_set() or peer.requests for peer in server.peers))


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


ASKS = """
import asyncio, sys
from gateway.cluster.forwarding.node_client import NodeClient, NodeUnreachable

async def main():
    client = NodeClient()
    for size in (0, 3_000_000):
        try:
            async with client.request(sys.argv[1], "POST", b"/x", (), b"x" * size) as response:
                print((await response.content.read()).decode())
        except NodeUnreachable as error:
            print(error)
    await client.close()

asyncio.run(main())
"""
"""Sends two requests. The certificates of the system are read when a process starts."""


async def asked_over_tls(url: str, certificate: Path) -> list[str]:
    asking = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ASKS, url, env={"SSL_CERT_FILE": str(certificate)}, stdout=asyncio.subprocess.PIPE
    )
    return (await soon(asking.communicate()))[0].decode().splitlines()


async def test_a_certificate_that_is_not_trusted_is_refused(client: NodeClient, tls_server: Server) -> None:
    assert "certificate verify failed" in await unreachable(client, tls_server.url)
    assert sum(tls_server.requests) == 0


async def test_a_certificate_of_another_name_is_refused(tls_server: Server, certificate: Path) -> None:
    refused = await asked_over_tls(tls_server.url.replace("127.0.0.1", "localhost"), certificate)
    assert len(refused) == 2 and all("not valid for 'localhost'" in text for text in refused)
    assert sum(tls_server.requests) == 0


async def test_requests_over_tls_with_the_certificates_of_the_system(tls_server: Server, certificate: Path) -> None:
    assert await asked_over_tls(tls_server.url, certificate) == ["ok", "ok"]
    assert [[len(body) for _, body in peer.requests] for peer in tls_server.peers] == [[0, 3_000_000]]
