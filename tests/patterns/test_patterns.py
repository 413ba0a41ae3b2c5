"""Every regular expression has a reason why it takes linear time, and is measured on texts that would show otherwise."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from tests.patterns.hostile_texts import problem
from tests.patterns.python_patterns import Found, modules, other_engines, python_patterns
from tests.patterns.reasons import BUILT, REASONS
from tests.patterns.script_patterns import literals, overlooked, script_patterns, scripts

FILES = sorted({*REASONS, *(file for file, _ in BUILT)})


def _measured(found: Found) -> tuple[re.Pattern[Any], frozenset[str]] | None:
    """Return the pattern, or one that is made as it is, and its uses. None without an entry."""
    if found.pattern is not None:
        return (found.pattern, found.uses) if found.expression in REASONS.get(found.file, {}) else None
    built = BUILT.get((found.file, found.expression))
    return (built.example, frozenset({built.use})) if built is not None else None


@cache
def _all() -> tuple[Found, ...]:
    return (*python_patterns(), *script_patterns())


def test_each_pattern_has_a_reason() -> None:
    without = [f"{found.file}: {found.expression}" for found in _all() if _measured(found) is None]
    assert not without, "write in tests/patterns/reasons.py why these take linear time on any text"


def test_no_reason_is_left_of_a_pattern_that_is_gone() -> None:
    found = {(one.file, one.expression) for one in _all()}
    entries = {(file, expression) for file, reasons in REASONS.items() for expression in reasons} | BUILT.keys()
    assert entries - found == set()


def test_patterns_are_made_in_no_other_way() -> None:
    assert len(modules()) > 300
    assert other_engines() == []
    assert [use for _, script in scripts() for use in overlooked(script)] == []


def test_patterns_of_scripts_are_found() -> None:
    script = "const a = b / 2; // /no/\nif (/x+/g.test(`${c.map((d) => { return /y[/]/; })} / ${1 / 2}`)) e.split(/z/);"
    assert [literal for _, literal in literals(script)] == ["/x+/g", "/y[/]/", "/z/"]
    assert overlooked("f(x) /y/.test(z); new RegExp(a)") != []


@pytest.mark.parametrize("file", FILES)
def test_time_grows_with_the_length_of_the_text(file: str) -> None:
    for found in _all():
        if found.file == file and not found.by_pydantic and (measured := _measured(found)) is not None:
            pattern, uses = measured
            assert [problem(pattern, use) for use in sorted(uses)] == [None] * len(uses), found.expression


@pytest.mark.parametrize(
    ("pattern", "use"),
    [
        (r"/+$", "search"),
        (r"(a+)+$", "match"),
        (r"\s*(\[exit code -?\d+\])?\Z", "finditer"),
        *(
            pytest.param(*noticed, marks=pytest.mark.long)
            for noticed in (
                (r"sh[^;&|]*\s[-+]\w*i", "search"),
                (r"(?i)--?[\w.-]*(key|token|secret|password|passwd|auth|header|credential)[\w.-]*", "fullmatch"),
                (r"(?m)^\s*//.*$", "finditer"),
                (r"\d+\.\d+", "search"),
                (r'"((?:[^"\\]|\\.)*)"', "finditer"),
            )
        ),
    ],
)
def test_a_pattern_that_takes_longer_is_noticed(pattern: str, use: str) -> None:
    """Most of these were in the code."""
    assert problem(re.compile(pattern), use) is not None
