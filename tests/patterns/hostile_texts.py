"""Texts that take a pattern the most time: parts of what it matches, many times, behind a beginning and before an end.

The parts are made of the parsed pattern, so that a new pattern has its own texts. They are measured in CPU time, which a busy
machine does not change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

_parser: Any = re._parser  # type: ignore[attr-defined]  # Private, and the only parser of this grammar.
_c: Any = re._constants  # type: ignore[attr-defined]

FEW = (10, 14, 18, 24)
"""Repeats at which time that doubles with each of them is noticed, before it takes minutes."""
SHORTEST, SHORT, MEDIUM, LONG = 300, 1_000, 10_000, 100_000
"""Characters. All texts are measured when they are shortest, and those that took the most time when they are longer."""
SLOWEST = 5
MAX_UNITS, MAX_BEGINNINGS = 250, 6
ENDS = ("\x00", "", "!\n")
CHARACTERS = "a0 -_.:/\\\"'`=<>()[]{}$&|;!@%+*?#~,^\n\t\r\x00\x1b\x85éZ\u2028"
"""From which the characters of a class are chosen."""

MOST_FEW, MOST_SHORT = 0.02, 0.01
"""Seconds of CPU time for a few repeats, and for a short text."""
MOST_MEDIUM, MOST_LONG = 0.1, 1.0
"""The same for medium and long texts."""
GROWTH = 30
"""How much more time a longer text may take, at least SMALLEST before. Ten times the length is 10 for linear time, and 100 for
the square of the length."""
SMALLEST = 0.001
"""Seconds that count as this much: less is not measured well."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """A text of any length: a unit that is repeated between a beginning and an end."""

    beginning: str
    unit: str
    end: str

    def repeated(self, times: int) -> str:
        return self.beginning + self.unit * times + self.end

    def of_length(self, length: int) -> str:
        return self.repeated(length // len(self.unit) + 1)


def problem(pattern: re.Pattern[Any], use: str) -> str | None:
    """Return what shows that a use of the pattern (`match`, `search`, `fullmatch` or `finditer`) takes more than linear time."""
    run = _runner(pattern, use)
    times = list[tuple[float, Hostile]]()
    for text in hostile_texts(pattern):
        for repeats in FEW:
            if (took := run(text.repeated(repeats), MOST_FEW)) > MOST_FEW:
                return f"{use} takes {took:.2f} s for {text.repeated(repeats)!r}"
        short = run(text.of_length(SHORTEST), MOST_SHORT)
        if short > MOST_SHORT:
            return f"{use} takes {short:.3f} s for {SHORTEST} characters, as of {text}"
        times.append((short, text))
    times.sort(key=lambda item: -item[0])
    for before, text in times[:SLOWEST]:
        for length, most in ((SHORT, MOST_SHORT), (MEDIUM, MOST_MEDIUM), (LONG, MOST_LONG)):
            most = min(most, GROWTH * max(before, SMALLEST))
            if (took := run(text.of_length(length), most)) > most:
                return f"{use} takes {before:.4f} s for a shorter text, and {took:.4f} s for {length} characters, as of {text}"
            before = took
    return None


def hostile_texts(pattern: re.Pattern[Any]) -> Iterator[Hostile]:
    """Yield the texts for a pattern."""
    parsed = list(_parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG))
    parts = list(_sequences(parsed))
    own = "".join(dict.fromkeys(chr(value) for items in parts for kind, value in items if kind is _c.LITERAL))
    samples = _Samples(own)
    units, beginnings = dict[str, None](), {"": None, "\x00": None}
    for items in parts:
        for start, stop in product(range(len(items)), range(1, 5)):
            units |= dict.fromkeys(samples.of(items[start : start + stop]))
        units |= dict.fromkeys(samples.of(items))
    for stop in range(1, len(parsed) + 1):
        beginnings |= dict.fromkeys(samples.of(parsed[:stop])[:1])
    units.pop("", None)
    shown = list(beginnings)[:: max(1, len(beginnings) // MAX_BEGINNINGS)]
    for beginning, unit, end in product(shown, islice(units, MAX_UNITS), ENDS):
        yield Hostile(beginning, unit, end)


def _runner(pattern: re.Pattern[Any], use: str) -> Callable[[str, float], float]:
    """Return a function that measures one use on a text, in seconds of CPU time; again, if it took longer than expected."""
    encode = isinstance(pattern.pattern, bytes)

    def once(given: Any) -> float:
        before = time.thread_time()
        if use == "finditer":
            for _ in pattern.finditer(given):
                pass
        else:
            getattr(pattern, use)(given)
        return time.thread_time() - before

    def run(text: str, expected: float) -> float:
        given = text.encode("latin-1", "replace") if encode else text
        took = once(given)
        return min(took, once(given)) if took > expected else took

    return run


def _sequences(items: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the items of a pattern, and those of each group, branch and assertion in it."""
    yield list(items)
    for kind, value in items:
        for inner in _inner(kind, value):
            yield from _sequences(list(inner))


