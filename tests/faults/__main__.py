"""`python -m tests.faults [NAME ...] [--seed N] [--quick]`: runs fault campaigns; exit code 1 if an oracle is violated."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import Sequence
from functools import partial

from tests.faults.campaign import Campaign, Report, run_campaign
from tests.faults.clock import clock
from tests.faults.confinement import confinement
from tests.faults.descriptors import descriptors
from tests.faults.followers import followers
from tests.faults.kills import kills, start_kills
from tests.faults.migrations import migrations
from tests.faults.pauses import pauses
from tests.faults.process_one import process_one
from tests.faults.rules import rules
from tests.faults.shutdown import shutdown
from tests.faults.storage import disk, lock
from tests.faults.store_faults import store
from tests.faults.trees import trees
from tests.faults.volume import volume

DETAILS = 25
"""Failures of a campaign that are printed with their violations."""
PROBLEMS, WIDTH = 8, 500
"""Violations of a case that are printed, and the length of each in characters."""
CAMPAIGNS: dict[str, Campaign] = {
    "store": store,
    "kills": kills,
    "store-stored-first": partial(store, durability="stored-first"),
    "kills-stored-first": partial(kills, durability="stored-first"),
    "volume": volume,
    "trees": trees,
    "migrations": migrations,
    "lock": lock,
    "start": start_kills,
    "disk": disk,
    "followers": followers,
    "pauses": pauses,
    "shutdown": shutdown,
    "clock": clock,
    "confinement": confinement,
    "rules": rules,
    "descriptors": descriptors,
    "process-one": process_one,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named campaigns, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(CAMPAIGNS)}; all if none is given")
    parser.add_argument("--seed", type=int, default=1, help="the seed of all random choices (1)")
    parser.add_argument("--quick", action="store_true", help="a part of the cases, in less than three minutes")
    parser.add_argument("--jobs", type=int, default=2, help="campaigns that run at the same time (2)")
    given = parser.parse_args(argv)
    if unknown := set(given.names) - set(CAMPAIGNS):
        parser.error(f"there is no campaign {', '.join(sorted(unknown))}; there are {', '.join(CAMPAIGNS)}")
    began = time.monotonic()
    _print(f"seed {given.seed}{', quick' if given.quick else ''}, {os.cpu_count()} CPUs, {platform.platform()}")
    _print("\n| campaign | cases | failures | seconds |\n|---|---:|---:|---:|")
    reports = asyncio.run(_run(given.names or [*CAMPAIGNS], given))
    cases, failures = sum(report.cases for report in reports), sum(len(report.failures) for report in reports)
    _print(f"| all | {cases} | {failures} | {time.monotonic() - began:.0f} |")
    for report in reports:
        _print_details(report)
    if failed := [report.name for report in reports if report.failures]:
        _print(f"\nTo repeat: python -m tests.faults {' '.join(failed)} --seed {given.seed}{' --quick' if given.quick else ''}")
    return 1 if failed else 0


async def _run(names: Sequence[str], given: argparse.Namespace) -> list[Report]:
    """Run the campaigns and print a row for each as it ends."""
    queue, reports = list(reversed(names)), []

    async def work() -> None:
        while queue:
            name = queue.pop()
            reports.append(await run_campaign(name, CAMPAIGNS[name], given.seed, given.quick))
            _print(_row(reports[-1]))

    await asyncio.gather(*(work() for _ in range(given.jobs)))
    return reports


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _print_details(report: Report) -> None:
    for remark in report.remarks:
        _print(f"\n{report.name}: {remark}")
    for failure in report.failures[:DETAILS]:
        _print(f"\n{report.name}: {failure.case}")
        for problem in failure.problems[:PROBLEMS]:
            _print(f"  {problem if len(problem) <= WIDTH else problem[: WIDTH - 3] + '...'}")
        if len(failure.problems) > PROBLEMS:
            _print(f"  and {len(failure.problems) - PROBLEMS} more")
    if rest := report.failures[DETAILS:]:
        _print(f"\n{report.name}: failed too: {', '.join(failure.case for failure in rest)}")


def _row(report: Report) -> str:
    if report.reason:
        return f"| {report.name} | not run: {report.reason} | | |"
    return f"| {report.name} | {report.cases} | {len(report.failures)} | {report.seconds:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
