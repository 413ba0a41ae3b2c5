"""Large stores: lists, turns and a long session in a store of 1,000,000 events, and retention beside the writes of turns."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from benchmarks.client import Connection, Response, encode_request, read_slowly
from benchmarks.figures import Figure, median, percentile
from benchmarks.large_store import LONG_EVENTS, LONG_SESSION, Rows, fill
from benchmarks.servers import RunningServer, let_server_finish, portico
from benchmarks.turns import DELTA, new_session, turn
from gateway.config import StoreSettings
from gateway.observability.transcripts import Transcripts
from gateway.runs.retention import Retention
from gateway.security.redaction import Redactor
from gateway.store import EventRow, MessageRow, RunRecord, SessionRecord, Store
from gateway.store.sqlite import sqlite_url

LARGE, SMALL = Rows(10_000, long=True), Rows(100)
PAGE = 100
"""Sessions of one page of a list."""
V3 = "/aap/v3"
WRITE_INTERVAL = 0.002
"""Seconds between two turns whose writes are timed beside retention."""
GROWTH_MB = 64.0
"""The same bound as that of `slow_reader`."""
WARM_UP = 10

Request = Callable[[], Awaitable[float]]


async def scale(quick: bool) -> list[Figure]:
    """Measure requests with 10,000 sessions and 1,000,000 events in the store, and with 100 sessions; and retention."""
    count = 30 if quick else 150
    async with AsyncExitStack() as stack:
        large = await stack.enter_async_context(portico(prepare=partial(fill, rows=LARGE), sessions_per_key=0))
        small = await stack.enter_async_context(portico(prepare=partial(fill, rows=SMALL), sessions_per_key=0))
        to_large = await stack.enter_async_context(large.connect())
        to_small = await stack.enter_async_context(small.connect())
        figures = await _listing(to_large)
        figures += await _compared(to_large, to_small, count)
        figures += await _long_session(large, to_large)
    return figures + await _retention(quick)


async def _listing(to: Connection) -> list[Figure]:
    """List all sessions, a page at a time, with and without their settings and states."""
    figures = []
    for version, path in (("v1", "/sessions"), ("v3", f"{V3}/sessions")):
        times, found, after = [], set[str](), ""
        while True:
            answer = await to.request("GET", f"{path}?limit={PAGE}{after}")
            page = json.loads(answer.body)
            found |= {one if isinstance(one, str) else one["sessionId"] for one in page["sessions"]}
            times.append(answer.seconds * 1000)
            if not page.get("next"):
                break
            after = f"&after={page['next']}"
        if len(found) != LARGE.sessions + 1:
            raise RuntimeError(f"{len(found)} sessions in the list")
        # The first request of a kind compiles its queries.
        times = times[1:]
        figures.append(Figure(f"page of {PAGE}, {version}, p99", percentile(times, 0.99), "ms", times, at_most=20.0))
    return figures


async def _compared(to_large: Connection, to_small: Connection, count: int) -> list[Figure]:
    """Compare the times of the same requests to the two stores, one after the other."""
    figures = []
    kinds: list[tuple[str, Callable[[Connection], Awaitable[Request]]]] = [
        ("create", _creating), ("turn", _turning), ("list", _listing_newest), ("open", _opening),
    ]  # fmt: skip
    for name, begin in kinds:
        requests = [await begin(to_large), await begin(to_small)]
        pairs = [[await request() * 1000 for request in requests] for _ in range(WARM_UP + count)][WARM_UP:]
        ours, base = ([pair[n] for pair in pairs] for n in (0, 1))
        ratio = statistics.median(ours) / statistics.median(base)
        figures += [median(name, ours, "ms"), median(f"{name}, small store", base, "ms")]
        figures.append(Figure(f"{name}, ratio", ratio, "", at_most=1.3))
    return figures


async def _creating(to: Connection) -> Request:
    async def create() -> float:
        history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        return _timed(await to.request("POST", f"{V3}/sessions", {"agent": {"name": "echo"}, "messages": history}))

    return create


async def _turning(to: Connection) -> Request:
    session = await new_session(to, "echo")

    async def run_turn() -> float:
        answer = await turn(to, session, "hello")
        # The next request does not wait for the last writes of this one.
        await asyncio.sleep(0.005)
        return _timed(answer)

    return run_turn


async def _listing_newest(to: Connection) -> Request:
    async def list_newest() -> float:
        return _timed(await to.request("GET", f"{V3}/sessions?limit={PAGE}"))

    return list_newest


async def _opening(to: Connection) -> Request:
    """Open another stored session each time, with its history."""
    listed = json.loads((await to.request("GET", f"/sessions?limit={PAGE}")).body)["sessions"]
    ids = iter(listed * 10)

    async def open_session() -> float:
        return _timed(await to.request("GET", f"/session/{next(ids)}"))

    return open_session


def _timed(answer: Response) -> float:
    assert answer.body
    return answer.seconds


async def _long_session(server: RunningServer, to: Connection) -> list[Figure]:
    """Open the session of 100,000 events, follow it from its end, and read it whole."""
    await let_server_finish(0.5)
    opened = [(await to.request("GET", f"{V3}/sessions/{LONG_SESSION}")).seconds * 1000 for _ in range(20)]
    path = f"/session/{LONG_SESSION}/events"
    before = peak = server.memory()
    sent, seen = await asyncio.gather(_turn_later(to), _follow(server, path))
    whole = encode_request("GET", f"{path}?after=0&until=turn_stop", key=server.key)
    reading = asyncio.create_task(read_slowly(server.port, whole, 0.0))
    while not reading.done():
        await asyncio.wait([reading], timeout=0.02)
        peak = max(peak, server.memory())
    raw, took = await reading
    delivered = Response(raw, 0, None).body.count(DELTA)
    history = await to.request("GET", f"/session/{LONG_SESSION}?history=full")
    peak = max(peak, server.memory())
    assert b"event 99999 " in history.body
    return [
        median("long session, opened", opened, "ms", at_most=20.0),
        Figure("long session, first event of a follower", (seen - sent) * 1000, "ms"),
        Figure("long session, delivered", delivered, "events", at_least=LONG_EVENTS - 2, at_most=LONG_EVENTS - 2),
        Figure("long session, read in", took, "s"),
        Figure("long session, growth", peak - before, "MB", at_most=GROWTH_MB),
    ]


async def _turn_later(to: Connection) -> float:
    """Run a turn in the long session once it is followed. Return the time of the request."""
    await asyncio.sleep(0.5)
    began = time.perf_counter()
    await turn(to, LONG_SESSION, "hello")
    return began


async def _follow(server: RunningServer, path: str) -> float:
    """Follow the long session from its end. Return the time of the first event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_request("GET", path, key=server.key))
    await reader.readuntil(b"event: client_message\n")
    found = time.perf_counter()
    await reader.readuntil(b"event: turn_stop\n")
    writer.close()
    return found


