"""Which releases are tested, with answers of `npm view` that were recorded on 2026-11-23."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.releases import Release, bisect, number, parse_since, pick, releases

RECORDED = Path(__file__).parent / "npm"
TODAY = date(2026, 11, 23)
SINCE = date(2026, 5, 24)
OLDEST = {"claude": "2.1.148", "codex": "0.137.0", "gemini": "0.44.0"}
NEWEST = {"claude": "2.1.330", "codex": "0.169.0", "gemini": "0.61.0"}


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def available(name: str) -> list[Release]:
    return releases(recorded(name), OLDEST[name])


def answer(times: dict[str, str], latest: str) -> dict[str, Any]:
    return {"versions": [*times], "time": {"created": "2020-01-01T00:00:00Z", **times}, "dist-tags": {"latest": latest}}


def on(version: str, day: int) -> Release:
    return Release(version, (date(2026, 1, 1) + timedelta(days=day)).isoformat())


@pytest.mark.parametrize("name", OLDEST)
def test_releases_are_ordered_and_have_no_suffix(name: str) -> None:
    found = available(name)
    assert (found[0].version, found[-1].version) == (OLDEST[name], NEWEST[name])
    assert [release.number for release in found] == sorted(release.number for release in found)
    days = [release.day for release in found]
    assert all(day - timedelta(days=2) < min(days[n:]) for n, day in enumerate(days)), "a later number has an earlier day"


def test_pre_releases_builds_for_a_platform_and_what_is_above_latest_are_left_out() -> None:
    times = {f"1.0.{n}": f"2026-06-0{n}T00:00:00Z" for n in range(1, 6)}
    more = {version: "2026-06-03T12:00:00Z" for version in ("1.0.3-alpha.1", "1.0.3-linux-x64", "1.0.4-nightly.2026")}
    found = releases(answer(times | more, "1.0.4"), "1.0.2")
    assert [release.version for release in found] == ["1.0.2", "1.0.3", "1.0.4"]


def test_releases_that_were_published_again_are_left_out() -> None:
    left = {"codex": ["0.143.0", "0.150.0"], "claude": ["2.1.182", "2.1.213"], "gemini": ["0.47.0"]}
    for name, versions in left.items():
        assert not {release.version for release in available(name)} & set(versions)
        assert set(versions) <= set(recorded(name)["versions"])


def test_a_patch_of_an_older_line_stays() -> None:
    """codex 0.152.1 was published a day after 0.153.0."""
    assert {"0.152.1", "0.153.0"} <= {release.version for release in available("codex")}


def test_the_oldest_stays_with_the_latest_day_on_which_it_can_have_appeared() -> None:
    assert recorded("gemini")["time"]["0.44.0"].startswith("2026-09-16")
    assert available("gemini")[:2] == [Release("0.44.0", "2026-06-09"), Release("0.45.2", "2026-06-09")]


def test_an_oldest_release_that_npm_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"npm does not have version 9\.9\.9"):
        releases(recorded("codex"), "9.9.9")


def test_seven_releases_are_spread_over_six_months() -> None:
    versions = {name: [release.version for release in pick(available(name), SINCE, 7)] for name in OLDEST}
    assert versions == {
        "claude": ["2.1.148", "2.1.187", "2.1.218", "2.1.240", "2.1.280", "2.1.306", "2.1.330"],
        "codex": ["0.137.0", "0.142.5", "0.145.0", "0.149.1", "0.155.1", "0.163.0", "0.169.0"],
        "gemini": ["0.44.0", "0.45.2", "0.51.0", "0.53.0", "0.56.0", "0.59.0", "0.61.0"],
    }


def test_one_is_the_newest_and_two_are_both_ends() -> None:
    found = available("claude")
    assert pick(found, SINCE, 1) == [found[-1]]
    assert pick(found, SINCE, 2) == [found[0], found[-1]]


def test_releases_before_the_span_are_left_out_but_for_the_oldest() -> None:
    found = pick(available("claude"), date(2026, 10, 1), 5)
    assert found[0].version == "2.1.148" and len(found) == 5
    assert all(release.day >= date(2026, 10, 1) for release in found[1:])


def test_fewer_releases_than_wanted_are_all_of_them() -> None:
    found = [on("1.0.0", 0), on("1.1.0", 5), on("1.2.0", 10)]
    assert pick(found, date(2026, 1, 1), 7) == found


def test_versions_are_compared_as_numbers() -> None:
    assert number("0.9.0") < number("0.10.0") < number("0.10.1")


@pytest.mark.parametrize(("text", "days"), [("10d", 10), ("3w", 21), ("6m", 183), ("1y", 365)])
def test_span_of_time(text: str, days: int) -> None:
    assert parse_since(text, TODAY) == TODAY - timedelta(days=days)


@pytest.mark.parametrize("text", ["", "6", "m", "6 m", "-1m", "6months"])
def test_no_span_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="such as 6m"):
        parse_since(text, TODAY)


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("first", range(21))
async def test_bisecting_finds_the_first_that_differs(first: int, older: bool) -> None:
    between = [on(f"1.0.{n}", n) for n in range(20)]
    asked: dict[int, bool] = {}

    async def passes(release: Release) -> bool:
        assert release.number[2] not in asked, "asked twice"
        asked[release.number[2]] = (release.number[2] >= first) != older
        return asked[release.number[2]]

    await bisect(between, older, passes, 10)
    assert len(asked) <= 5
    assert first == 20 or asked[first] != older
    assert first == 0 or asked[first - 1] == older


async def test_bisecting_is_bounded() -> None:
    between = [on(f"1.0.{n}", n) for n in range(1000)]
    asked: list[Release] = []

    async def passes(release: Release) -> bool:
        asked.append(release)
        return False

    await bisect(between, True, passes, 5)
    assert len(asked) == 5


async def test_bisecting_without_releases_in_between() -> None:
    async def passes(release: Release) -> bool:
        raise AssertionError(release)

    await bisect([], True, passes, 5)
