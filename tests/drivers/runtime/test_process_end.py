"""The end of a process: by itself, by a signal, or killed, always with all processes that it started."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from drivers.contract.codec import Command
from drivers.runtime import process as process_module
from drivers.runtime.pipes import DRAIN_SECONDS
from drivers.runtime.process import LEDGER_RETRIES, LEDGER_SECONDS, TERM_SECONDS, Process, Spawner, unfinished_ends
from drivers.runtime.process_tree import SEARCH_AGAIN_SECONDS, SEARCH_SECONDS, Root, family
from tests.drivers.small_programs import StartProcess, first_line, gone, lines_of, python, until_gone
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

IGNORES_EOF = "print('up', flush=True)\nwhile True: time.sleep(60)"
IGNORES_SIGTERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + IGNORES_EOF


@pytest.mark.parametrize(
    ("code", "expected"),
    [("sys.exit(0)", 0), ("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getpid(), 11)", -11)],
)
async def test_the_exit_code_is_minus_the_signal(start: StartProcess, code: str, expected: int) -> None:
    process = await start(code)
    await lines_of(process)
    assert await process.exit_code() == expected
    assert not process.alive


async def test_a_process_that_closes_its_output_and_stays_is_ended(start: StartProcess, clock: ManualClock) -> None:
    process = await start("os.close(1); time.sleep(600)")
    assert await lines_of(process) == []
    ending = asyncio.create_task(process.exit_code(5.0))
    await clock.expire(5.0)
    assert await asyncio.wait_for(ending, 60) < 0
    assert gone(process.pid)


async def test_a_process_that_exits_on_end_of_input_is_not_signalled(start: StartProcess) -> None:
    process = await start("print('up', flush=True); sys.stdin.read(); print('bye', flush=True); time.sleep(0.2); sys.exit(5)")
    assert await first_line(process) == b"up"
    assert process.alive
    await asyncio.wait_for(process.close(60.0), 60)
    assert await process.exit_code() == 5
    assert await lines_of(process) == [b"bye"]


@pytest.mark.parametrize(("code", "signal"), [(IGNORES_EOF, 15), (IGNORES_SIGTERM, 9)])
async def test_a_process_that_ignores_end_of_input_is_signalled_and_then_killed(
    start: StartProcess, clock: ManualClock, code: str, signal: int
) -> None:
    process = await start(code)
    assert await first_line(process) == b"up"
    closing = asyncio.create_task(process.close(5.0))
    await clock.expire(5.0)
    if signal == 9:
        await clock.expire(TERM_SECONDS)
    await asyncio.wait_for(closing, 60)
    assert await process.exit_code() == -signal


@pytest.mark.parametrize("steps", [0, 1])
def test_a_close_that_is_cancelled_by_the_end_of_the_event_loop_ends_the_process(tmp_path: Path, steps: int) -> None:
    async def cancel_everything_during_the_close() -> None:
        process = await Spawner().spawn(Command(python(IGNORES_SIGTERM), tmp_path, {}))
        assert await first_line(process) == b"up"
        closing = asyncio.ensure_future(process.close(60.0))
        for _ in range(1 + steps):
            await asyncio.sleep(0)
        assert not closing.done()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await until_gone(process.pid)
        # The thread that has waited for the process reports its end to the loop, which must still be there. The exit code does
        # not wait for that where the close is over.
        await asyncio.wait_for(process._pipes.exited.wait(), 60)
        assert await process.exit_code() == -9

    asyncio.run(cancel_everything_during_the_close())
    # A transport that was not closed fails the test.
    gc.collect()


async def test_a_process_that_is_started_at_sigterm_is_ended(start: StartProcess) -> None:
    # Not `print`, which the signal may interrupt.
    at_sigterm = "os.write(1, b'%d' % child('import time; time.sleep(600)', start_new_session=True).pid); os._exit(0)"
    process = await start(f"def end(*_): {at_sigterm}\nsignal.signal(signal.SIGTERM, end); {IGNORES_EOF}", stdin=b"the task")
    assert await first_line(process) == b"up"
    await asyncio.wait_for(process.close(30.0), 60)
    (pid,) = await lines_of(process)
    assert gone(int(pid))


async def test_a_task_whose_input_has_ended_is_not_waited_for(start: StartProcess) -> None:
    process = await start(IGNORES_EOF, stdin=b"the task")
    assert await first_line(process) == b"up"
    await asyncio.wait_for(process.close(600.0), 60)
    assert await process.exit_code() == -15


async def test_without_grace_a_process_is_ended_at_once(start: StartProcess) -> None:
    process = await start(IGNORES_SIGTERM)
    assert await first_line(process) == b"up"
    await asyncio.wait_for(process.close(0.0), 60)
    assert await process.exit_code() == -9


async def test_close_can_be_called_repeatedly_and_concurrently(start: StartProcess, clock: ManualClock) -> None:
    process = await start(IGNORES_SIGTERM)
    assert await first_line(process) == b"up"
    closing = asyncio.gather(process.close(5.0), process.close(5.0), process.close(0.0))
    await clock.expire(TERM_SECONDS)
    await asyncio.wait_for(closing, 60)
    await process.close(600.0)
    await process.close(0.0)
    assert await process.exit_code() == -9


async def test_a_close_that_is_cancelled_goes_on(start: StartProcess, clock: ManualClock) -> None:
    process = await start(IGNORES_EOF)
    assert await first_line(process) == b"up"
    closing = asyncio.create_task(process.close(5.0))
    await clock.waited_for(5.0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not process.alive
    await clock.expire(5.0)
    assert await asyncio.wait_for(process.exit_code(30), 60) == -15
    await process.close(600.0)


async def test_a_close_with_less_grace_shortens_a_running_close(start: StartProcess) -> None:
    process = await start(IGNORES_EOF)
    assert await first_line(process) == b"up"
    patient = asyncio.create_task(process.close(600.0))
    await asyncio.sleep(0)
    await asyncio.wait_for(process.close(0.0), 60)
    await asyncio.wait_for(patient, 60)


async def test_a_process_that_has_ended_is_closed_without_waiting(start: StartProcess) -> None:
    process = await start("sys.exit(4)")
    await lines_of(process)
    assert await process.exit_code() == 4
    await asyncio.wait_for(process.close(600.0), 60)


STRAYS = {
    "a child": "print(child('import time; time.sleep(600)').pid, flush=True)",
    "a child in its own session": "print(child('import time; time.sleep(600)', start_new_session=True).pid, flush=True)",
    "an orphan in its own session": "stray()",
    "a child without our environment": (
        "print(child('import time; time.sleep(600)', env={}, start_new_session=True).pid, flush=True)"
    ),
    "an orphan without our environment in our session": (
        "print(child('import os; pid = os.fork();"
        ' pid and (os.write(1, b"%d" % pid), os._exit(0)); os.close(1);'
        " import time; time.sleep(600)', env={}, stdout=-1).communicate()[0].decode(), flush=True)"
    ),
    "a child that ignores SIGTERM": (
        "child('import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)')"
    ),
}


@pytest.mark.parametrize("name", STRAYS)
async def test_close_ends_all_processes_that_were_started(start: StartProcess, clock: ManualClock, name: str) -> None:
    process = await start(STRAYS[name] + "; sys.stdin.read()")
    pid = int((await asyncio.wait_for(process.read_lines(), 60))[0])
    assert not gone(pid)
    closing = asyncio.create_task(process.close(5.0))
    if "ignores SIGTERM" in name:
        await clock.expire(TERM_SECONDS)
    await closing
    assert gone(pid) and gone(process.pid)


@pytest.mark.parametrize("name", [name for name in STRAYS if name != "a child without our environment"])
async def test_close_ends_the_processes_of_a_process_that_has_exited(start: StartProcess, clock: ManualClock, name: str) -> None:
    process = await start(STRAYS[name] + "; sys.stdin.readline()")
    pid = int((await process.read_lines())[0])
    assert not gone(pid)
    process.write(b"\n")
    await clock.expire_until(lines_of(process), DRAIN_SECONDS)
    await process.close(0.2)
    assert gone(pid)


async def test_the_processes_of_a_process_that_has_exited_are_ended_without_close(start: StartProcess) -> None:
    process = await start("stray(); sys.exit(0)")
    pid = int((await lines_of(process))[0])
    await until_gone(pid)


REPLACED = """
os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", sys.argv[1]], {})
"""
WITHOUT_MARKER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, "PORTICO_AGENT_ID" in os.environ, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("grace", [0.0, 0.1])
async def test_an_agent_without_the_marker_is_ended_with_its_descendants(
    start: StartProcess, clock: ManualClock, grace: float
) -> None:
    process = await start(f"sys.argv.append({WITHOUT_MARKER!r})" + REPLACED)
    pid, has_marker = (await first_line(process)).split()
    assert has_marker == b"False"
    closing = asyncio.create_task(process.close(grace))
    if grace:
        await clock.expire(grace)
    await asyncio.wait_for(closing, 30)
    assert gone(int(pid)) and gone(process.pid)


async def test_a_process_that_sigkill_does_not_end_is_logged_and_left(
    start: StartProcess, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = RecordingLedger()
    process = await start(IGNORES_SIGTERM, ledger=ledger)
    await first_line(process)
    # As in uninterruptible sleep, or of another user.
    monkeypatch.setattr(psutil.Process, "kill", lambda self: None)
    closing = asyncio.create_task(process.close(0.0))
    await clock.expire_until(closing, SEARCH_AGAIN_SECONDS)
    assert await process.exit_code() == -9
    assert f"{process.pid} (python" in caplog.text
    assert await lines_of(process) == []
    # It stays in the ledger until it has exited.
    await asyncio.wait_for(ledger.ends.wait(), 30)
    assert gone(process.pid)


async def test_other_agents_processes_are_left_alone(start: StartProcess) -> None:
    one, other = await start(IGNORES_EOF), await start(IGNORES_EOF)
    await first_line(one)
    await first_line(other)
    await one.close(0.0)
    assert gone(one.pid)
    assert not gone(other.pid) and other.alive


class RecordingLedger:
    """A ledger that records its calls, in order. Writes of a start fail if it is `broken`, and the first `failures` of an end."""

    def __init__(self, *, broken: bool = False, failures: int = 0) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.ends = asyncio.Event()
        self._broken, self._failures = broken, failures

    async def started(self, marker: str, pid: int, created: float) -> None:
        self.calls.append(("started", marker, pid, created))
        if self._broken:
            raise OSError("the disk is full")

    async def ended(self, marker: str) -> None:
        self.calls.append(("ended", marker))
        if self._failures:
            self._failures -= 1
            raise OSError("the disk is full")
        self.ends.set()


async def test_starts_and_ends_are_recorded_in_the_ledger(start: StartProcess) -> None:
    ledger = RecordingLedger()
    process: Process = await start(IGNORES_EOF, ledger=ledger)
    ((_, marker, pid, created),) = ledger.calls
    assert isinstance(marker, str) and marker.startswith("test.")
    assert (pid, created) == (process.pid, psutil.Process(process.pid).create_time())
    await process.close(0.0)
    await process.close(0.0)
    assert ledger.calls[1:] == [("ended", marker)]


async def test_a_process_that_cannot_be_recorded_is_ended(start: StartProcess) -> None:
    ledger = RecordingLedger(broken=True)
    with pytest.raises(OSError, match="disk is full"):
        await start(IGNORES_EOF, ledger=ledger)
    pid = ledger.calls[0][2]
    assert isinstance(pid, int) and gone(pid)


async def test_an_end_that_cannot_be_recorded_fails_no_close_and_is_recorded_later(
    start: StartProcess, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = RecordingLedger(failures=2)
    process = await start(IGNORES_EOF, ledger=ledger)
    closing = asyncio.create_task(process.close(0.0))
    await clock.expire(LEDGER_SECONDS)
    await closing
    await process.close(0.0)
    for failed, retry in enumerate(LEDGER_RETRIES[:2], 2):
        await wait_until(lambda failed=failed: len(ledger.calls) == failed)
        await clock.advance(retry)
    await asyncio.wait_for(ledger.ends.wait(), 30)
    assert [name for name, *_ in ledger.calls] == ["started", "ended", "ended", "ended"]
    assert "disk is full" in caplog.text


async def test_close_does_not_wait_for_a_ledger_that_is_locked(start: StartProcess, clock: ManualClock) -> None:
    class Locked(RecordingLedger):
        async def ended(self, marker: str) -> None:
            await asyncio.Event().wait()

    process = await start(IGNORES_EOF, ledger=Locked())
    closing = asyncio.create_task(process.close(0.0))
    await clock.expire(LEDGER_SECONDS)
    await asyncio.wait_for(closing, 30)
    assert gone(process.pid)


def test_every_gateway_has_an_instance_of_its_own() -> None:
    assert Spawner() is not Spawner()


async def test_a_process_is_ended_while_file_accesses_block_all_default_threads(start: StartProcess) -> None:
    process = await start(STRAYS["an orphan in its own session"] + "; sys.stdin.read()")
    pid = int(await first_line(process))
    answered = threading.Event()
    loop = asyncio.get_running_loop()
    accesses = [loop.run_in_executor(None, answered.wait) for _ in range(64)]
    try:
        await asyncio.wait_for(process.close(0.0), 20)
        assert gone(pid) and gone(process.pid)
    finally:
        answered.set()
        await asyncio.gather(*accesses)


@pytest.mark.parametrize("grace", [0.0, 0.1])
async def test_a_search_that_fails_is_repeated_until_all_processes_are_ended(
    start: StartProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, grace: float
) -> None:
    process = await start(STRAYS["an orphan in its own session"] + "\nwhile True: time.sleep(60)")
    pid = int(await first_line(process))
    broken = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    with monkeypatch.context() as patch:
        patch.setattr(process_module, "family", broken)
        await asyncio.wait_for(process.close(grace), 30)
        assert gone(process.pid) and broken.called
        assert not gone(pid)
    assert "Too many open files" in caplog.text
    # The partial has the broken function.
    broken.side_effect = family
    await until_gone(pid)
    await ends_finished()


async def test_a_late_search_ends_the_agent_at_once_and_its_processes_later(
    start: StartProcess, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answered = threading.Event()

    def blocked(root: Root) -> set[psutil.Process]:
        answered.wait()
        return family(root)

    monkeypatch.setattr(process_module, "family", blocked)
    ledger = RecordingLedger()
    process = await start(STRAYS["an orphan in its own session"] + "\nwhile True: time.sleep(60)", ledger=ledger)
    pid = int(await first_line(process))
    try:
        closing = asyncio.create_task(process.close(0.0))
        await clock.expire(SEARCH_SECONDS)
        await asyncio.wait_for(closing, 30)
        await process.close(0.0)
        assert gone(process.pid) and not gone(pid)
        assert unfinished_ends() == 1, "its slot is in use"
        assert "is late" in caplog.text
        assert not ledger.ends.is_set(), "a later daemon would search for what is left"
    finally:
        answered.set()
    await until_gone(pid)
    await ends_finished()
    await asyncio.wait_for(ledger.ends.wait(), 30)


async def ends_finished() -> None:
    """Wait until no end goes on in the background."""
    await wait_until(lambda: not unfinished_ends())
