"""Pages of a session's event log, forwards or backwards from any number, as the stored JSON. Nothing is decoded.

Only stored events are in a page. The newest events, which are not stored yet, come from `EventLog.read`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic_core import to_json

from gateway.store import Store

MAX_PAGE_BYTES = 1024 * 1024
"""How much JSON one page is made of, about. A single event, or a row of the store, may be larger."""
WHOLE_TURNS = 4
"""A page has whole turns where they have this many times the requested events at most."""
LOST = "the gateway was killed; what had these numbers, if anything, was not stored yet and cannot be replayed"
_TURN_START = b'{"kind":"turn_start"'
_DELTAS = (b'{"kind":"agent_token","text":"', b'{"kind":"thinking","text":"')
_TOOL_OUTPUT, _TEXT = b'{"kind":"tool_output",', b',"text":"'
_TOOL_INPUT, _NAME = b'{"kind":"tool_input",', b',"name":"'
_END = b'"}'
# Deltas come by the thousand: successive ones of a kind are found and joined at once, which takes a tenth of the time.
_RUNS = re.compile(b"|".join(b"(?:%b[^\n]*+(?:\n|$))++" % re.escape(prefix) for prefix in _DELTAS) + rb"|[^\n]*+(?:\n|$)")

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


class _Part(NamedTuple):
    """The events `first` to `last` as one event. Successive parts with the same `group` are merged; None stands alone."""

    first: int
    last: int
    group: bytes | None
    data: bytes


def gap(first: int, last: int) -> bytes:
    """Return what stands for numbers that no event has, as JSON."""
    return to_json({"kind": "gap", "from": first, "to": last, "reason": LOST})


async def page_before(store: Store, log_id: str, before: int, limit: int, *, merge: bool = False) -> LogPage:
    """Return the last `limit` stored events before a number, or some more or less where that gives whole turns.

    With `merge`, successive deltas of one kind, or of one call, are one event.
    """
    collected, position = _Collected(limit), before
    while not collected.full:
        rows = await store.events.read_before(log_id, position)
        if not rows:
            break
        # Splitting rows with many small events takes milliseconds.
        await asyncio.to_thread(collected.add_older, _clipped(rows, end=position), merge)
        position = rows[-1][0]
    parts = collected.parts[::-1]
    first = parts[0].first if parts else before
    return LogPage(_events(parts, first, before), first, before - 1, collected.full and first > 1)


async def page_after(store: Store, log_id: str, after: int, limit: int, *, merge: bool = False) -> LogPage:
    """Return the first `limit` stored events after a number, as `page_before`."""
    collected, position = _Collected(limit), after
    while not collected.full:
        rows = await store.events.read(log_id, position)
        if not rows:
            break
        await asyncio.to_thread(collected.add_newer, _clipped(rows, after=position), merge)
        number, body = rows[-1]
        position = number + body.count(b"\n")
    parts = collected.parts
    last = parts[-1].last if parts else after
    return LogPage(_events(parts, after + 1, last + 1), after + 1, last, collected.full)


class _Collected:
    """The parts of a page in the order of reading, until it is `full`."""

    def __init__(self, limit: int) -> None:
        self.parts: list[_Part] = []
        self.full = False
        self._limit = limit
        self._count = self._size = 0
        self._whole = self._at_limit = 0
        """How many parts are whole turns, and how many are `limit` events."""

    def add_older(self, rows: Iterable[tuple[int, bytes]], merge: bool) -> None:
        """Add rows before those so far, the newest first."""
        for number, body in rows:
            for part in reversed(list(_split(number, body, merge))):
                self._take(part)
                if part.data.startswith(_TURN_START):
                    self._whole = len(self.parts)
                    if self._count >= self._limit:
                        return self._end()
                if self._too_large:
                    return self._end()

    def add_newer(self, rows: Iterable[tuple[int, bytes]], merge: bool) -> None:
        """Add rows after those so far."""
        for number, body in rows:
            for part in _split(number, body, merge):
                if part.data.startswith(_TURN_START):
                    self._whole = len(self.parts)
                    if self._count >= self._limit:
                        return self._end()
                if self._too_large:
                    return self._end()
                self._take(part)

    def _take(self, part: _Part) -> None:
        if not self.parts or part.group is None or part.group != self.parts[-1].group:
            if self._count == self._limit:
                self._at_limit = len(self.parts)
            self._count += 1
        self.parts.append(part)
        self._size += len(part.data)

    @property
    def _too_large(self) -> bool:
        return self._count >= WHOLE_TURNS * self._limit or self._size >= MAX_PAGE_BYTES

    def _end(self) -> None:
        """Leave out what is too much: the part of a turn after whole ones, or else what is beyond the limit."""
        self.full = True
        del self.parts[self._whole or self._at_limit or len(self.parts) :]


def _clipped(rows: Iterable[tuple[int, bytes]], after: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The rows with the events after a number and before `end` only."""
    for number, body in rows:
        if number > after and (end is None or number + body.count(b"\n") < end):
            yield number, body
            continue
        first = max(number, after + 1)
        lines = body.split(b"\n")[first - number : None if end is None else end - number]
        if lines:
            yield first, b"\n".join(lines)


def _split(number: int, body: bytes, merge: bool) -> Iterator[_Part]:
    """The parts of a row: its events, or with `merge` each run of deltas of one kind as one."""
    if not merge:
        for seq, line in enumerate(body.split(b"\n"), number):
            yield _Part(seq, seq, None, line)
        return
    for match in _RUNS.finditer(body):
        lines = match[0].removesuffix(b"\n")
        if not lines:
            continue
        group, count = _group_of(lines), lines.count(b"\n")
        # A line feed in a text is escaped, so that this is between two events.
        data = lines.replace(_END + b"\n" + group, b"") if count and group is not None else lines
        yield _Part(number, number + count, group, data)
        number += count + 1


def _events(parts: Iterable[_Part], first: int, end: int) -> list[Line]:
    """The events of a page from `first` to before `end`, with its gaps, and merged."""
    found: list[Line] = []
    run: list[_Part] = []
    for part in parts:
        if run and (part.group is None or part.group != run[-1].group or part.first != run[-1].last + 1):
            found.append(_joined(run))
            run = []
        if part.first > first:
            found.append((part.first - 1, gap(first, part.first - 1)))
        run.append(part)
        first = part.last + 1
    if run:
        found.append(_joined(run))
    if end > first:
        found.append((end - 1, gap(first, end - 1)))
    return found


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


def _joined(run: Sequence[_Part]) -> Line:
    last, group = run[-1], run[-1].group
    if len(run) == 1 or group is None or group.startswith(_TOOL_INPUT):
        # Each event about a call that is being written has the members of those before.
        return last.last, last.data
    # The bodies of JSON strings can be joined: no escape sequence is divided between two of them.
    return last.last, group + b"".join([part.data[len(group) : -len(_END)] for part in run]) + _END
