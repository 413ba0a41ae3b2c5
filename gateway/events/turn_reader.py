"""Turn: one exchange with a client, as a reader of its session's log."""

from __future__ import annotations

from collections.abc import AsyncIterator

from drivers.contract.events import Awaiting, Event, SessionEnd
from gateway.events.event_log import Entry, EventLog

LAST: frozenset[type[Event]] = frozenset((Awaiting, SessionEnd))
"""What ends a turn."""


class Turn:
    """One exchange over a run: what its log gets from here until the client has to act, or the run has ended."""

    def __init__(self, log: EventLog, after: int, *, through_waits: bool = False) -> None:
        self._log, self._after = log, after
        self.first = after + 1
        self._last = LAST - {Awaiting} if through_waits else LAST

    async def batches(self) -> AsyncIterator[list[Entry]]:
        """The turn's events as they come, in order; the last is `session_end`, or `awaiting` unless it goes through waits."""
        after = self._after
        while True:
            entries = await self._log.read(after)
            if not entries:
                return
            if not self._last.isdisjoint([type(entry[1]) for entry in entries]):
                end = next(n for n, entry in enumerate(entries, 1) if type(entry.event) in self._last)
                yield entries[:end]
                return
            after = entries[-1].seq
            yield entries
