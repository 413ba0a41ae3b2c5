"""The parts of the benchmarks that measure nothing: what the client counts, the agent, the verdicts, and the guard."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks import guard
from benchmarks.figures import Figure, beside, table
from benchmarks.guard import MEASURED, Comparison, load
from benchmarks.peers.sides import AGENT
from benchmarks.sides import own_processor
from benchmarks.wire import CHUNKED_END, Collector, connect, prompt, rpc


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


def test_agent_emits_the_requested_events() -> None:
    lines = b"\n".join((rpc(1, "initialize", {}), rpc(2, "session/new", {}), prompt(3, "s", 2)))
    done = subprocess.run([sys.executable, "-I", "-S", str(AGENT)], input=lines, capture_output=True, check=True, timeout=20)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer.get("id") for answer in answers] == [1, 2, None, None, 3]
    assert '"event 1 "' in json.dumps(answers[3])


@pytest.mark.parametrize(("value", "bound", "verdict"), [(1.4, 1.5, "ok"), (1.6, 1.5, "MISSED"), (1.6, None, "")])
def test_a_bound_is_met_or_missed(value: float, bound: float | None, verdict: str) -> None:
    figure = Figure("x", value, "", at_most=bound)
    assert figure.ok is (verdict != "MISSED")
    assert table({"first": [figure]}).splitlines()[-1].endswith(f"| {verdict} |")


def test_a_machine_that_is_slow_for_a_while_does_not_change_a_ratio() -> None:
    """The warm-up, both sides of most pairs, and one side of two pairs are slow here."""
    ours, floors = [99.0, 2.0, 20.0, 22.0, 20.0, 2.0, 9.0, 2.0], [1.0, 1.0, 10.0, 11.0, 10.0, 1.0, 1.0, 9.0]
    assert beside("x", ours, floors, "s", None)[-1].value == 2.0


def _tries(*values: float, bound: float | None = None) -> list[Figure]:
    return [Figure("ratio", value, "", at_most=bound) for value in values]


@pytest.mark.parametrize(
    ("tries", "ok"),
    [([1.0], True), ([2.5], True), ([2.51], False), ([9.0, 9.0, 2.5], True), ([9.0, 9.0, 2.51], False), ([0.1], True)],
)
def test_best_try_may_be_25_percent_worse(tries: list[float], ok: bool) -> None:
    assert Comparison("burst", _tries(*tries), 2.0).ok is ok


def test_a_bound_holds_whatever_is_recorded() -> None:
    assert Comparison("burst", _tries(5.0, bound=5.0), 4.9).ok
    assert not Comparison("burst", _tries(5.1, bound=5.0), 4.9).ok


def test_recorded_file_has_every_ratio_and_no_other_passes() -> None:
    recorded = load(guard.RECORDED)
    assert set(recorded) == set(MEASURED)
    assert all(value > 0 for value in recorded.values())
    assert not Comparison("new", _tries(0.0), None).ok


async def test_only_a_worse_ratio_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []

    def sequence(name: str, *values: float) -> Callable[[bool], Awaitable[list[Figure]]]:
        rest = list(values)

        async def measure(quick: bool) -> list[Figure]:
            measured.append(name)
            return [Figure("time", 7.0, "s"), Figure("time, ratio", rest.pop(0), "", at_most=5.0)]

        return measure

    (tmp_path / "recorded.json").write_text('{"ratios": {"good": 1.0, "late": 1.0}}')
    monkeypatch.setattr(guard, "own_processor", lambda: nullcontext(True))
    monkeypatch.setattr(guard, "RECORDED", tmp_path / "recorded.json")
    monkeypatch.setattr(guard, "MEASURED", {"good": sequence("good", 1.0), "late": sequence("late", 2.0, 2.0, 1.2)})
    assert await guard.guard()
    assert measured == ["good", "late", "late", "late"]
    assert capsys.readouterr().err.splitlines()[2:] == ["| good | 1 | 1 | 5 | ok |", "| late | 2, 2, 1.2 | 1 | 5 | ok |"]

    monkeypatch.setattr(guard, "MEASURED", {"good": sequence("good", 2.0, 2.0, 1.5)})
    assert not await guard.guard()
    assert capsys.readouterr().err.splitlines()[2:] == ["| good | 2, 2, 1.5 | 1 | 5 | WORSE |"]


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="Linux only")
def test_priority_and_processors_are_given_back() -> None:
    before = os.sched_getscheduler(0), os.sched_getaffinity(0)
    with own_processor() as alone:
        assert (os.sched_getscheduler(0), len(os.sched_getaffinity(0))) == (os.SCHED_RR, 1) or not alone
    assert (os.sched_getscheduler(0), os.sched_getaffinity(0)) == before
