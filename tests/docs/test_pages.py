"""The documentation pages: valid links, no repeated lines, and a complete list of packages."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_link_targets_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    missing = [link for link in links if not _target_exists(page, link)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_long_line_is_repeated(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    lines = Counter(line for line in text.splitlines() if len(line) > 60)
    assert not [line for line, number in lines.items() if number > 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_headings_follow_an_empty_line(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    assert not [line for before, line in pairwise(text.splitlines()) if line.startswith("#") and before.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`((?:gateway|drivers|tests|benchmarks)/[\w/.]+\.\w+)", page.read_text()))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_changelog_has_each_kind_of_change_once() -> None:
    unreleased = (ROOT / "CHANGELOG.md").read_text().partition("## Unreleased")[2].partition("\n## ")[0]
    kinds = re.findall(r"^### (\w+)$", unreleased, re.MULTILINE)
    assert kinds == [kind for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security") if kind in kinds]


def test_architecture_page_names_every_package_once() -> None:
    packages = (ROOT / "docs" / "architecture.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    for root in ("gateway", "drivers"):
        tree = packages.partition(f"\n{root}/")[2].partition("```")[0].partition("\n\n")[0]
        named = Counter(re.findall(r"^  (\w+)(?:/|\.py) ", tree, re.MULTILINE))
        # Not a folder that only has the byte code of a package which was renamed.
        existing = {path.stem for path in (ROOT / root).iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
        assert {name for name in existing if not name.startswith("__")} == {*named}
        assert [name for name, number in named.items() if number > 1] == []


def _target_exists(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page if not path else (page.parent / path)
    if not target.exists():
        return False
    if not anchor:
        return True
    headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
