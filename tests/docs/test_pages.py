"""The pages of the documentation: their links lead somewhere, and nothing is said twice or about what is not there."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    missing = [link for link in links if not _is_there(page, link)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_is_said_twice(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    lines = Counter(line for line in text.splitlines() if len(line) > 60)
    assert not [line for line, number in lines.items() if number > 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_heading_stands_alone(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    assert not [line for before, line in pairwise(text.splitlines()) if line.startswith("#") and before.strip()]


def test_the_changelog_has_each_kind_of_change_once() -> None:
    unreleased = (ROOT / "CHANGELOG.md").read_text().partition("## Unreleased")[2].partition("\n## ")[0]
    kinds = re.findall(r"^### (\w+)$", unreleased, re.MULTILINE)
    assert kinds == [kind for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security") if kind in kinds]


def test_the_rooms_name_every_module_of_the_gateway_once() -> None:
    rooms = (ROOT / "docs" / "architecture.md").read_text().partition("## Rooms")[2]
    tree = rooms.partition("gateway/")[2].partition("\ndrivers/")[0]
    named = Counter(re.findall(r"(?<![/\w])(\w+)\.py", _without_folders(tree)))
    there = {file.stem for file in (ROOT / "gateway").glob("*.py") if not file.stem.startswith("__")}
    assert there - {*named} == set()
    assert {*named} - there == set()
    assert [name for name, number in named.items() if number > 1] == []


def _without_folders(tree: str) -> str:
    """Only the modules that stand in the folder itself, not what is named inside of its folders or beside a module."""
    rows = [line.strip() for line in tree.splitlines() if re.match(r"  \S", line)]
    return "\n".join(re.split(r"\s{2,}", row)[0] for row in rows if not re.match(r"\S+/", row)).replace(",", " ")


def _is_there(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page if not path else (page.parent / path)
    if not target.exists():
        return False
    if not anchor:
        return True
    headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
