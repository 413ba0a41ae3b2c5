"""`make fuzz`: runs the state machine of sessions with new seeds for some minutes, until a sequence fails.

python -m tests.fuzz MINUTES [SEED]
"""

from __future__ import annotations

import random
import subprocess
import sys
import time

MACHINE = "tests/gateway/sessions/test_session_machine.py"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(seed: int) -> bool:
    """Run a round of sequences, and return whether all have passed. pytest prints the shortest sequence that fails."""
    options = ("-q", "--no-header", "--disable-warnings", "--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}")
    say(f"seed {seed}")
    return subprocess.run([sys.executable, "-m", "pytest", *options, MACHINE]).returncode == 0


def main(minutes: float, seed: int | None) -> int:
    """Return the exit code. A given seed is one round."""
    until, rounds = time.monotonic() + 60 * minutes, 0
    while rounds == 0 or (seed is None and time.monotonic() < until):
        chosen = random.randrange(2**32) if seed is None else seed
        if not run(chosen):
            say(f"repeat it with: make fuzz SEED={chosen}")
            return 1
        rounds += 1
    say(f"{rounds} rounds have passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
