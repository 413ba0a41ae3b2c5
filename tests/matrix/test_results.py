"""Merging of results, what `tested` says, what is worse than before, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.matrix import page, results
from tests.matrix.checks import CHECKS
from tests.matrix.releases import Release


def found(version: str, **failed: str) -> dict[str, Any]:
    checks = {name: f"failed: {failed[name]}" if name in failed else "passed" for name in CHECKS}
    return results.entry(Release(version, "2026-06-01"), checks)


NOTES = [{"before": None, "text": "A note."}, {"before": "0.9", "text": "Another."}]


def cli(*entries: dict[str, Any], oldest: str = "0.8.0") -> dict[str, Any]:
    return {"package": "@x/y", "oldest": oldest, "tested": None, "notes": NOTES, "releases": [*entries]}


def merge(before: dict[str, Any], *new: dict[str, Any]) -> dict[str, Any]:
    return results.merged(before, new)


PARALLEL, SERIAL = {"application tools": "parallel"}, {"application tools": "serial"}
RUNS = {version: {"date": "2026-11-23", "behaviour": SERIAL} for version in ("0.9.0", "0.10.0")}


def test_new_results_replace_those_of_the_same_release_and_are_ordered() -> None:
    before = cli(found("0.9.0", seed="lost"), found("0.10.0"))
    after = merge(before, found("0.11.0"), found("0.9.0"), found("0.8.0"))
    assert [(entry["version"], results.passes(entry)) for entry in after["releases"]] == [
        ("0.8.0", True),
        ("0.9.0", True),
        ("0.10.0", True),
        ("0.11.0", True),
    ]
    assert (after["package"], after["oldest"], after["notes"]) == ("@x/y", "0.8.0", NOTES)
    assert [entry["version"] for entry in before["releases"]] == ["0.9.0", "0.10.0"]


@pytest.mark.parametrize(
    ("entries", "tested"),
    [
        ([], None),
        ([found("0.9.0", seed="lost")], None),
        ([found("0.9.0")], ("0.9.0", "0.9.0")),
        ([found("0.8.0"), found("0.9.0"), found("0.10.0")], ("0.8.0", "0.10.0")),
        ([found("0.7.0"), found("0.8.0"), found("0.9.0")], ("0.8.0", "0.9.0")),
        ([found("0.8.0"), found("0.9.0", task="hangs"), found("0.10.0"), found("0.11.0")], ("0.10.0", "0.11.0")),
        ([found("0.8.0"), found("0.9.0"), found("0.10.0", task="hangs")], ("0.8.0", "0.9.0")),
    ],
)
def test_tested_are_the_newest_that_pass_without_a_failed_one_in_between(
    entries: list[dict[str, Any]], tested: tuple[str, str] | None
) -> None:
    expected = None if tested is None else {"from": tested[0], "to": tested[1]}
    assert merge(cli(), *entries)["tested"] == expected


def test_a_check_that_passed_or_is_new_and_fails_is_worse() -> None:
    before = [found("0.9.0"), found("0.10.0", seed="lost")]
    now = [found("0.9.0", task="hangs"), found("0.10.0", seed="still lost"), found("0.11.0", seed="lost", task="hangs")]
    assert results.regressions(before, now) == [
        "0.9.0: task has passed before and now failed: hangs",
        "0.11.0: task is new and failed: hangs",
        "0.11.0: seed is new and failed: lost",
    ]
    assert results.regressions(before, [found("0.9.0"), found("0.10.0")]) == []


def test_neighbours_of_which_one_passes() -> None:
    now = [found("0.11.0", seed="x"), found("0.8.0", seed="x"), found("0.10.0"), found("0.9.0")]
    pairs = [(older["version"], newer["version"]) for older, newer in results.unlike_neighbours(now)]
    assert pairs == [("0.8.0", "0.9.0"), ("0.10.0", "0.11.0")]


def test_results_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "compatibility.json"
    results.save({"x": merge(cli(), found("0.9.0"))}, path)
    assert results.load(path) == {"x": merge(cli(), found("0.9.0"))}
    assert [each.name for each in tmp_path.iterdir()] == ["compatibility.json"]


def test_page_has_a_row_for_each_release_and_the_reasons_of_failures() -> None:
    text = page.page({"x": merge(cli(), found("0.9.0", seed="the model's request lacks 'one'"), found("0.10.0"))}, {"x": RUNS})
    rows = [line for line in text.splitlines() if line.startswith("| 0.")]
    assert [row.split(" | ")[0] for row in rows] == ["| 0.10.0", "| 0.9.0"]
    assert rows[0].count("| ok ") == len(CHECKS) - 1 and "| serial |" in rows[0] and "**failed**" not in rows[0]
    assert rows[1].count("**failed**") == 1
    assert "* 0.9.0, seed: failed: the model's request lacks 'one'" in text
    assert "Supported: 0.8.0 and newer. Tested: 0.10.0 to 0.10.0." in text
    assert "* A note.\n* Before 0.9: Another.\n" in text


def test_page_of_a_release_without_some_check() -> None:
    entry = found("0.9.0")
    del entry["checks"]["seed"]
    assert "| not run |" in page.page({"x": merge(cli(), entry)}, {})


def test_a_run_replaces_the_day_and_the_words_of_its_releases_only() -> None:
    runs = results.merged_runs(RUNS, "2026-11-30", {"0.10.0": PARALLEL, "0.8.0": SERIAL})
    assert runs == {
        "0.8.0": {"date": "2026-11-30", "behaviour": SERIAL},
        "0.9.0": {"date": "2026-11-23", "behaviour": SERIAL},
        "0.10.0": {"date": "2026-11-30", "behaviour": PARALLEL},
    }
    assert [*runs] == ["0.8.0", "0.9.0", "0.10.0"]
    text = page.page({"x": merge(cli(), found("0.9.0"), found("0.10.0"))}, {"x": runs})
    checked = [line.split(" | ")[2] for line in text.splitlines() if line.startswith("| 0.")]
    assert checked == ["2026-11-30", "2026-11-23"]
    assert results.merged_runs({}, "2026-11-30", {}) == {}
