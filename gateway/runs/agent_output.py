"""RunOutput: passes the events of a run's agent to the log, the history and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drivers.contract.events import Awaiting, Commands, Compacted, Error, Event, OutputEvent, SessionEnd, Stderr, Stdout, Title
from drivers.contract.messages import Message, ToolUseBlock, UserMessage
from gateway.events.event_log import EventLog
from gateway.events.log_entries import LogEvent, Steered
from gateway.events.messages import Fold
from gateway.observability.metrics import RunMetrics
from gateway.runs.compaction import store_compaction
from gateway.runs.session_metadata import METADATA_EVENTS, store_metadata
from gateway.security.redaction import Redactor
from gateway.store import MessageRow, Store

# isinstance costs 0.7 us where it fails, through pydantic's metaclass; a look-up in a set 0.03 us.
_RAW: frozenset[type[Event]] = frozenset((Error, Stderr, Stdout))
STORED_FIRST: frozenset[type[Event]] = METADATA_EVENTS | {Compacted}
"""Events that are stored in a table of their own before clients can see them."""


class RunOutput:
    """The output of one run. `flush` appends what was taken to the log, with the messages that it completes.

    `has_history`: the run is of a session, whose messages are stored; a task has none.
    """

    def __init__(self, log: EventLog, store: Store, redactor: Redactor, meter: RunMetrics, *, has_history: bool = False) -> None:
        self._log, self._store, self._redactor, self._meter, self._has_history = log, store, redactor, meter, has_history
        self._fold = Fold()
        self._taken: list[OutputEvent] = []
        self._completed: list[tuple[int, Message]] = []
        self._numbered: list[MessageRow] = []

    @property
    def unanswered(self) -> list[str]:
        """The calls without a result."""
        return list(self._fold.open)

    @property
    def steered_size(self) -> int:
        """The length of the user's messages that wait for the end of the agent's message."""
        return self._fold.steered_size

    def add_calls(self, calls: Mapping[str, ToolUseBlock]) -> None:
        """Begin with calls that were made before the first event; call it before any other method."""
        self._fold = Fold(calls)

    def answered(self, call_id: str) -> None:
        """A call has its result, which is stored."""
        self._fold.answer(call_id)

    def if_cancelled(self) -> list[Message]:
        """The messages that the end of the run would add after its last `awaiting`."""
        return self._fold.if_cancelled()

    def take(self, event: OutputEvent) -> None:
        """Takes an event in the middle of a turn."""
        if type(event) in _RAW:
            event = self._redactor.clean_event(event)
        self._feed(event)
        self._taken.append(event)

    async def store_first(self, event: OutputEvent) -> None:
        """Takes one of STORED_FIRST. Metadata that is stored already is not sent to the client again."""
        if isinstance(event, Compacted):
            # It counts the messages so far.
            self.flush()
            await self._log.written()
            await store_compaction(self._store, self._log.log_id, event)
            self.take(event)
        elif isinstance(event, Commands | Title) and await store_metadata(self._store, self._log.log_id, event):
            self.take(event)

    def take_last(self, event: Awaiting | SessionEnd) -> Sequence[MessageRow]:
        """Takes what ends a turn: flushes, but leaves this event itself to its caller, who stores and publishes it next.

        Returns the messages that this event completes, to be stored with it. Call `stored_last` then.
        """
        self._feed(event)
        self.flush()
        return tuple(self._numbered)

    def stored_last(self) -> None:
        """What `take_last` returned is stored."""
        self._numbered.clear()

    async def steered(self, message: UserMessage) -> int:
        """Appends a message to the agent at work to the log, behind what was taken; returns the number of its event."""
        self._append_taken()
        event = Steered(message=message)
        self._feed(event)
        self._number_completed()
        self._append([event])
        seq = self._log.last
        await self._log.written()
        return seq

    def flush(self) -> None:
        """Appends the taken events to the log, with the messages that they complete."""
        self._append_taken()

    def _feed(self, event: LogEvent) -> None:
        self._completed += [(len(self._taken), message) for message in self._fold.feed(event)]

    def _append_taken(self) -> None:
        self._number_completed()
        taken, self._taken = self._taken, []
        if taken:
            self._append(taken)
            self._meter.record(taken)

    def _append(self, events: Sequence[LogEvent]) -> None:
        """Appends events to the log, with the messages numbered so far but for those that the next event completes."""
        last = self._log.last + len(events)
        completed = [row for row in self._numbered if (row.seq or 0) <= last]
        del self._numbered[: len(completed)]
        self._log.append(events, completed)

    def _number_completed(self) -> None:
        """Numbers the messages by the events that completed them, which are appended to the log next."""
        first = self._log.last + 1
        if self._has_history:
            self._numbered += [MessageRow(message.model_dump_json(), first + n) for n, message in self._completed]
        self._completed.clear()
