"""An agent that sends events at a steady pace, each with the time of its write. Standard library only, so that it starts fast.

A prompt `COUNT INTERVAL` is COUNT events, one every INTERVAL seconds, with the text `event N TIME `. TIME is that of the
monotonic clock in nanoseconds, which all processes of a machine share. Its lines are those of the echo agent.
"""

import os
import sys
import time

TOKEN = b'{"kind":"agent_token","text":"event %d %d "}\n'


def main() -> None:
    os.write(1, b'{"kind":"native_session"}\n')
    for line in sys.stdin.buffer:
        if b'"prompt"' in line:
            count, interval = line.split(b'"content":', 1)[1].strip(b' "}\n').split()
            send(int(count), float(interval))
            os.write(1, b'{"kind":"session_end","exit_code":0}\n')


def send(count: int, interval: float) -> None:
    """Send the events. The first comes after a part of the interval that differs from process to process."""
    began = time.perf_counter() + interval * (os.getpid() % 16) / 16
    for n in range(count):
        time.sleep(max(began + n * interval - time.perf_counter(), 0))
        os.write(1, TOKEN % (n, time.perf_counter_ns()))


if __name__ == "__main__":
    main()