async def _keep_sessions(unused_since: float) -> None:
    """Delete no session."""


async def _retention(quick: bool) -> list[Figure]:
    """Time the writes of turns in a store of this process, alone and while retention deletes expired executions."""
    executions = 4_000 if quick else 20_000
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
        data_dir = Path(folder) / "data"
        await asyncio.to_thread(fill, data_dir, Rows(1000, executions=executions))
        size = (data_dir / "portico.db").stat().st_size
        store = await Store.open(sqlite_url(data_dir))
        try:
            alone = await _writes(store, "alone", asyncio.create_task(asyncio.sleep(1.0)))
            retention = Retention(store, Transcripts(data_dir / "transcripts", Redactor()), StoreSettings(), _keep_sessions)
            began = time.perf_counter()
            beside = await _writes(store, "beside", asyncio.create_task(retention.delete_expired(time.time())))
            took = time.perf_counter() - began
        finally:
            await store.close()
        left = (data_dir / "portico.db").stat().st_size
    return [
        Figure("write beside retention, p99", percentile(beside, 0.99), "ms", beside, at_most=20.0),
        Figure("longest write beside retention", max(beside), "ms"),
        Figure("write alone, p99", percentile(alone, 0.99), "ms", alone),
        Figure("retention", took, "s", comment=f"{executions} executions; file {size / 1e6:.0f} MB, then {left / 1e6:.0f} MB"),
    ]


async def _writes(store: Store, name: str, until: asyncio.Task[None]) -> list[float]:
    """Store the begin and the end of one turn after the other until a task is done. Return the times of the writes in ms."""
    session = f"sess_{name}"
    await store.sessions.create(SessionRecord(session, "echo"), [])
    times, seq = [], 1
    while not until.done():
        run, row = f"run_{name}_{seq}", partial(EventRow, session, body=b'{"kind":"agent_token","text":"hello"}')
        began = time.perf_counter()
        await store.runs.start(RunRecord(run, session, "running", None, seq), [MessageRow('{"role":"user"}', seq)], row(seq, seq))
        middle = time.perf_counter()
        await store.runs.stop(run, "ended", "end_turn", row(seq + 1, seq + 1))
        times += [(middle - began) * 1000, (time.perf_counter() - middle) * 1000]
        seq += 2
        await asyncio.sleep(WRITE_INTERVAL)
    await until
    return times
