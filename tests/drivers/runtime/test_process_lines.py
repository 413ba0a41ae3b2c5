"""Input and output lines of a process: complete, in order, without a deadlock, and with bounded memory."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
import time

import psutil
import pytest

from drivers.runtime.pipes import DRAIN_SECONDS, HIGH_WATER, MAX_DRAIN_SECONDS, STDERR_BYTES, STDERR_LINES
from drivers.runtime.process import Process
from tests.drivers.small_programs import StartProcess, first_line, lines_of, until_gone
from tests.support.manual_clock import ManualClock

MB = 1024 * 1024
LEFT_OVER = (HIGH_WATER + 600_000) // 100


async def until_it_blocks(process: Process) -> int:
    """Wait until the process blocks in a write; return the number of bytes that it has written."""
    written, still = -1, 0
    async with asyncio.timeout(60):
        while still < 5:
            await asyncio.sleep(0.05)
            now = psutil.Process(process.pid).io_counters().write_chars
            written, still = now, still + 1 if now == written and now else 0
    return written


@pytest.mark.parametrize("size", [1, 20, 60])
async def test_a_line_of_many_megabytes_is_complete(start: StartProcess, size: int) -> None:
    process = await start(f"sys.stdout.write('x' * {size * MB} + '\\nafter\\n')")
    long, after = await lines_of(process)
    assert (len(long), after) == (size * MB, b"after")
    assert long.count(b"x") == len(long)


async def test_a_line_of_more_than_64_mib_is_a_failure(start: StartProcess) -> None:
    code = f"print('first', flush=True); sys.stdout.write('x' * {70 * MB})\nwhile True: print('\\nmore')"
    process = await start(code)
    assert process.failure is None
    assert await lines_of(process) == [b"first"]
    assert process.failure == "the agent wrote a line of more than 64 MiB; the run was stopped"
    assert await process.read_lines() == []


async def test_the_last_line_needs_no_newline(start: StartProcess) -> None:
    process = await start("sys.stdout.write('one\\n\\ntwo')")
    assert await lines_of(process) == [b"one", b"", b"two"]
    assert await process.read_lines() == []


async def test_unread_output_blocks_the_process(start: StartProcess) -> None:
    process = await start("for n in range(80_000): sys.stdout.write(f'{n:09d}' + 'x' * 1000 + '\\n')")
    before = psutil.Process().memory_info().rss
    # The read-ahead limit, one more read, and the capacity of the pipe.
    assert await until_it_blocks(process) < HIGH_WATER + 2 * MB
    assert psutil.Process().memory_info().rss - before < 50 * MB
    expected = 0
    while lines := await asyncio.wait_for(process.read_lines(), 60):
        assert sum(map(len, lines)) < HIGH_WATER + 2 * MB
        for line in lines:
            assert line[:9] == b"%09d" % expected and len(line) == 1009
            expected += 1
    assert expected == 80_000
    assert await process.exit_code() == 0


async def test_unread_long_lines_block_the_process(start: StartProcess) -> None:
    size = 4 * MB
    process = await start(f"for n in range(12): sys.stdout.write(str(n % 10) * {size} + '\\n')")
    # A line over the read-ahead limit, and the capacity of the pipe.
    assert await until_it_blocks(process) < size + HIGH_WATER + 2 * MB
    assert [(len(line), line[:1]) for line in await lines_of(process)] == [(size, b"%d" % (n % 10)) for n in range(12)]


@pytest.fixture
async def left_over(start: StartProcess) -> Process:
    """An exited process with more output than the read-ahead limit; the rest is still in its pipe."""
    process = await start(
        f"""
