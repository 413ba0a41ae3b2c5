"""The page of tested releases, its JSON, and what the sources say of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.matrix import page, results
from tests.matrix.checks import CHECKS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = results.load(results.FILES.results)


def test_page_agrees_with_the_json() -> None:
    assert (DOCS / "compatibility.md").read_text() == page.page(RESULTS, results.load(results.FILES.runs)), (
        "run: python -m tests.matrix.page"
    )


def test_the_json_of_the_docs_is_that_of_the_drivers() -> None:
    assert (DOCS / "compatibility.json").is_symlink()
    assert (DOCS / "compatibility.json").resolve() == ROOT / "drivers" / "compatibility.json"


def test_the_json_has_the_members_that_drivers_read() -> None:
    for cli in RESULTS.values():
        assert {*cli} == {"package", "oldest", "tested", "notes", "releases"}
        assert all({*release} == {"version", "date", "checks"} for release in cli["releases"])


def test_tested_is_what_the_releases_say() -> None:
    for cli in RESULTS.values():
        assert cli["tested"] == results.tested(cli["releases"], cli["oldest"])


def test_supported_releases_passed_every_check() -> None:
    """Only a release that is newer than all tested ones may have failed."""
    assert {name: cli["oldest"] for name, cli in RESULTS.items()} == {"claude": "2.1.148", "codex": "0.137.0", "gemini": "0.44.0"}
    for name, cli in RESULTS.items():
        assert cli["tested"]["from"] == cli["oldest"], f"a release of {name} that is supported has failed"
        assert len(cli["releases"]) >= 6
        assert [each["version"] for each in cli["releases"] if {*each["checks"]} != {*CHECKS}] == []


def test_the_pinned_clis_are_tested() -> None:
    pinned: dict[str, Any] = json.loads((ROOT / "tests" / "real" / "package.json").read_text())["dependencies"]
    for name, cli in RESULTS.items():
        first, last, version = (results.number(text) for text in (*cli["tested"].values(), pinned[cli["package"]]))
        assert first <= version <= last, f"{name} {pinned[cli['package']]} is newer than what was tested"


def test_each_check_has_a_docstring_for_the_page() -> None:
    assert all(check.__doc__ and check.__doc__.endswith(".") for check in CHECKS.values())
