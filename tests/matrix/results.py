"""The results of all runs: drivers/compatibility.json, which drivers read too, and runs.json, by the name of the CLI.

    {"claude": {"package": "@anthropic-ai/claude-code", "oldest": "2.1.148", "tested": {"from": "2.1.148", "to": "2.1.330"},
                "notes": [{"before": null, "text": "…"}],
                "releases": [{"version": "2.1.148", "date": "2026-05-22", "checks": {"task": "passed", "seed": "failed: WHY"}}]}}

`package`, `oldest` and `notes` are written by hand, the others by the runs. A note is on the releases before one, or on all.
`tested` is null if no release passes everything.

    {"claude": {"2.1.148": {"date": "2026-11-23", "behaviour": {"application tools": "parallel"}}}}

is the day on which each release was checked last, and what checks have returned about it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.matrix.releases import Release, number

ROOT = Path(__file__).parents[2]
PASSED = "passed"

Json = dict[str, Any]


@dataclass(frozen=True)
class Files:
    """The two files, and the page that is written from them."""

    results: Path
    runs: Path
    page: Path


FILES = Files(ROOT / "drivers" / "compatibility.json", Path(__file__).with_name("runs.json"), ROOT / "docs" / "compatibility.md")


def load(path: Path) -> Json:
    """One of the two files."""
    found: Json = json.loads(path.read_text())
    return found


def save(results: Mapping[str, Json], path: Path) -> None:
    """Write one of the two files in one step, so that an interrupted run leaves a whole file."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    os.replace(temporary, path)


def entry(release: Release, checks: Mapping[str, str]) -> Json:
    """The result of one release."""
    return {"version": release.version, "date": release.date, "checks": dict(checks)}


def merged(cli: Mapping[str, Any], new: Sequence[Json]) -> Json:
    """The results of a CLI with new entries, which replace those of the same releases."""
    by_version = {found["version"]: found for found in (*cli["releases"], *new)}
    releases = sorted(by_version.values(), key=lambda found: number(found["version"]))
    return {**cli, "tested": tested(releases, cli["oldest"]), "releases": releases}


def merged_runs(runs: Mapping[str, Json], day: str, behaviour: Mapping[str, Mapping[str, str]]) -> Json:
    """The runs of a CLI, by release, after one of this day: what it says of a release replaces what was said before."""
    known = {**runs, **{version: {"date": day, "behaviour": dict(words)} for version, words in behaviour.items()}}
    return {version: known[version] for version in sorted(known, key=number)}


def passes(found: Mapping[str, Any]) -> bool:
    """Whether a release has passed every check."""
    return all(result == PASSED for result in found["checks"].values())


def tested(releases: Iterable[Json], oldest: str) -> Json | None:
    """The newest release that passes everything, and the oldest one before it without a failed one in between."""
    last: Json | None = None
    first = None
    for found in reversed([found for found in releases if number(found["version"]) >= number(oldest)]):
        if passes(found):
            last, first = last or found, found
        elif last is not None:
            break
    return None if last is None or first is None else {"from": first["version"], "to": last["version"]}


def regressions(before: Sequence[Json], now: Sequence[Json]) -> list[str]:
    """What is worse now: the failed checks of releases that have not failed there before, a line each."""
    earlier = {found["version"]: found["checks"] for found in before}
    lines = []
    for found in now:
        for name, result in found["checks"].items():
            known = earlier.get(found["version"], {}).get(name)
            if result != PASSED and (known is None or known == PASSED):
                was = "has passed before and now" if known == PASSED else "is new and"
                lines.append(f"{found['version']}: {name} {was} {result}")
    return lines


def unlike_neighbours(now: Sequence[Json]) -> list[tuple[Json, Json]]:
    """The neighbours of which one passes everything and the other does not, in the order of their versions."""
    ordered = sorted(now, key=lambda found: number(found["version"]))
    return [(older, newer) for older, newer in pairwise(ordered) if passes(older) != passes(newer)]
