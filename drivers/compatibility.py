"""Which versions of each CLI are supported and tested, and what was noticed with which version: compatibility.json, and the
catalogue of ACP agents."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from drivers.acp.catalogue import catalogue

FILE = Path(__file__).with_name("compatibility.json")
NUMBERS = re.compile(r"\d+(?:\.\d+)*")
PASSED = "passed"
ANY_VERSION = "0"
"""The oldest supported version where none is too old."""

Support = Literal["tested", "newer", "older", "unsupported"]
"""Of a version: in the range of tested versions; above it; below it, or not tested; below the oldest supported one."""


@dataclass(frozen=True)
class Release:
    """A tested version, the day of its release (ISO 8601), and the result of each check: `passed`, or `failed: ` and why."""

    version: str
    date: str
    checks: Mapping[str, str]


@dataclass(frozen=True)
class Note:
    """What is to be known of the versions before one; of all where that is None."""

    before: str | None
    text: str


@dataclass(frozen=True)
class Compatibility:
    """The versions of one driver's CLI, which `package` has in its registry.

    `oldest` is the oldest supported one. `tested_from` and `tested_to` are the oldest and the newest tested one, or None.
    """

    package: str
    oldest: str
    tested_from: str | None = None
    tested_to: str | None = None
    notes: tuple[Note, ...] = ()
    releases: tuple[Release, ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Compatibility:
        """Read a table of the file. Raises KeyError or TypeError for one that has not its format."""
        tested = table["tested"] or {"from": None, "to": None}
        releases = tuple(Release(**release) for release in table["releases"])
        notes = tuple(Note(**note) for note in table["notes"])
        return cls(table["package"], table["oldest"], tested["from"], tested["to"], notes, releases)

    def support(self, version: str) -> Support:
        """How well a version is supported."""
        number = _number(version)
        if number < _number(self.oldest):
            return "unsupported"
        if self.tested_from is None or self.tested_to is None or number < _number(self.tested_from):
            return "older"
        return "newer" if number > _number(self.tested_to) else "tested"

    def notes_on(self, version: str) -> list[str]:
        """What is to be known of a version: the notes on it, and each check that has failed with it."""
        known = (note.text for note in self.notes if note.before is None or _number(version) < _number(note.before))
        checks = next((release.checks for release in self.releases if release.version == version), {})
        return [*known, *(f"{name}: {result}" for name, result in checks.items() if result != PASSED)]


@cache
def compatibility() -> Mapping[str, Compatibility]:
    """The tables of all drivers that have one, by the driver's name. An agent of the catalogue is tested with one version."""
    tested = {
        name: Compatibility(agent.install.rpartition(" ")[2], ANY_VERSION, agent.version, agent.version)
        for name, agent in catalogue().items()
        if agent.tested
    }
    return {**tested, **{driver: Compatibility.of(table) for driver, table in json.loads(FILE.read_bytes()).items()}}


def support_of(driver: str, version: str | None) -> Support | None:
    """How well a version of a driver's CLI is supported; None without a version, or a table of the driver."""
    table = compatibility().get(driver)
    return None if table is None or version is None else table.support(version)


def too_old(driver: str, version: str | None) -> str | None:
    """That a version is older than the oldest supported one, in words; None for other versions."""
    if support_of(driver, version) != "unsupported":
        return None
    return f"{version} is older than {compatibility()[driver].oldest}, the oldest version that is supported"


def _number(version: str) -> tuple[int, ...]:
    """The numbers of a version, without what follows them, such as `-preview.1`."""
    found = NUMBERS.search(version)
    numbers = [int(part) for part in found.group().split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