def _inner(kind: Any, value: Any) -> Iterable[Any]:
    if kind in _REPEATS:
        return [value[2]]
    if kind is _c.SUBPATTERN:
        return [value[3]]
    if kind is _c.ATOMIC_GROUP:
        return [value]
    if kind is _c.BRANCH:
        return list(value[1])
    if kind in (_c.ASSERT, _c.ASSERT_NOT):
        return [value[1]]
    return []


class _Samples:
    """Texts that parts of a pattern match, with several characters of their classes. `own` has the characters of the pattern."""

    def __init__(self, own: str) -> None:
        self._own = own[:3] + own[3:][-2:]

    def of(self, items: Sequence[Any]) -> list[str]:
        """Return texts that the items match. Assertions are not looked at."""
        found = [""]
        for kind, value in items:
            texts = self._of_item(kind, value) or [""]
            count = max(len(found), len(texts))
            found = [found[n % len(found)] + texts[n % len(texts)] for n in range(count)]
        return list(dict.fromkeys(found))

    def _of_item(self, kind: Any, value: Any) -> list[str]:
        if kind is _c.LITERAL:
            return [chr(value)]
        if kind in (_c.NOT_LITERAL, _c.ANY, _c.IN):
            return self._of_class([(_c.NEGATE, None), (_c.LITERAL, value)] if kind is _c.NOT_LITERAL else value)
        if kind in _REPEATS:
            return [text * max(value[0], 1) for text in self.of(list(value[2]))]
        if kind is _c.BRANCH:
            return [text for branch in value[1] for text in self.of(list(branch))[:2]]
        inner = _inner(kind, value) if kind in (_c.SUBPATTERN, _c.ATOMIC_GROUP) else ()
        return [text for items in inner for text in self.of(list(items))] or [""]

    def _of_class(self, items: Sequence[Any] | None) -> list[str]:
        named = [chr(value if kind is _c.LITERAL else value[0]) for kind, value in items or () if kind in (_c.LITERAL, _c.RANGE)]
        inside = [char for char in (*CHARACTERS, *named, *self._own) if items is None or _is_in_class(items, char)]
        special = [char for char in (*self._own, *named[:3]) if char in inside]
        return list(dict.fromkeys([*inside[:3], *special]))


_REPEATS = (_c.MAX_REPEAT, _c.MIN_REPEAT, _c.POSSESSIVE_REPEAT)


def _is_in_class(items: Sequence[Any], char: str) -> bool:
    inside = negated = False
    for kind, value in items:
        if kind is _c.NEGATE:
            negated = True
        elif kind is _c.LITERAL:
            inside = inside or ord(char) == value
        elif kind is _c.RANGE:
            inside = inside or value[0] <= ord(char) <= value[1]
        elif kind is _c.CATEGORY:
            inside = inside or re.match(_CATEGORIES[value], char) is not None
    return inside != negated


_CATEGORIES = {
    _c.CATEGORY_DIGIT: r"\d", _c.CATEGORY_NOT_DIGIT: r"\D", _c.CATEGORY_SPACE: r"\s", _c.CATEGORY_NOT_SPACE: r"\S",
    _c.CATEGORY_WORD: r"\w", _c.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
