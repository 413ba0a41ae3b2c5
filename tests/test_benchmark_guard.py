"""The comparison of benchmark ratios with the recorded ones, without measuring anything."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks import guard
from benchmarks.guard import RATIOS, Comparison, load, table
from benchmarks.servers import own_processor


@pytest.mark.parametrize(
    ("tries", "ok"),
    [([1.0], True), ([2.5], True), ([2.51], False), ([9.0, 9.0, 2.5], True), ([9.0, 9.0, 2.51], False), ([0.1], True)],
)
def test_best_try_may_be_25_percent_worse(tries: list[float], ok: bool) -> None:
    assert Comparison("burst", tries, 2.0).ok is ok


def test_a_bound_holds_whatever_is_recorded() -> None:
    assert Comparison("first event: time / floor", [5.0], 4.9).ok
    assert not Comparison("first event: time / floor", [5.1], 4.9).ok
    assert set(guard.BOUNDS) < set(RATIOS)


def test_ratio_that_is_not_recorded_fails() -> None:
    assert not Comparison("burst", [0.0], None).ok


def test_table_has_what_was_measured_and_recorded() -> None:
    text = table([Comparison("burst", [3.0, 2.9], 2.0), Comparison("start", [1.0], 1.0), Comparison("new", [1.0], None)])
    assert text.splitlines()[2:] == [
        "| burst | 3, 2.9 | 2 | 2.5 | WORSE |",
        "| start | 1 | 1 | 1.25 | ok |",
        "| new | 1 | none | none | WORSE |",
    ]


def test_recorded_file_has_every_ratio() -> None:
    recorded = load(guard.RECORDED)
    assert set(recorded) == set(RATIOS)
    assert all(value > 0 for value in recorded.values())


async def test_only_a_worse_ratio_is_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured: list[str] = []

    def sequence(name: str, *values: float) -> Callable[[], Awaitable[float]]:
        rest = list(values)

        async def measure() -> float:
            measured.append(name)
            return rest.pop(0)

        return measure

    (tmp_path / "recorded.json").write_text('{"ratios": {"good": 1.0, "late": 1.0}}')
    monkeypatch.setattr(guard, "own_processor", lambda: nullcontext(True))
    monkeypatch.setattr(guard, "RECORDED", tmp_path / "recorded.json")
    monkeypatch.setattr(guard, "RATIOS", {"good": sequence("good", 1.0), "late": sequence("late", 2.0, 2.0, 1.2)})
    assert await guard.guard()
    assert measured == ["good", "late", "late", "late"]

    monkeypatch.setattr(guard, "RATIOS", {"good": sequence("good", 2.0, 2.0, 1.5)})
    assert not await guard.guard()


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="Linux only")
def test_priority_and_processors_are_given_back() -> None:
    before = os.sched_getscheduler(0), os.sched_getaffinity(0)
    with own_processor() as alone:
        assert (os.sched_getscheduler(0), len(os.sched_getaffinity(0))) == (os.SCHED_RR, 1) or not alone
    assert (os.sched_getscheduler(0), os.sched_getaffinity(0)) == before
