"""The parts of `make bench-peers` that need no other program: what the client counts, the mock agents, and the graph."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from benchmarks.peers.graph import Line, chart, ticks
from benchmarks.peers.sides import AGENTS
from benchmarks.peers.wire import CHUNKED_END, Collector, connect, prompt, rpc


async def test_collector_counts_events_over_chunks_and_packets() -> None:
    collector = Collector(CHUNKED_END)
    for number, part in enumerate((b"HTTP/1.1 200 OK\r\n\r\n9\r\nevent 0 e\r\n6\r\nve", b"nt 1 \r\n0\r", b"\n\r\n")):
        assert not collector.done.done()
        collector.add(part, collector.began + number + 1)
    assert collector.done.done()
    turn = collector.turn()
    assert (turn.numbers, turn.first, turn.seconds) == ([0, 1], 1, 3)
    assert (turn.delivered(2), turn.delivered(3)) == (2, 2)


@pytest.mark.parametrize("text", [b"event 0 event 0 ", b"event 1 event 0 ", b"event 2 "])
async def test_doubled_and_unordered_events_are_errors(text: bytes) -> None:
    collector = Collector(b"end")
    collector.add(text, collector.began)
    with pytest.raises(RuntimeError):
        collector.turn().delivered(2)


async def test_a_request_on_a_lost_connection_fails_at_once() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    request = b"GET / HTTP/1.1\r\n\r\n"
    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        wire = await connect(server.sockets[0].getsockname()[1])
        with pytest.raises(RuntimeError, match="the connection was closed"):
            await wire.send(request, CHUNKED_END).done
        with pytest.raises(RuntimeError, match="the connection was closed"):
            wire.send(request, CHUNKED_END)


def _run(agent: str, *lines: bytes) -> list[dict[str, object]]:
    command = [sys.executable, "-I", "-S", str(AGENTS[agent])]
    done = subprocess.run(command, input=b"\n".join(lines), capture_output=True, check=True, timeout=20)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_agent_emits_the_requested_events() -> None:
    lines = _run("acp", rpc(1, "initialize", {}), rpc(2, "session/new", {}), prompt(3, "s", 2))
    assert [line.get("id") for line in lines] == [1, 2, None, None, 3]
    assert '"event 1 "' in json.dumps(lines[3])


def test_claude_agent_emits_the_requested_events() -> None:
    lines = _run("claude", json.dumps({"type": "user", "message": {"role": "user", "content": "2"}}).encode())
    assert sum("text_delta" in json.dumps(line) for line in lines) == 2
    assert lines[-1]["result"] == "event 0 event 1 "


def test_graph_is_xml_with_a_line_for_each_side() -> None:
    lines = [Line("a <b>", [(1, 10.0), (2, 1000.0)]), Line("c", [(1, 20.0), (2, 30.0)])]
    root = ElementTree.fromstring(chart("title", "sessions", [("rate", lines), ("latency", lines)]))
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 4
    assert "prefers-color-scheme: dark" in ElementTree.tostring(root, "unicode")


def test_ticks_of_a_logarithmic_axis() -> None:
    assert ticks(9, 110) == [10, 20, 50, 100]
