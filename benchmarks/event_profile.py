"""`python -m benchmarks.event_profile`: where the event loop's thread spends a burst, as a table in Markdown.

Samples of its stack (benchmarks/sampled_daemon.py) in bursts of the ACP agent and of claude's lines. A sample is of the first row
whose function is on the stack. While another thread has the interpreter's lock, samples are of the function that waits for it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path

from benchmarks.peers.sides import Portico, PorticoClaude
from benchmarks.sampled_daemon import INTERVAL
from benchmarks.servers import BURST

WARM_UP, BURSTS = 3, 40
WAITING = "selectors.py:"
"""The event loop has nothing to do."""
ROWS: list[tuple[str, tuple[str, ...]]] = [
    ("lines to events", ("JsonLineCodec.receive_lines", "Codec.receive_lines")),
    ("pipe read, lines split", ("_UnixReadPipeTransport._read_ready", "LineSplitter.feed", "Pipes.")),
    ("events encoded", ("event_log.py:_encode", "encode_deltas")),
    ("objects of stored events dropped", ("EventLog._drop_objects",)),
    ("log: entries, readers, limits", ("EventLog.append", "EventLog._write", "EventLog._trim")),
    ("row for the store, given to its thread", ("EventLog._store_batch", "Database.write")),
    ("policy, message folded, run", ("Run._enforce", "RunOutput.", "Run._take")),
    ("agent process: timers, batches", ("CliAgent.",)),
    ("frames", ("turn_responses.py:_frames", "StreamView.")),
    ("events read from the log", ("Turn.batches", "EventLog.")),
    ("response: layers and write to the socket", ("_EventStream.", "RequestResponseCycle.")),
    ("run: tasks and waiting", ("Run.",)),
    ("event loop", ("base_events.py:BaseEventLoop._run_once",)),
]
"""The rows of the table, with parts of the names of their functions. A sample is of the first row that its stack has."""


class SampledPortico(Portico):
    """The gateway with the ACP agent, whose daemon takes samples."""

    @property
    def samples(self) -> Path:
        return self.home / "samples.json"

    def command(self) -> list[str]:
        python, _, _, *arguments = super().command()
        return [python, "-m", "benchmarks.sampled_daemon", str(self.samples), *arguments]


class SampledClaude(SampledPortico, PorticoClaude):
    """The same with claude's lines."""


async def profile(side: SampledPortico) -> dict[str, float]:
    """Return the microseconds of the event loop's thread for each event, by row."""
    await side.start()
    try:
        session = await side.session()
        for n in range(WARM_UP + BURSTS):
            if n == WARM_UP:
                side.process.send_signal(signal.SIGUSR1)
            await session.run(BURST)
        side.process.send_signal(signal.SIGUSR2)
        # The daemon handles the signal before the turn.
        await session.run(1)
        stacks = json.loads(side.samples.read_text())
    finally:
        await side.stop()
    found: Counter[str] = Counter()
    for stack, count in stacks:
        if not stack[0].startswith(WAITING):
            found[_row(stack)] += count
    return {row: count * INTERVAL / (BURSTS * BURST) * 1e6 for row, count in found.items()}


def _row(stack: list[str]) -> str:
    for row, parts in ROWS:
        if any(part in name for name in stack for part in parts):
            return row
    return "other"


def main() -> None:
    """Print the table."""
    acp, claude = (asyncio.run(profile(side)) for side in (SampledPortico(), SampledClaude()))
    sys.stdout.write("| us of the event loop's thread for an event | ACP agent | claude |\n|---|---:|---:|\n")
    for row in sorted(acp.keys() | claude.keys(), key=lambda row: -acp.get(row, 0.0)):
        sys.stdout.write(f"| {row} | {acp.get(row, 0.0):.2f} | {claude.get(row, 0.0):.2f} |\n")
    sys.stdout.write(f"| all | {sum(acp.values()):.2f} | {sum(claude.values()):.2f} |\n")


if __name__ == "__main__":
    main()
