"""RunOutput: passes the events of a run's agent to the log, the history and the metrics."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from drivers.contract.events import (
    AgentToken,
    Awaiting,
    Commands,
    Compacted,
    Error,
    Event,
    OutputEvent,
    SessionEnd,
    Stderr,
    Stdout,
    Thinking,
    Title,
    Usage,
)
from drivers.contract.messages import Message, ToolUseBlock, UserMessage
from gateway.events.event_log import REQUEST_TIMEOUT, EventLog
from gateway.events.log_entries import LogEvent, Steered
from gateway.events.messages import NO_REASON, Fold
from gateway.observability.metrics import RunMetrics
from gateway.runs.compaction import store_compaction
from gateway.runs.session_metadata import METADATA_EVENTS, store_metadata
from gateway.runs.store_retries import retried
from gateway.security.redaction import Redactor
from gateway.store import FailureRecord, KeyRecord, Store

# isinstance costs 0.7 us where it fails, through pydantic's metaclass; a look-up in a set 0.03 us.
_RAW: frozenset[type[Event]] = frozenset((Error, Stderr, Stdout))
CRASH_LINES, CRASH_CHARACTERS = 10, 2000
"""How much of standard error the error of a turn has if the agent crashes. The clients of a task get all lines as events."""
STORED_FIRST: frozenset[type[Event]] = METADATA_EVENTS | {Compacted}
"""Events that are stored in a table of their own before clients can see them."""


class RunOutput:
    """The output of one run. `flush` appends what was taken to the log, with the messages that it completes.

    `has_history`: the run is of a session, whose messages are stored; a task has none. `stop` is set when the run is stopped.

    Attributes:
        usage: What the agent has used in the turn at work; None if it has reported nothing.
        turns_over: The number of turns that are over.
        error: The reason of a failure that the agent has given last; None if there is none.
    """

    def __init__(
        self,
        log: EventLog,
        store: Store,
        redactor: Redactor,
        meter: RunMetrics,
        *,
        has_history: bool = False,
        stop: asyncio.Event | None = None,
    ) -> None:
        self._log, self._store, self._redactor, self._meter, self._has_history = log, store, redactor, meter, has_history
        self._stop = stop or asyncio.Event()
        self._fold = Fold()
        self._taken: list[OutputEvent] = []
        self._completed: list[tuple[int, Message]] = []
        self._stderr: deque[str] = deque(maxlen=CRASH_LINES)
        self.usage: Usage | None = None
        self.turns_over = 0
        self.error: str | None = None

    @property
    def unanswered(self) -> list[str]:
        """The calls without a result."""
        return list(self._fold.open)

    @property
    def waiting_messages(self) -> tuple[UserMessage, ...]:
        """The user's messages that wait for the end of the agent's message, or for the results of its calls."""
        return self._fold.waiting_messages

    def messages_stored(self, messages: Sequence[UserMessage]) -> None:
        """These messages wait no longer, because they are stored."""
        self._fold.drop_messages(len(messages))

    @property
    def steered_size(self) -> int:
        """The length of the user's messages that wait for the end of the agent's message."""
        return self._fold.steered_size

    def restore(self, calls: Mapping[str, ToolUseBlock], steered: Iterable[UserMessage]) -> None:
        """Begin with calls that were made, and messages that the user sent, before the first event; call it before all others."""
        self._fold = Fold(calls, steered)

    def answered(self, call_id: str) -> None:
        """A call has its result, which is stored."""
        self._fold.answer(call_id)

    def if_cancelled(self) -> list[Message]:
        """The messages that the end of the run would add after its last `awaiting`."""
        return self._fold.if_cancelled()

    def take(self, event: OutputEvent) -> None:
        """Takes an event in the middle of a turn."""
        if type(event) in _RAW:
            event = self._with_stderr(self._redactor.clean_event(event))
        elif type(event) is Usage:
            self.usage = event if self.usage is None else self.usage.plus(event)
        self._feed(event)
        self._taken.append(event)

    def _with_stderr(self, event: OutputEvent) -> OutputEvent:
        """Return the event; the error of an agent that has crashed gets its last lines of standard error, already redacted."""
        if isinstance(event, Stderr):
            self._stderr.append(event.line)
        elif isinstance(event, Error):
            self.error = event.message
            if self._stderr and self._has_history:
                self.error += ". The end of its standard error:\n" + "\n".join(self._stderr)[-CRASH_CHARACTERS:]
                return event.model_copy(update={"message": self.error})
        return event

    def take_deltas(self, events: Sequence[AgentToken | Thinking]) -> None:
        """Takes events of one kind in the middle of a turn."""
        # The first may be of another kind than the event before.
        self.take(events[0])
        others = events[1:]
        if others and self._fold.feed_deltas(others):
            self._taken += others
        else:
            for event in others:
                self.take(event)

    async def store_first(self, event: OutputEvent) -> None:
        """Takes one of STORED_FIRST. Metadata that is stored already is not sent to the client again."""
        if isinstance(event, Compacted):
            # It counts the messages so far.
            self.flush()
            await self._log.written(stop=self._stop)
            await retried(partial(store_compaction, self._store, self._log.log_id, event), self._stop, self._log.clock)
            self.take(event)
        elif isinstance(event, Commands | Title) and await retried(
            partial(store_metadata, self._store, self._log.log_id, event), self._stop, self._log.clock
        ):
            self.take(event)

    def take_last(self, event: Awaiting | SessionEnd) -> list[Message]:
        """Takes what ends a turn: flushes, but leaves this event itself to its caller, who appends it next.

        Returns the messages that this event completes, to be stored with it.
        """
        self.flush()
        self._feed(event)
        return [message for _, message in self._take_completed()]

    def failure(self, event: Awaiting | SessionEnd) -> FailureRecord | None:
        """Returns why the run failed if this event, which was taken last, ends it so. None for a task."""
        return failure_of(self._fold, event) if self._has_history else None

    def turn_over(self) -> None:
        """The turn is over, and stored: what the agent uses from now on is of the next one."""
        self.usage = None
        self.turns_over += 1

    async def steered(self, message: UserMessage, key: KeyRecord | None = None) -> int:
        """Appends a message to the agent at work to the log, behind what was taken; returns the number of its event."""
        self.flush()
        event = Steered(message=message)
        self._feed(event)
        self._log.append([event], self._take_completed(), key)
        seq = self._log.last
        await self._log.written(REQUEST_TIMEOUT)
        return seq

    def flush(self) -> None:
        """Appends the taken events to the log, with the messages that they complete."""
        taken, self._taken = self._taken, []
        if taken:
            self._log.append(taken, self._take_completed())
            self._meter.record(taken)

    def drop(self) -> None:
        """Forget what was taken and is not in the log, with the messages that it completes."""
        self._taken, self._completed = [], []

    def _feed(self, event: LogEvent) -> None:
        completed = self._fold.feed(event)
        if completed and self._has_history:
            self._completed += [(len(self._taken), message) for message in completed]

    def _take_completed(self) -> list[tuple[int, Message]]:
        completed, self._completed = self._completed, []
        return completed


def failure_of(fold: Fold, event: Event) -> FailureRecord | None:
    """Returns why a run failed, whose events a fold has got up to this one. None if this event is not the end of a failed run."""
    if not isinstance(event, SessionEnd) or event.stop_reason != "error":
        return None
    return FailureRecord(fold.error or NO_REASON, not fold.has_text)