import fcntl
fcntl.fcntl(1, 1031, {MB})  # F_SETPIPE_SZ
for n in range({LEFT_OVER}): print(f"{{n:09d}}" + "x" * 90)
"""
    )
    assert await process.exit_code(30) == 0
    return process


async def test_output_that_is_read_long_after_the_exit_is_complete(left_over: Process, clock: ManualClock) -> None:
    await clock.advance(MAX_DRAIN_SECONDS + 0.5)
    lines = await lines_of(left_over)
    assert lines == [b"%09d" % n + b"x" * 90 for n in range(LEFT_OVER)]


async def test_output_is_complete_although_the_reader_blocks_the_loop(left_over: Process, clock: ManualClock) -> None:
    lines = await left_over.read_lines()
    await clock.leap(MAX_DRAIN_SECONDS + 0.5)
    lines += await lines_of(left_over)
    assert lines == [b"%09d" % n + b"x" * 90 for n in range(LEFT_OVER)]


async def test_available_lines_do_not_overtake_what_the_event_loop_has_read(start: StartProcess) -> None:
    process = await start(
        "sys.stdin.readline(); os.write(1, b'first '); sys.stdin.readline(); os.write(1, b'second\\n'); sys.stdin.readline()"
    )
    pipe = process._transport.get_pipe_transport(1)
    assert pipe is not None

    def wait_for_bytes(count: int) -> None:
        # Without the event loop, which would read them.
        while struct.unpack("i", fcntl.ioctl(pipe.get_extra_info("pipe"), termios.FIONREAD, b"\0" * 4))[0] < count:
            time.sleep(0.001)

    # At once: the event loop reads nothing before the last line.
    process.write(b"\n")
    wait_for_bytes(6)
    # It passes them on in the next iteration.
    pipe._read_ready()  # type: ignore[attr-defined]
    process.write(b"\n")
    wait_for_bytes(7)
    assert await process.available_lines() == [b"first second"]


async def test_megabytes_both_ways_at_once(start: StartProcess) -> None:
    process = await start("for line in sys.stdin: sys.stdout.write(line)")
    sent = [b"%06d" % n + b"y" * 994 for n in range(6_000)]
    process.write(b"\n".join(sent) + b"\n")
    process.end_input()
    assert await lines_of(process) == sent
    assert await process.exit_code() == 0


async def test_megabytes_of_input_at_the_start(start: StartProcess) -> None:
    process = await start(
        "data = sys.stdin.read(); print(len(data), data[:3], data[-3:])", stdin=b"abc" + b"." * (8 * MB) + b"xyz"
    )
    assert await lines_of(process) == [b"%d abc xyz" % (8 * MB + 6)]


async def test_input_for_a_process_that_takes_none_is_no_error(start: StartProcess) -> None:
    process = await start("os.close(0); print('closed', flush=True); time.sleep(0.3)")
    assert await first_line(process) == b"closed"
    for _ in range(20):
        process.write(b"z" * MB)
    assert await lines_of(process) == []
    process.write(b"more")
    process.end_input()
    assert await process.exit_code() == 0


async def test_reading_may_be_cancelled(start: StartProcess) -> None:
    process = await start("for n in range(200): print(n, flush=True); time.sleep(0.002)")
    lines: list[bytes] = []
    while True:
        try:
            ready = await asyncio.wait_for(process.read_lines(), 0.001)
        except TimeoutError:
            continue
        if not ready:
            break
        lines += ready
    assert lines == [b"%d" % n for n in range(200)]


async def test_a_grandchild_that_holds_the_output_does_not_delay_the_end(start: StartProcess, clock: ManualClock) -> None:
    process = await start("print(child('import time; time.sleep(600)').pid); print('done'); sys.exit(3)")
    await clock.expire(DRAIN_SECONDS)
    pid, done = await lines_of(process)
    assert done == b"done"
    assert await process.exit_code(60.0) == 3
    # What a process leaves behind is ended with it, without a call of `close`.
    await until_gone(int(pid))


async def test_a_grandchild_that_keeps_writing_does_not_delay_the_end(start: StartProcess, clock: ManualClock) -> None:
    process = await start("child('while True: print(1, flush=True); import time; time.sleep(0.02)'); print('done')")
    reading = asyncio.create_task(lines_of(process))
    step = DRAIN_SECONDS * 0.8
    for _ in range(int(MAX_DRAIN_SECONDS / step) - 1):
        await clock.waited_for(DRAIN_SECONDS)
        await clock.advance(step)
        assert not reading.done()
    await clock.expire(step)
    assert b"done" in await reading


async def test_the_last_lines_of_standard_error_are_available_at_the_exit(start: StartProcess) -> None:
    for _ in range(20):
        process = await start("os.close(1); sys.stderr.write('e' * 60_000 + '\\nlast word\\n'); sys.exit(1)")
        assert await lines_of(process) == []
        assert await process.exit_code() == 1
        assert process.stderr_tail()[-1] == "last word"


async def test_only_the_end_of_standard_error_is_kept(start: StartProcess) -> None:
    process = await start("for n in range(20_000): print(n, 'caf\\u00e9', file=sys.stderr)", LC_ALL="C.UTF-8")
    await lines_of(process)
    assert await process.exit_code() == 0
    assert process.stderr_tail() == [f"{n} caf\u00e9" for n in range(20_000 - STDERR_LINES, 20_000)]


@pytest.mark.parametrize("part", ["'e' * 1_000_000", "'e' * 200_000 + '\\n'"])
async def test_long_lines_of_standard_error_are_bounded_too(start: StartProcess, part: str) -> None:
    before = psutil.Process().memory_info().rss
    process = await start(f"for _ in range(200): sys.stderr.write({part})\nsys.stderr.write('the reason'); sys.exit(1)")
    await lines_of(process)
    assert psutil.Process().memory_info().rss - before < 30 * MB
    await process.exit_code()
    tail = process.stderr_tail()
    assert sum(map(len, tail)) <= STDERR_BYTES
    assert tail[-1].endswith("the reason")
    assert tail == process.stderr_tail()


async def test_no_standard_error_is_no_lines(start: StartProcess) -> None:
    process = await start("")
    await lines_of(process)
    assert process.stderr_tail() == []
