"""The releases of a package on npm, and which of them are tested."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NUMBERED = re.compile(r"\d+\.\d+\.\d+")
"""A version without a suffix: neither a pre-release nor the build for one platform."""
REPUBLISHED_AFTER = datetime.timedelta(days=2)
"""A release that appeared this long after one with a higher number was published again; npm has lost the time of the first."""
DAYS = {"d": 1, "w": 7, "m": 30.5, "y": 365.25}
VIEW_SECONDS = 60.0


@dataclass(frozen=True)
class Release:
    """A release, and the day on which it was published (ISO 8601); of one that was published again, the latest possible day."""

    version: str
    date: str

    @property
    def number(self) -> tuple[int, ...]:
        return number(self.version)

    @property
    def day(self) -> datetime.date:
        return datetime.date.fromisoformat(self.date)


def number(version: str) -> tuple[int, ...]:
    """A version as numbers, by which versions are ordered."""
    return tuple(map(int, version.split(".")))


async def view(package: str) -> dict[str, Any]:
    """The answer of npm: `versions`, `time` (version to ISO 8601) and `dist-tags`. Raises RuntimeError with its error."""
    process = await asyncio.create_subprocess_exec(
        "npm",
        "view",
        package,
        "time",
        "versions",
        "dist-tags",
        "--json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_UPDATE_NOTIFIER": "1"},
    )
    output, errors = await asyncio.wait_for(process.communicate(), VIEW_SECONDS)
    if process.returncode:
        raise RuntimeError(f"npm view {package} failed: {errors.decode().strip()}")
    found: dict[str, Any] = json.loads(output)
    return found


def releases(answer: Mapping[str, Any], oldest: str) -> list[Release]:
    """The releases from `oldest` to the tag `latest`, in the order of their numbers, without those that were published again.

    `oldest` is always among them. Raises ValueError if npm does not have it.
    """
    newest = number(answer["dist-tags"]["latest"])
    numbered = [version for version in answer["versions"] if NUMBERED.fullmatch(version) and version in answer["time"]]
    wanted = sorted((v for v in numbered if number(oldest) <= number(v) <= newest), key=number)
    if oldest not in wanted:
        raise ValueError(f"npm does not have version {oldest}, the oldest that is supported")
    found: list[Release] = []
    earliest = datetime.date.max
    for version in reversed(wanted):
        day = datetime.date.fromisoformat(answer["time"][version][:10])
        if day - REPUBLISHED_AFTER < earliest or version == oldest:
            found.append(Release(version, min(day, earliest).isoformat()))
        earliest = min(day, earliest)
    return found[::-1]


def pick(found: Sequence[Release], since: datetime.date, count: int) -> list[Release]:
    """The oldest and the newest of these releases, and others that were published since that day, evenly over the time.

    With a `count` of 1 only the newest.
    """
    oldest, newest = found[0], found[-1]
    if count == 1:
        return [newest]
    picked = {oldest, newest}
    between = [release for release in found if release.day >= since and release not in picked]
    first = max(since, oldest.day)
    for position in range(1, count - 1):
        target = first + (newest.day - first) * position / (count - 1)
        nearest = min(between, key=lambda release: abs(release.day - target), default=None)
        if nearest is not None:
            picked.add(nearest)
            between.remove(nearest)
    return sorted(picked, key=lambda release: release.number)


def parse_since(text: str, today: datetime.date) -> datetime.date:
    """The day that is this long ago, such as `10d`, `3w`, `6m` or `1y`. Raises ValueError."""
    matched = re.fullmatch(r"(\d+)([dwmy])", text)
    if not matched:
        raise ValueError(f"{text!r} is no span of time; write a number and d, w, m or y, such as 6m")
    return today - datetime.timedelta(days=int(matched[1]) * DAYS[matched[2]])


async def bisect(between: Sequence[Release], older: bool, passes: Callable[[Release], Awaitable[bool]], limit: int) -> None:
    """Halve the releases between two neighbours of which only one passes, until the first that differs from `older` is known.

    `older` is whether the older neighbour passes. `await passes(release)` tests one; it is called at most `limit` times.
    """
    low, high = 0, len(between)
    for _ in range(limit):
        if low == high:
            return
        middle = (low + high) // 2
        if await passes(between[middle]) == older:
            low = middle + 1
        else:
            high = middle
