"""Pages of a session's event log, forwards or backwards from any number, as the stored JSON. Nothing is decoded.

Only stored events are in a page. The newest events, which are not stored yet, come from `EventLog.read`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic_core import to_json

from gateway.store import Store

MAX_PAGE_BYTES = 4 * 1024 * 1024
"""How much JSON one page is made of, about. A single event, or a row of the store, may be larger."""
WHOLE_TURNS = 4
"""A page has whole turns where they have this many times the requested events at most."""
LOST = "the gateway was killed; what had these numbers, if anything, was not stored yet and cannot be replayed"
_TURN_START = b'{"kind":"turn_start"'
_DELTAS = (b'{"kind":"agent_token","text":"', b'{"kind":"thinking","text":"')
_TOOL_OUTPUT, _TEXT = b'{"kind":"tool_output",', b',"text":"'
_TOOL_INPUT, _NAME = b'{"kind":"tool_input",', b',"name":"'
_END = b'"}'

Line = tuple[int, bytes]
"""The number of an event, and its JSON."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Events in order. `first` and `last` are the numbers that the page covers; `more`: there are others in its direction.

    Events that are merged have the number of the last of them, and a `gap` the last number that is missing.
    """

    events: Sequence[Line]
    first: int
    last: int
    more: bool


def gap(first: int, last: int) -> bytes:
    """Return what stands for numbers that no event has, as JSON."""
    return to_json({"kind": "gap", "from": first, "to": last, "reason": LOST})


async def page_before(store: Store, log_id: str, before: int, limit: int, *, merge: bool = False) -> LogPage:
    """Return the last `limit` stored events before a number, or some more or less where that gives whole turns.

    With `merge`, successive deltas of one kind, or of one call, are one event.
    """
    part = _Backwards(before, limit, merge)
    while not part.full:
        rows = await store.events.read_before(log_id, part.first)
        if not rows:
            break
        # Splitting rows with many small events takes milliseconds.
        await asyncio.to_thread(part.add, rows)
    lines = part.lines()
    first = lines[0][0] if lines else before
    events = await asyncio.to_thread(_page_events, lines, lines[0][0] if lines else before, before, merge)
    return LogPage(events, first, before - 1, part.full and first > 1)


async def page_after(store: Store, log_id: str, after: int, limit: int, *, merge: bool = False) -> LogPage:
    """Return the first `limit` stored events after a number, as `page_before`."""
    part = _Forwards(after, limit, merge)
    while not part.full:
        rows = await store.events.read(log_id, part.last)
        if not rows:
            break
        await asyncio.to_thread(part.add, rows)
    lines = part.lines()
    last = lines[-1][0] if lines else after
    events = await asyncio.to_thread(_page_events, lines, after + 1, last + 1, merge)
    return LogPage(events, after + 1, last, part.full)


class _Collected:
    """Lines in the order of reading, up to the size of a page. `cut` is how many of them are whole turns."""

    def __init__(self, limit: int, merge: bool) -> None:
        self._limit, self._merge = limit, merge
        self._lines: list[Line] = []
        self._count = self._size = self._cut = self._at_limit = 0
        self._group: bytes | None = None
        self.full = False

    def _take(self, line: Line) -> None:
        group = _group_of(line[1]) if self._merge else None
        if group is None or group != self._group:
            if self._count == self._limit:
                self._at_limit = len(self._lines)
            self._count += 1
        self._group = group
        self._lines.append(line)
        self._size += len(line[1])

    @property
    def _too_large(self) -> bool:
        return self._count >= WHOLE_TURNS * self._limit or self._size >= MAX_PAGE_BYTES

    def _mark(self) -> None:
        """The lines so far are whole turns."""
        self._cut = len(self._lines)

    def _end(self) -> None:
        """Leave out what is too much: the part of a turn after whole ones, or else what is beyond the limit."""
        self.full = True
        keep = self._cut or (self._at_limit if self._count > self._limit else 0) or len(self._lines)
        del self._lines[keep:]


class _Backwards(_Collected):
    def __init__(self, before: int, limit: int, merge: bool) -> None:
        super().__init__(limit, merge)
        self.first = before

    def add(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Add rows, the newest first."""
        for number, body in rows:
            lines = body.split(b"\n")
            for seq in range(min(number + len(lines), self.first) - 1, number - 1, -1):
                line = lines[seq - number]
                self._take((seq, line))
                self.first = seq
                if line.startswith(_TURN_START):
                    self._mark()
                    if self._count >= self._limit:
                        return self._end()
                if self._too_large:
                    return self._end()

    def lines(self) -> list[Line]:
        return self._lines[::-1]


class _Forwards(_Collected):
    def __init__(self, after: int, limit: int, merge: bool) -> None:
        super().__init__(limit, merge)
        self.last = after

    def add(self, rows: Iterable[tuple[int, bytes]]) -> None:
        for number, body in rows:
            for seq, line in enumerate(body.split(b"\n"), number):
                if seq <= self.last:
                    continue
                if line.startswith(_TURN_START) and self._lines:
                    self._mark()
                    if self._count >= self._limit:
                        return self._end()
                if self._too_large:
                    return self._end()
                self._take((seq, line))
                self.last = seq

    def lines(self) -> list[Line]:
        return self._lines


def _page_events(lines: Sequence[Line], first: int, end: int, merge: bool) -> list[Line]:
    """The lines with the gaps between `first` and before `end`, and merged if that is wanted."""
    numbered = list(_with_gaps(lines, first, end))
    return list(_merged(numbered)) if merge else numbered


def _with_gaps(lines: Iterable[Line], first: int, end: int) -> Iterator[Line]:
    expected = first
    for line in lines:
        if line[0] > expected:
            yield line[0] - 1, gap(expected, line[0] - 1)
        yield line
        expected = line[0] + 1
    if end > expected:
        yield end - 1, gap(expected, end - 1)


def _group_of(line: bytes) -> bytes | None:
    """What successive events that are merged have in common; None for an event that stands alone."""
    for prefix in _DELTAS:
        if line.startswith(prefix):
            return prefix
    if line.startswith(_TOOL_OUTPUT):
        # A quotation mark in the id is escaped, so that this cannot be in it.
        return line[: line.index(_TEXT) + len(_TEXT)]
    if line.startswith(_TOOL_INPUT):
        return line[: line.index(_NAME)]
    return None


def _merged(lines: Iterable[Line]) -> Iterator[Line]:
    group: bytes | None = None
    held: list[bytes] = []
    last = 0
    for seq, line in lines:
        found = _group_of(line)
        if held and (found is None or found != group):
            yield last, _join(group, held)
            held = []
        held.append(line)
        group, last = found, seq
    if held:
        yield last, _join(group, held)


def _join(group: bytes | None, lines: Sequence[bytes]) -> bytes:
    if len(lines) == 1 or group is None or group.startswith(_TOOL_INPUT):
        # Each event about a call that is being written has the members of those before.
        return lines[-1]
    # The bodies of JSON strings can be joined: no escape sequence is divided between two of them.
    return group + b"".join([line[len(group) : -len(_END)] for line in lines]) + _END
