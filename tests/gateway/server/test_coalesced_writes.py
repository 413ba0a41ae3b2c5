"""Writes of one step of the event loop are one write of the transport, and nothing of a response is lost or out of order."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

from gateway.asgi_extensions import EVENT_STREAM
from gateway.coalesced_writes import MAX_KEPT, CoalescedWrites
from tests.gateway.raw_http import connect, send_raw
from tests.gateway.server.asgi_server import Receive, Scope, Send, answer, begin, body, serving
from tests.waiting import wait_until

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLOSING_GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
END = b"0\r\n\r\n"


def content(response: bytes) -> bytes:
    """The body of a chunked response."""
    found, start = list[bytes](), response.index(b"\r\n\r\n") + 4
    while True:
        end = response.index(b"\r\n", start)
        length = int(response[start:end], 16)
        start = end + 2 + length + 2
        if not length:
            assert start == len(response)
            return b"".join(found)
        found.append(response[end + 2 : start - 2])


# -- one write ----------------------------------------------------------------------------------------------------------------


async def test_the_head_and_the_first_event_are_one_write_and_so_are_the_last_event_and_the_end() -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        await body(send, b"first")
        await go.wait()
        await body(send, b"last")
        await body(send, b"", more=False)

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(GET)
        first = await reader.readuntil(b"first\r\n")
        assert server.writes == [first], "the client has it while the response is not complete"
        go.set()
        assert await reader.readuntil(END) == b"4\r\nlast\r\n" + END
        assert server.writes == [first, b"4\r\nlast\r\n" + END]
        writer.close()


async def test_a_complete_response_is_sent_before_its_application_ends() -> None:
    written = list[bytes]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(scope, receive, send)
        written.extend(server.writes)

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(GET)
        got = await reader.readuntil(b"\r\n\r\n/")
        assert written == server.writes == [got], "one write, before what the access log does at the end"
        writer.close()


async def test_events_of_different_steps_are_sent_each_at_once() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        for number in range(5):
            await body(send, b"%d" % number)
            # One step for the write and one for this task.
            await asyncio.sleep(0)
        await body(send, b"", more=False)

    async with serving(app) as server:
        _, got = await send_raw(server.url, CLOSING_GET)
        assert content(got) == b"01234"
        assert len(server.writes) == 6 and b"".join(server.writes) == got


# -- nothing lost, nothing out of order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("closing", [False, True], ids=["kept", "closed"])
async def test_a_half_closed_client_gets_its_short_response_whole(closing: bool) -> None:
    async with serving(answer) as server:
        reader, writer = await connect(server.url)
        writer.write(CLOSING_GET if closing else GET)
        writer.write_eof()
        got = await asyncio.wait_for(reader.read(), 60)
        assert got.startswith(b"HTTP/1.1 200") and got.endswith(b"\r\n\r\n/")
        writer.close()


async def test_a_response_that_is_complete_when_the_end_of_the_client_is_noticed_is_sent() -> None:
    """The response is written, and the connection closed by asyncio because of the client's end, in one step."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(scope, receive, send)
        connection = server.connections[0]
        if not connection.eof_received():
            # What asyncio does then.
            connection._writes._transport.close()

    async with serving(app) as server:
        _, got = await send_raw(server.url, GET)
        assert got.endswith(b"\r\n\r\n/")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(answer) as server:
        paths = [b"/%d" % number for number in range(20)]
        _, got = await send_raw(server.url, b"".join(GET.replace(b"/", path, 1) for path in paths), CLOSING_GET)
        assert [part.split(b"HTTP/1.1")[0] for part in got.split(b"\r\n\r\n")[1:]] == [*paths, b"/"]


