"""`python -m benchmarks [NAME ...] [--quick]`: a table in Markdown, and exit code 1 if a bound is missed.

`python -m benchmarks --guard` compares five ratios with benchmarks/recorded.json, which `--record` writes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time

from benchmarks.figures import table
from benchmarks.guard import guard, record
from benchmarks.measurements import MEASUREMENTS
from benchmarks.sides import own_processor

TIMEOUT = 300.0
"""Maximum time of one measurement, in seconds."""


def machine() -> str:
    """Return the date and the machine, in a sentence."""
    system = f"{platform.system()} {platform.release().split('-')[0]} ({platform.machine()})"
    started = time.strftime("%Y-%m-%d, %H:%M")
    return f"{started}, {os.cpu_count()} cores, {system}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"


async def measure(names: list[str], quick: bool) -> bool:
    """Run the named measurements, and print them. Return whether all bounds are met."""
    head, found = machine(), {}
    with own_processor() as alone:
        for name in names:
            sys.stderr.write(f"{name}: {MEASUREMENTS[name].__doc__}\n")
            async with asyncio.timeout(TIMEOUT):
                found[name] = await MEASUREMENTS[name](quick)
    sys.stdout.write(f"{head}{', real-time priority' if alone else ''}.\n\n{table(found)}\n")
    return all(figure.ok for figures in found.values() for figure in figures)


def main() -> int:
    """Run the named measurements, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(MEASUREMENTS)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for less precise results")
    parser.add_argument("--guard", action="store_true", help="exit code 1 if a ratio is much worse than the recorded one")
    parser.add_argument("--record", action="store_true", help="record the ratios that --guard compares with")
    given = parser.parse_args()
    if unknown := set(given.names) - set(MEASUREMENTS):
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    if given.record:
        asyncio.run(record(machine()))
        return 0
    if given.guard:
        return 0 if asyncio.run(guard()) else 1
    return 0 if asyncio.run(measure(given.names or list(MEASUREMENTS), given.quick)) else 1


if __name__ == "__main__":
    sys.exit(main())
