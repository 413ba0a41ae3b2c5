"""`python -m tests.faults [NAME ...] [--seed N] [--quick]`: runs fault campaigns; exit code 1 if an oracle is violated."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence

from tests.faults.campaign import Report
from tests.faults.campaigns import CAMPAIGNS, run_campaigns

DETAILS = 25
"""Failures of a campaign that are printed with their violations."""
PROBLEMS, WIDTH = 8, 5_500
"""Violations of a case that are printed, and the length of each in characters."""


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
    reports = []
    for report in run_campaigns(given.names or [*CAMPAIGNS], given.seed, quick=given.quick, jobs=given.jobs):
        _print(_row(report))
        reports.append(report)
    cases, failures = sum(report.cases for report in reports), sum(len(report.failures) for report in reports)
    _print(f"| all | {cases} | {failures} | {time.monotonic() - began:.0f} |")
    for report in reports:
        _print_details(report)
    if failed := [report.name for report in reports if report.failures]:
        _print(f"\nTo repeat: python -m tests.faults {' '.join(failed)} --seed {given.seed}{' --quick' if given.quick else ''}")
    return 1 if failed else 0


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
