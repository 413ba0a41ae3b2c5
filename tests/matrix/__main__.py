"""Checks releases of the CLIs, and writes what was found.

python -m tests.matrix [--cli NAME] [--since 6m] [--count 7 | --version V]

Exit code 1 if a check fails that is not recorded as failed, of a release that passed before or of a new one; 2 if npm fails.
With `--count 1` only the newest release of each CLI is checked, and its recorded output is compared with the golden events.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime

from tests.matrix import page, results
from tests.matrix.campaign import run_checks
from tests.matrix.checks import CHECKS
from tests.matrix.installation import InstallError, installed
from tests.matrix.releases import Release, bisect, parse_since, pick, releases, view
from tests.matrix.transcripts import differences

CLIS = ("claude", "codex", "gemini")
BISECTED = 5
"""Releases that are tested between two neighbours of which only one passes."""

Json = results.Json


def main(argv: Sequence[str] | None = None, files: results.Files = results.FILES) -> int:
    """Check the releases, write what was found into these files, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--cli", choices=CLIS, help="only this CLI; all if none is given")
    parser.add_argument("--since", default="6m", metavar="SPAN", help="releases of this span of time, such as 3w or 6m (6m)")
    parser.add_argument("--count", type=int, default=7, metavar="N", help="releases of each CLI, or 1 for the newest (7)")
    parser.add_argument("--version", default="", metavar="V", help="only this release, of the CLI that --cli names")
    given = parser.parse_args(argv)
    if given.count < 1:
        parser.error("--count must be 1 or more")
    if given.version and not given.cli:
        parser.error("--version needs --cli")
    today = datetime.now(UTC).date()
    try:
        since = parse_since(given.since, today)
    except ValueError as error:
        parser.error(str(error))
    names = [given.cli] if given.cli else CLIS
    worse = []
    for name in names:
        try:
            worse += asyncio.run(Campaign(name, given, since, today, files).run())
        except (InstallError, RuntimeError, ValueError) as error:
            # This says nothing about a release, so that it is not recorded.
            _print(f"\n{name}: {error}")
            return 2
    if worse:
        _print("\nNot recorded as failed before:\n" + "\n".join(f"  {line}" for line in worse))
    return 1 if worse else 0


class Campaign:
    """The run of one CLI. Results are saved after each release, so that an interrupted run keeps them."""

    def __init__(self, name: str, given: argparse.Namespace, since: date, today: date, files: results.Files) -> None:
        self.name, self.count, self.version, self.since, self.today = name, given.count, given.version, since, today
        self.files = files
        self.before = results.load(files.results)[name]
        self.found: list[Json] = []
        self.behaviour: dict[str, dict[str, str]] = {}

    async def run(self) -> list[str]:
        """Check the picked releases and those that bisecting needs; return what is worse than before, by line."""
        available = releases(await view(self.before["package"]), self.before["oldest"])
        picked = self._named(available) if self.version else pick(available, self.since, self.count)
        _print(f"\n{self.name}: {', '.join(release.version for release in picked)} of {len(available)} releases\n")
        _print(f"| version | date | {' | '.join(CHECKS)} | seconds |\n|---|---|{'---|' * len(CHECKS)}---:|")
        for release in picked:
            await self.check(release)
        for older, newer in results.unlike_neighbours(self.found):
            _print(f"\nBetween {older['version']} and {newer['version']}, of which one fails:")
            versions = [release.version for release in available]
            between = available[versions.index(older["version"]) + 1 : versions.index(newer["version"])]
            await bisect(between, results.passes(older), self.check, BISECTED)
        return [f"{self.name} {line}" for line in results.regressions(self.before["releases"], self.found)]

    async def check(self, release: Release) -> bool:
        """Install and check a release, record what was found, and return whether it passes everything."""
        began = time.monotonic()
        async with installed(self.before["package"], release.version) as folder:
            outcome = await run_checks(self.name, folder)
            changes = await differences(self.name, folder) if self.count == 1 else ""
        self.found.append(results.entry(release, outcome.results))
        self.behaviour[release.version] = outcome.behaviour
        self._save()
        words = {name: outcome.behaviour.get(name, "ok") for name in outcome.results}
        cells = [words[name] if result == results.PASSED else "FAILED" for name, result in outcome.results.items()]
        _print(f"| {release.version} | {release.date} | {' | '.join(cells)} | {time.monotonic() - began:.0f} |")
        for name, first in outcome.repeated.items():
            _print(f"    {name}: {first}; repeated alone: {outcome.results[name]}")
        if self.count == 1:
            _print(f"\n{changes or 'The recorded events are those of the golden files.'}")
        return results.passes(self.found[-1])

    def _named(self, available: Sequence[Release]) -> list[Release]:
        found = [release for release in available if release.version == self.version]
        if not found:
            raise ValueError(f"npm has no release {self.version} that is tested; there are {available[0].version} and newer")
        return found

    def _save(self) -> None:
        found, runs = results.load(self.files.results), results.load(self.files.runs)
        found[self.name] = results.merged(self.before, self.found)
        runs[self.name] = results.merged_runs(runs.get(self.name, {}), self.today.isoformat(), self.behaviour)
        results.save(found, self.files.results)
        results.save(runs, self.files.runs)
        page.write(self.files)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
