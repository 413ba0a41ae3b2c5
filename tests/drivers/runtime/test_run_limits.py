"""Which time limit of a run is due next, with a clock that the test sets."""

from __future__ import annotations

from drivers.contract.agent_specs import Limits
from drivers.contract.codec import Phase
from drivers.runtime.time_limits import Deadline, RunLimits
from tests.support.manual_clock import ManualClock

LIMITS = Limits(start=10, idle=20, total=100, grace=3)


def due(limits: RunLimits, phase: Phase = "running", *, busy: bool = False, debounce: float | None = None) -> tuple[float, str]:
    deadline = limits.next_deadline(phase, busy=busy, debounce=debounce)
    assert deadline is not None
    return deadline.at, (deadline.reason or "").rpartition("(")[2].rstrip(")")


async def test_the_start_of_a_session(clock: ManualClock) -> None:
    limits = RunLimits(LIMITS, task=False, clock=clock)
    await clock.advance(5)
    limits.output()
    assert due(limits, "starting") == (1010, "limits.start")
    assert RunLimits(Limits(start=0), task=False, clock=clock).next_deadline("starting", busy=False, debounce=None) is None


async def test_a_task_has_the_limit_of_the_start_until_its_first_output(clock: ManualClock) -> None:
    limits = RunLimits(LIMITS, task=True, clock=clock)
    assert due(limits) == (1010, "limits.start")
    await clock.advance(5)
    limits.output()
    assert due(limits) == (1025, "limits.idle")


async def test_a_run_is_limited_in_silence_and_in_all(clock: ManualClock) -> None:
    limits = RunLimits(LIMITS, task=False, clock=clock)
    await clock.advance(50)
    limits.begin()
    assert due(limits) == (1070, "limits.idle")
    assert due(limits, busy=True) == (1150, "limits.total")
    await clock.advance(90)
    limits.activity()
    assert due(limits) == (1150, "limits.total")
    assert limits.elapsed_ms == 90_000


async def test_the_total_limit_pauses_while_the_run_waits_for_the_client(clock: ManualClock) -> None:
    limits = RunLimits(LIMITS, task=False, clock=clock)
    limits.begin()
    limits.track("waiting")
    await clock.advance(1000)
    limits.track("waiting")
    assert limits.next_deadline("waiting", busy=False, debounce=0.1) is None
    await clock.advance(1000)
    limits.track("running")
    limits.activity()
    assert due(limits, busy=True) == (1000 + 2000 + 100, "limits.total")
    limits.begin()
    assert due(limits, busy=True) == (3000 + 100, "limits.total")


def test_events_held_back_have_a_deadline_without_a_reason(clock: ManualClock) -> None:
    limits = RunLimits(LIMITS, task=False, clock=clock)
    limits.begin()
    assert limits.next_deadline("running", busy=False, debounce=0.5) == Deadline(1000.5, None)
    assert limits.next_deadline("running", busy=False, debounce=0) == Deadline(1000, None)
    assert due(limits, debounce=60) == (1020, "limits.idle")


async def test_events_are_held_back_for_so_long_at_most(clock: ManualClock) -> None:
    limits = RunLimits(LIMITS, task=False, clock=clock)
    limits.begin()
    for _ in range(3):
        limits.hold(True)
        limits.activity()
        assert limits.next_deadline("running", busy=False, debounce=10, max_held=35) == Deadline(clock.monotonic() + 10, None)
        await clock.advance(9)
    limits.activity()
    limits.hold(True)
    assert limits.next_deadline("running", busy=False, debounce=10, max_held=35) == Deadline(1035, None)
    limits.hold(False)
    limits.hold(True)
    assert limits.next_deadline("running", busy=False, debounce=10, max_held=35) == Deadline(1037, None)


def test_an_interrupted_run_has_its_grace_time_alone(clock: ManualClock) -> None:
    limits = RunLimits(LIMITS, task=False, clock=clock)
    limits.begin()
    assert not limits.interrupted
    limits.interrupt(3)
    assert limits.interrupted
    for phase in ("running", "waiting"):
        assert limits.next_deadline(phase, busy=False, debounce=0) == Deadline(1003, "it did not stop when it was interrupted")  # type: ignore[arg-type]
    limits.begin()
    assert not limits.interrupted


def test_no_limit_is_no_deadline(clock: ManualClock) -> None:
    limits = RunLimits(Limits(0, 0, 0), task=True, clock=clock)
    limits.begin()
    assert limits.next_deadline("running", busy=False, debounce=None) is None
