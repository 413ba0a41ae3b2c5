"""`python -m benchmarks [NAME ...] [--quick]`: JSON on stdout, a table on stderr, exit code 1 if a bound is missed.

`python -m benchmarks --guard` compares four ratios with benchmarks/recorded.json, which `--record` writes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version

from benchmarks import servers
from benchmarks.chat_turns import chat
from benchmarks.cpu import cpu
from benchmarks.durability import durability
from benchmarks.fanout import fanout
from benchmarks.figures import Figure, Results
from benchmarks.guard import guard, record
from benchmarks.latency import first_event, starting
from benchmarks.memory import memory
from benchmarks.postgresql import postgresql
from benchmarks.scale import scale
from benchmarks.soak import soak
from benchmarks.stream import stream
from benchmarks.throughput import burst, slow_reader

MEASUREMENTS: dict[str, Callable[[bool], Awaitable[list[Figure]]]] = {
    "burst": burst,
    "stream": stream,
    "fanout": fanout,
    "first_event": first_event,
    "chat": chat,
    "durability": durability,
    "start": starting,
    "memory": memory,
    "scale": scale,
    "cpu": cpu,
    "slow_reader": slow_reader,
    "soak": soak,
    "postgresql": postgresql,
}
TIMEOUT = 300.0
"""Maximum time of one measurement, in seconds."""


def main() -> int:
    """Run the named measurements, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(MEASUREMENTS)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for less precise results")
    parser.add_argument("--store", metavar="URL", default="", help="an empty database of PostgreSQL for the daemons")
    parser.add_argument("--guard", action="store_true", help="exit code 1 if a ratio is much worse than the recorded one")
    parser.add_argument("--record", action="store_true", help="record the ratios that --guard compares with")
    given = parser.parse_args()
    if given.record:
        asyncio.run(record(_machine(False)))
        return 0
    if given.guard:
        return 0 if asyncio.run(guard()) else 1
    if unknown := set(given.names) - set(MEASUREMENTS):
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    servers.store_url = given.store
    results = Results(_machine(given.quick))
    for name in given.names or [name for name in MEASUREMENTS if not given.store or MEASUREMENTS[name] is not postgresql]:
        asyncio.run(_measure(name, given.quick, results))
    if given.store:
        # They are those of SQLite. The measurement `postgresql` has those of PostgreSQL.
        results.drop_goals()
    results.machine["load after"] = os.getloadavg()[0]
    sys.stderr.write(results.table() + "\n")
    sys.stdout.write(json.dumps(results.to_json(), indent=2) + "\n")
    return 0 if results.ok else 1


async def _measure(name: str, quick: bool, results: Results) -> None:
    sys.stderr.write(f"{name}: {MEASUREMENTS[name].__doc__}\n")
    try:
        async with asyncio.timeout(TIMEOUT):
            results.figures[name] = await MEASUREMENTS[name](quick)
    except Exception as error:
        results.failures[name] = f"{type(error).__name__}: {error}"


def _machine(quick: bool) -> dict[str, object]:
    packages = {name: version(name) for name in ("uvicorn", "httptools", "fastapi", "pydantic")}
    return {
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **packages,
        "quick": quick,
        "load before": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