@pytest.mark.parametrize("end", ["close", "fail", "shutdown", "keep-alive"])
async def test_what_was_sent_before_the_connection_is_closed_arrives(end: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if end == "fail":
            await begin(send)
            await body(send, b"sent")
            raise LookupError
        await answer(scope, receive, send)
        if end == "close":
            server.connections[0].transport.close()
        elif end == "shutdown":
            server.connections[0].shutdown()
        else:
            server.connections[0].timeout_keep_alive_handler()

    async with serving(app) as server:
        _, got = await send_raw(server.url, GET)
        assert got.endswith(b"4\r\nsent\r\n" if end == "fail" else b"\r\n\r\n/")


async def test_the_stop_of_the_server_waits_for_what_is_written_in_its_step() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        await body(send, b"x" * MAX_KEPT)
        await body(send, b"last", more=False)
        server.server.should_exit = True

    async with serving(app) as server:
        _, got = await send_raw(server.url, GET)
        assert content(got) == b"x" * MAX_KEPT + b"last"


async def test_invalid_bytes_in_the_middle_of_a_response_leave_what_was_sent() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        await body(send, b"sent")
        server.connections[0].data_received(b"junk\r\n\r\n")
        await body(send, b"not sent")

    async with serving(app) as server:
        _, got = await send_raw(server.url, GET)
        assert got.endswith(b"4\r\nsent\r\n")


async def test_a_client_that_waits_gets_the_interim_response_before_the_response() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        received = (await receive())["body"]
        await begin(send, (b"content-length", b"4"))
        await body(send, received, more=False)

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(4) == b"body"
        writer.close()


async def test_a_client_that_was_rejected_gets_no_interim_response(caplog: pytest.LogCaptureFixture) -> None:
    """The server has closed its side by then, so that a write is an error."""
    rejected, ended = asyncio.Event(), list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await rejected.wait()
        ended.append((await receive())["type"])

    async with serving(app) as server:
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, writer = await connect(server.url)
        writer.write(head + b"junk\r\n")
        assert b"HTTP/1.1 400" in await reader.readline()
        rejected.set()
        assert b"100 Continue" not in await asyncio.wait_for(reader.read(), 60)
        await wait_until(lambda: bool(ended))
        writer.close()
    assert ended == ["http.disconnect"] and not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_websocket_comes_behind_the_response_before_it() -> None:
    upgrade = (
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await answer(scope, receive, send)
            # In the same step.
            return server.connections[0].data_received(upgrade)
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        await receive()

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(1) == b"/"
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        assert await reader.readexactly(7) == b"\x81\x05hello"
        writer.close()


async def test_the_refusal_of_a_websocket_comes_behind_the_response_before_it() -> None:
    """It is written in the step in which the request is read."""
    upgrade = b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(scope, receive, send)
        server.connections[0].data_received(upgrade)

    async with serving(app) as server:
        _, got = await send_raw(server.url, GET)
        first, _, second = got.partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200") and second.startswith(b"/HTTP/1.1 4"), got


async def test_a_comment_for_a_half_closed_client_is_between_two_chunks() -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"][EVENT_STREAM] = {}
        await begin(send)
        await body(send, b"data: 1\n\n")
        await go.wait()
        await body(send, b"data: 2\n\n", more=False)

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(GET)
        writer.write_eof()
        got = await reader.readuntil(b":\n\n\r\n")
        go.set()
        got += await asyncio.wait_for(reader.read(), 60)
        assert content(got).replace(b":\n\n", b"") == b"data: 1\n\ndata: 2\n\n"
        writer.close()


# -- backpressure -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 3 * MAX_KEPT])
async def test_a_slow_client_pauses_a_stream_whose_chunks_are_all_ready(size: int) -> None:
    total, sent, largest = 20_000_000, 0, 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent, largest
        await begin(send)
        # No step of the event loop ends between these, unless the server pauses.
        while sent < total:
            await body(send, b"%d" % (sent % 10) * size)
            sent += size
            largest = max(largest, server.connections[0].transport.get_write_buffer_size())
        await body(send, b"", more=False)

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        accepted: socket.socket = writer.get_extra_info("socket")
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(CLOSING_GET)
        await wait_until(lambda: bool(server.connections) and server.connections[0].flow.write_paused)
        assert sent < total
        # What asyncio keeps before it pauses, what is kept here, and one chunk.
        assert largest <= 65536 + MAX_KEPT + size + 100
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = content(await asyncio.wait_for(reader.read(), 60))
        assert received == b"".join(b"%d" % (start % 10) * size for start in range(0, sent, size)) and sent >= total
        writer.close()


async def test_a_client_that_is_gone_leaves_nothing() -> None:
    sent = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        await body(send, b"first")
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        await body(send, b"later", more=False)
        sent.set()

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(GET)
        await reader.readuntil(b"first\r\n")
        # A reset: without it the client looks like one that has closed its side only.
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        await asyncio.wait_for(sent.wait(), 60)
        assert server.connections[0]._writes.get_write_buffer_size() == 0
        assert not [data for data in server.writes if b"later" in data]


# -- the transport alone ------------------------------------------------------------------------------------------------------


class _Fake(asyncio.Transport):
    """Records what is called, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes | str] = []

    def write(self, data: Any) -> None:
        self.calls.append(bytes(data))

    def write_eof(self) -> None:
        self.calls.append("eof")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def get_write_buffer_size(self) -> int:
        return 7


async def test_writes_come_before_what_ends_a_connection_and_an_abort_discards_them() -> None:
    for end, expected in (("write_eof", [b"ab", "eof"]), ("close", [b"ab", "close"]), ("abort", ["abort"])):
        below = _Fake()
        writes = CoalescedWrites(below, asyncio.get_running_loop())
        writes.write(b"a")
        writes.write(bytearray(b"b"))
        assert (below.calls, writes.get_write_buffer_size()) == ([], 9)
        getattr(writes, end)()
        await asyncio.sleep(0)
        assert (below.calls, writes.get_write_buffer_size()) == (expected, 7)


async def test_a_write_behind_the_end_is_an_error_for_who_writes() -> None:
    writes = CoalescedWrites(_Fake(), asyncio.get_running_loop())
    writes.write_eof()
    with pytest.raises(RuntimeError, match="after write_eof"):
        writes.write(b"late")


async def test_more_than_the_limit_is_written_at_once() -> None:
    below = _Fake()
    writes = CoalescedWrites(below, asyncio.get_running_loop())
    writes.write(b"x" * MAX_KEPT)
    assert below.calls == []
    writes.write(b"y")
    assert below.calls == [b"x" * MAX_KEPT + b"y"] and writes.get_write_buffer_size() == 7
    writes.write(b"z")
    assert len(below.calls) == 1
    await asyncio.sleep(0)
    assert below.calls[1:] == [b"z"]


async def test_a_buffer_that_changes_after_it_was_written_is_sent_as_it_was() -> None:
    below = _Fake()
    writes = CoalescedWrites(below, asyncio.get_running_loop())
    buffer = bytearray(b"before")
    writes.write(memoryview(buffer))
    buffer[:] = b"behind"
    writes.flush()
    assert below.calls == [b"before"]
