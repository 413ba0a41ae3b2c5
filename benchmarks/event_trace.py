"""`python -m benchmarks.event_trace`: what each step of an event's way through the gateway takes, as a table in Markdown.

The steps are called by themselves, with the lines that one read of a full pipe returns. The table does not have the rest of a
burst's time: the event loop, tasks and the collection of garbage.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from pydantic_core import from_json

from benchmarks.peers.acp_agent import UPDATE
from benchmarks.peers.claude_cli import DELTA
from drivers.acp.codec import AcpCodec
from drivers.acp.handshake import SessionRequest
from drivers.acp.permissions import Grants
from drivers.claude.codec import ClaudeCodec
from drivers.contract.agent import Prompt
from drivers.contract.codec import Codec
from drivers.contract.events import AgentToken, encode_deltas
from drivers.contract.line_splitter import LineSplitter
from gateway.events.event_log import Entry
from gateway.events.log_entries import TurnStart
from gateway.events.messages import Fold
from gateway.protocols.aap.turn_frames import StreamView

PIPE = 64 * 1024
"""What a pipe holds, and a read returns."""
REPEATS = 200


def acp() -> Codec:
    """Return a codec whose session is open and has a prompt."""
    codec = AcpCodec(SessionRequest("/"), Grants())
    codec.receive(b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}')
    codec.receive(b'{"jsonrpc":"2.0","id":2,"result":{"sessionId":"agent-session-1"}}')
    codec.prompt(Prompt("go"))
    return codec


def claude() -> Codec:
    """Return a codec whose session is open and has a prompt, of which a message has begun."""
    codec = ClaudeCodec()
    codec.receive(b'{"type":"control_response","response":{"subtype":"success","request_id":"init"}}')
    codec.prompt(Prompt("go"))
    codec.receive(b'{"type":"stream_event","event":{"type":"message_start","message":{"id":"m"}}}')
    return codec


def seconds(step: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
    """Return the median time of a step."""
    times = []
    for _ in range(REPEATS):
        prepare()
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def steps(codec: Codec, lines: list[bytes], folder: Path) -> dict[str, float]:
    """Return the microseconds of each step for one event."""
    chunk = b"\n".join(lines) + b"\n"
    found = codec.receive_lines(lines)
    if len(found) != len(lines):
        raise RuntimeError(f"{len(lines)} lines are {len(found)} events")
    tokens = cast(list[AgentToken], found)
    encoded = encode_deltas(tokens)
    entries = [Entry(seq, event, data) for seq, event, data in zip(range(2, len(tokens) + 2), tokens, encoded, strict=True)]
    start = TurnStart()

    def view() -> StreamView:
        opened = StreamView(whole=False)
        opened.feed([Entry(1, start, start.encode())])
        return opened

    def fold() -> Fold:
        begun = Fold()
        begun.feed(tokens[0])
        return begun

    frames = view().feed(entries)
    reader, writer = os.pipe()
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(frames))
    database = sqlite3.connect(folder / "events.db", isolation_level=None)
    for statement in ("pragma journal_mode=wal", "pragma synchronous=normal", "create table events (first integer, body blob)"):
        database.execute(statement)

    def insert() -> None:
        database.execute("begin")
        database.execute("insert into events values (1, ?)", (b"\n".join([entry.data for entry in entries]),))
        database.execute("commit")

    # The state of the step before is made outside of the measured time.
    splitter, views, folds = LineSplitter(), [view() for _ in range(REPEATS)], [fold() for _ in range(REPEATS)]
    taken = {
        "read of the pipe": seconds(lambda: os.read(reader, PIPE), lambda: os.write(writer, chunk[:PIPE])),
        "lines split": seconds(lambda: splitter.feed(chunk)),
        "**lines to events**": seconds(lambda: codec.receive_lines(lines)),
        "(each line to an event by itself)": seconds(lambda: [codec.receive(line) for line in lines]),
        "(each line parsed as JSON, no more)": seconds(lambda: [from_json(line) for line in lines]),
        "message folded": seconds(lambda: folds.pop().feed_deltas(tokens[1:])),
        "events encoded": seconds(lambda: encode_deltas(tokens)),
        "frames": seconds(lambda: views.pop().feed(entries)),
        "write to the socket": seconds(lambda: near.send(frames), lambda: _drain(far)),
        "row stored (SQLite, in the store's thread)": seconds(insert),
    }
    database.close()
    for descriptor in (reader, writer):
        os.close(descriptor)
    near.close()
    far.close()
    return {name: value / len(lines) * 1e6 for name, value in taken.items()}


def _drain(far: socket.socket) -> None:
    far.setblocking(False)
    try:
        while far.recv(1024 * 1024):
            pass
    except BlockingIOError:
        pass


def main() -> None:
    """Print the table."""
    sides = {
        "ACP agent": (acp, lambda n: (UPDATE % ("agent-session-1", n)).encode()[:-1]),
        "claude": (claude, lambda n: (DELTA % (n, n, 1)).encode()[:-1]),
    }
    columns = {}
    for name, (codec, line) in sides.items():
        lines = [line(n) for n in range(5000, 5000 + PIPE // (len(line(5000)) + 1))]
        with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
            columns[f"{name}, {len(lines)} lines of {len(lines[0])} bytes"] = steps(codec(), lines, Path(folder))
    sys.stdout.write(f"| us for an event | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}\n")
    for step in next(iter(columns.values())):
        sys.stdout.write(f"| {step} | {' | '.join(f'{values[step]:.2f}' for values in columns.values())} |\n")


if __name__ == "__main__":
    main()
