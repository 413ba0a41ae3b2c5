"""The table of supported versions: its file, and what it says of a version."""

from __future__ import annotations

from dataclasses import replace

import pytest

import drivers.driver_registry as driver_registry
from drivers.acp.catalogue import catalogue
from drivers.compatibility import Compatibility, Support, compatibility, support_of, too_old

TABLE = Compatibility.of(
    {
        "package": "a",
        "oldest": "1.2",
        "tested": {"from": "1.4.0", "to": "2.10.3"},
        "notes": [{"before": None, "text": "Slow."}, {"before": "1.6", "text": "No seeds."}],
        "releases": [{"version": "1.5.0", "date": "2026-11-01", "checks": {"task": "passed", "seed": "failed: it hangs"}}],
    }
)


@pytest.mark.parametrize(
    ("version", "support"),
    [
        ("1.1.99", "unsupported"),
        ("1.2.0", "older"),
        ("1.3", "older"),
        ("1.4", "tested"),
        ("2.9.10", "tested"),
        ("2.10.3", "tested"),
        ("2.10.4", "newer"),
        ("3.0.0-preview.1", "newer"),
    ],
)
def test_support_of_a_version(version: str, support: Support) -> None:
    assert TABLE.support(version) == support


def test_versions_without_a_tested_range_are_older() -> None:
    assert replace(TABLE, tested_from=None, tested_to=None).support("9.0") == "older"


def test_notes_are_on_versions_and_have_the_checks_that_failed() -> None:
    assert TABLE.notes_on("1.5.0") == ["Slow.", "No seeds.", "seed: failed: it hangs"]
    assert TABLE.notes_on("1.6.0") == ["Slow."]


def test_the_table_of_each_driver_with_a_package() -> None:
    drivers = driver_registry.load()
    assert {"claude", "codex", "gemini"} <= compatibility().keys() <= drivers.keys()
    for name, table in compatibility().items():
        assert table.package in drivers[name].info().program.install
        if table.tested_from is not None and table.tested_to is not None:
            assert table.support(table.tested_from) == table.support(table.tested_to) == "tested"
        assert table.support(table.oldest) != "unsupported"


@pytest.mark.parametrize("agent", ["opencode", "copilot", "vibe"])
def test_an_agent_of_the_catalogue_is_tested_with_one_version(agent: str) -> None:
    tested = catalogue()[agent].version
    major = int(tested.partition(".")[0])
    assert [support_of(agent, version) for version in (tested, f"{tested}.1", f"{major + 1}.0", f"{major - 1}.99")] == [
        "tested",
        "newer",
        "newer",
        "older",
    ]
    assert too_old(agent, "0.0.1") is None


def test_an_agent_that_no_test_runs_has_no_support() -> None:
    assert support_of("goose", catalogue()["goose"].version) is None


def test_no_support_without_a_version_or_a_table() -> None:
    assert support_of("claude", None) is support_of("echo", "1.0") is too_old("claude", None) is too_old("claude", "99") is None
    assert too_old("claude", "1.0.119") == "1.0.119 is older than 2.1.148, the oldest version that is supported"
