"""`python -m benchmarks.sampled_daemon FILE serve …`: as `python -m gateway serve …`, with samples of the event loop's stack.

SIGUSR1 begins to take a sample every half millisecond. SIGUSR2 ends it and writes a JSON list of [functions, samples] to FILE,
the innermost function first, as `file:qualified name`.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from gateway.cli.main import main

INTERVAL = 0.0005
"""Seconds."""


def sample(number: int, frame: FrameType | None) -> None:
    """Count the stack of the main thread, which is that of the event loop."""
    stack = []
    while frame is not None:
        stack.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    samples[tuple(stack)] += 1


def begin(number: int, frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_REAL, INTERVAL, INTERVAL)


def end(number: int, frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    file.write_text(json.dumps(list(samples.items())))


if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    samples: Counter[tuple[str, ...]] = Counter()
    for handled, handler in ((signal.SIGALRM, sample), (signal.SIGUSR1, begin), (signal.SIGUSR2, end)):
        signal.signal(handled, handler)
        signal.siginterrupt(handled, False)
    main()
