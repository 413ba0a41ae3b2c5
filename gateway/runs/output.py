"""RunOutput: what a run's agent says, on its way into the log, the history and the figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from drivers.contract.events import Awaiting, Commands, Compacted, Error, Event, OutputEvent, SessionEnd, Stderr, Stdout, Title
from drivers.contract.messages import Message, ToolUseBlock, UserMessage
from gateway.events.event_log import EventLog
from gateway.events.log_entries import Steered
from gateway.events.messages import Fold
from gateway.observability.metrics import RunMetrics
from gateway.runs.compaction import store_compaction
from gateway.runs.session_metadata import METADATA_EVENTS, store_metadata
from gateway.security.redaction import Redactor
from gateway.store import Store

# isinstance costs 0.7 us where it fails, through pydantic's metaclass; a look into a set 0.03 us.
_RAW: frozenset[type[Event]] = frozenset((Error, Stderr, Stdout))
STORED_FIRST: frozenset[type[Event]] = METADATA_EVENTS | {Compacted}
"""What is stored in a place of its own before it is shown."""

Keep = Callable[[Sequence[Message]], Awaitable[None]]


async def keep_nothing(messages: Sequence[Message]) -> None:
    """For runs without a history."""


class RunOutput:
    """One run's. What was taken is shown by `flush`, all at once; `keep` stores the messages that are complete by then."""

    def __init__(self, log: EventLog, store: Store, redactor: Redactor, meter: RunMetrics, keep: Keep = keep_nothing) -> None:
        self._log, self._store, self._redactor, self._meter, self._keep = log, store, redactor, meter, keep
        self._fold = Fold()
        self._shown: list[OutputEvent] = []
        self._done: list[Message] = []

    @property
    def open_calls(self) -> list[str]:
        """The calls without a result."""
        return list(self._fold.open)

    def know(self, open_calls: Mapping[str, ToolUseBlock]) -> None:
        """Calls that were made before."""
        self._fold = Fold(open_calls)

    def answered(self, call_id: str) -> None:
        """A call has its result, which is stored."""
        self._fold.answer(call_id)

    def take(self, event: OutputEvent) -> None:
        """Something in the middle of a turn."""
        if type(event) in _RAW:
            event = self._redactor.clean_event(event)
        self._done += self._fold.feed(event)
        self._shown.append(event)

    async def store_first(self, event: OutputEvent) -> None:
        """One of STORED_FIRST. A compaction is about the messages so far; what the agent tells again is not shown again."""
        if isinstance(event, Compacted):
            self._done += self._fold.feed(event)
            await self._keep_done()
            await store_compaction(self._store, self._log.log_id, event)
            self._shown.append(event)
        elif isinstance(event, Commands | Title) and await store_metadata(self._store, self._log.log_id, event):
            self.take(event)

    async def take_last(self, event: Awaiting | SessionEnd) -> None:
        """What ends a turn: all before it is shown, and all messages are stored, when this returns; it is not shown itself."""
        self._done += self._fold.feed(event)
        await self.flush()

    async def steered(self, message: UserMessage) -> int:
        """What was said to the agent at work, shown at once and behind nothing that comes later; the number of its event."""
        event = Steered(message=message)
        self._log.append([event])
        seq = self._log.last
        if messages := self._fold.feed(event):
            await self._keep(messages)
        return seq

    async def flush(self) -> None:
        """Show what was taken, and store its messages."""
        shown, self._shown = self._shown, []
        if shown:
            self._log.append(shown)
            self._meter.record(shown)
        await self._keep_done()

    async def _keep_done(self) -> None:
        done, self._done = self._done, []
        if done:
            await self._keep(done)
