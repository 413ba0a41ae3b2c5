"""StoredResponses: finds the responses that clients name by their ids, and reads them again from the logs of their sessions.

A response is the part of a log from the first event of a turn to the event after which its client is to act. The store keeps
where it begins and what it repeats of its request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from drivers.contract.events import Awaiting, SessionEnd
from drivers.runtime.clock import Timer
from gateway.app import Gateway
from gateway.errors import AgentProblem, NodeAway, NoNode, NotFound, StoreUnavailable
from gateway.events.event_log import Entry
from gateway.protocols.model_apis.answer import Answer
from gateway.protocols.model_apis.models import agent_name
from gateway.protocols.model_apis.responses_output import Json, ResponseView, forms_of
from gateway.runs.cancellation import completed
from gateway.security.authentication import Caller
from gateway.sessions.session import Session
from gateway.store import ResponseRecord, Store

log = logging.getLogger(__name__)

MAX_ITEMS = 256
"""Of how many responses the items are kept in memory, those that were used last."""
STORE_ENDS_AFTER = 0.5
"""Seconds in which the ends of responses are collected for one transaction: a transaction takes longer than all else here."""


class NoResponse(NotFound):
    """No response has this id, or it is another's."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response with its session."""

    record: ResponseRecord
    session: Session

    @property
    def fields(self) -> Mapping[str, Any]:
        """What it repeats of its request."""
        fields: Mapping[str, Any] = self.record.body["fields"]
        return fields

    @property
    def instructions(self) -> str | None:
        found: str | None = self.fields["instructions"]
        return found or None

    def view(self) -> ResponseView:
        return ResponseView(self.record.id, self.record.created_at, self.fields)

    def answer(self) -> Answer:
        """An answer that has read nothing yet."""
        called = forms_of(self.fields) if self._call_tools else ()
        structured = self.fields["text"]["format"]["type"] != "text"
        return Answer(called, self.record.body["show_tools"], merged=False, structured=structured)

    @property
    def _call_tools(self) -> bool:
        return bool(self.fields["tool_choice"] != "none")

    def ends(self, entry: Entry) -> bool:
        """Whether it ends with this event. Calls that wait for something else than the client's results are denied."""
        event = entry.event
        if isinstance(event, Awaiting):
            return self._call_tools and any(call.wants == "result" for call in event.calls)
        return isinstance(event, SessionEnd)

    def completed_at(self, answer: Answer) -> float:
        """When the response was complete, in seconds since the epoch."""
        return self.record.completed_at or self.record.created_at + answer.duration


class StoredResponses:
    """The responses of a gateway. Raises NoResponse for those of other callers, and for those whose session was deleted."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._unstored: dict[str, ResponseRecord] = {}
        self._items: OrderedDict[str, Sequence[Json]] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: dict[str, tuple[Store, int, float]] = {}
        self._storing_ends: Timer | None = None

    async def close(self) -> None:
        """Wait for what is in the background, which ends with the runs of the gateway."""
        while self._tasks or self._ends:
            if self._storing_ends is not None:
                self._storing_ends.cancel()
            self._store_ends()
            await asyncio.wait(self._tasks)
        self._unstored.clear()
        self._items.clear()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def add(self, record: ResponseRecord, session: Session) -> asyncio.Task[None]:
        """Let a response of a session be found from now on. The task ends when it is stored."""
        self._unstored[record.id] = record
        return self.run(self._store(record, session))

    async def _store(self, record: ResponseRecord, session: Session) -> None:
        # Its client gets the response all the same: it can be found until the gateway stops.
        with _logged(f"response {record.id} is not stored"):
            await session.store.responses.add(record)
            self._unstored.pop(record.id, None)

    def remove(self, record: ResponseRecord, stored: asyncio.Task[None]) -> None:
        """Forget a response that no client knows of, in the background once it is stored."""
        self._unstored.pop(record.id, None)
        self.run(self._remove(record.id, stored))

    async def _remove(self, response_id: str, stored: asyncio.Task[None]) -> None:
        await asyncio.shield(stored)
        with _logged(f"response {response_id} is not removed from the store"):
            await self._gateway.store.responses.delete(response_id)

    def set_over(self, record: ResponseRecord, session: Session, last: int, completed_at: float) -> None:
        """Note that a response of a session is over, with the number of its last event.

        It is stored within STORE_ENDS_AFTER seconds. Without it, after a kill, the end is found in the log.
        """
        self._ends[record.id] = session.store, last, completed_at
        if self._storing_ends is None:
            self._storing_ends = self._gateway.clock.call_later(STORE_ENDS_AFTER, self._store_ends)

    def _store_ends(self) -> None:
        self._storing_ends = None
        if self._ends:
            # One, or on a node of a cluster one for each session, which are committed together.
            of_stores: dict[Store, dict[str, tuple[int, float]]] = {}
            for response_id, (store, last, completed_at) in self._ends.items():
                of_stores.setdefault(store, {})[response_id] = last, completed_at
            for store, ends in of_stores.items():
                self.run(self._write_ends(store, ends))
            self._ends.clear()

    async def _write_ends(self, store: Store, ends: Mapping[str, tuple[int, float]]) -> None:
        with _logged("the ends of responses are not stored"):
            await store.responses.set_over(ends)

    def _with_end(self, record: ResponseRecord) -> ResponseRecord:
        """The record, with an end that is not stored yet."""
        _, last, completed_at = self._ends.get(record.id, (None, None, None))
        return record if last is None else replace(record, last_seq=last, completed_at=completed_at)

    async def get(
        self, caller: Caller, response_id: str, *, model: str | None = None, only_history: bool = False
    ) -> StoredResponse:
        """Return a response. Its session cannot be continued with `only_history`, or with a `model` of another agent.

        A node of a cluster reads such a session from the store, whichever node has it.
        """
        record = self._unstored.get(response_id)
        if record is None:
            record = await self._gateway.store.responses.get(response_id)
        if record is None:
            raise _none(response_id)
        return await self._with_session(caller, record, only_history or _of_other_agent(record, model))

    async def shown(self, caller: Caller, response_id: str) -> StoredResponse:
        """Return a response that is to be shown, also where no node can go on with its session."""
        try:
            return await self.get(caller, response_id)
        except (NoNode, NodeAway, AgentProblem):
            return await self.get(caller, response_id, only_history=True)

    async def newest(self, caller: Caller, conversation_id: str, *, model: str | None = None) -> StoredResponse | None:
        """Return the newest response of a conversation, None if it has none, or all were deleted with their sessions.

        `model` is as for `get`.
        """
        stored = await self._gateway.store.responses.newest(conversation_id)
        # Those that are not stored yet, too.
        records = [record for record in self._unstored.values() if record.conversation_id == conversation_id]
        if stored is not None and stored.id not in self._unstored:
            records.append(stored)
        for record in sorted(records, key=lambda record: record.created_at, reverse=True):
            try:
                return await self._with_session(caller, record, _of_other_agent(record, model))
            except NoResponse:
                if await self._gateway.store.responses.get(record.id) is not None:
                    raise
                # It was deleted with its session.
                self._unstored.pop(record.id, None)
        return None

    @asynccontextmanager
    async def alone_in(self, conversation_id: str | None) -> AsyncIterator[None]:
        """Let no other response of this conversation begin in the block."""
        if conversation_id is None:
            yield
            return
        async with self._locks.setdefault(conversation_id, asyncio.Lock()):
            yield

    async def _with_session(self, caller: Caller, record: ResponseRecord, only_history: bool) -> StoredResponse:
        sessions = self._gateway.sessions
        try:
            session = await (sessions.get_history if only_history else sessions.get)(caller, record.session_id)
        except NotFound:
            raise _none(record.id) from None
        return StoredResponse(self._with_end(record), session)

    async def delete(self, response: StoredResponse) -> None:
        """Delete a response: its id. What has been said stays in its session."""
        await completed(response.session.store.responses.delete(response.record.id))
        self._unstored.pop(response.record.id, None)
        self._items.pop(response.record.id, None)

    async def last_event(self, response: StoredResponse) -> int | None:
        """Return the number of its last event, None while it is not over."""
        if response.record.last_seq is not None:
            return response.record.last_seq
        async for entries in read(response, follow=False):
            if response.ends(entries[-1]):
                return entries[-1].seq
        return None

    async def current(self, response: StoredResponse) -> tuple[Json, Answer]:
        """Return the response object as it is at this moment, and its answer so far."""
        view, answer = response.view(), response.answer()
        async for entries in read(response, follow=False):
            view.events(answer.feed(entries))
        if answer.end is not None:
            view.end(answer, 0.0)
        return view.response(answer, response.completed_at(answer)), answer

    async def items(self, response: StoredResponse) -> Sequence[Json]:
        """Return its output items. Some clients name those of all earlier responses in each request."""
        found = self._items.get(response.record.id)
        if found is None:
            current, answer = await self.current(response)
            found = current["output"]
            if answer.end is not None:
                self._items[response.record.id] = found
                if len(self._items) > MAX_ITEMS:
                    self._items.popitem(last=False)
        return found

    async def events(self, response: StoredResponse) -> AsyncIterator[list[Json]]:
        """The events of its stream from the first one on, those that are there together, until it is over."""
        view, answer = response.view(), response.answer()
        events = view.begin()
        async for entries in read(response, follow=True):
            events += view.events(answer.feed(entries))
            if answer.end is not None:
                # It may have been completed meanwhile.
                events += view.end(answer, replace(response, record=self._with_end(response.record)).completed_at(answer))
            if events:
                yield events
            events = []
        if answer.end is None:
            yield [*events, view.failed("the response was deleted, or the gateway is shutting down")]


@contextmanager
def _logged(problem: str) -> Iterator[None]:
    """Log a failure of the store instead of raising it."""
    try:
        yield
    except StoreUnavailable as error:
        log.warning("%s: %s", problem, error)


async def read(response: StoredResponse, *, follow: bool) -> AsyncIterator[Sequence[Entry]]:
    """The events of a response: those that there are, or with `follow` also those that come. The last one ends it."""
    log, after = response.session.log, response.record.first_seq - 1
    while follow or after < log.last:
        entries = await log.read(after)
        if not entries:
            return
        after = entries[-1].seq
        end = next((n for n, entry in enumerate(entries, 1) if response.ends(entry)), None)
        if given := [entry for entry in entries[:end] if type(entry.event) is not Awaiting or response.ends(entry)]:
            yield given
        if end is not None:
            return


def _of_other_agent(record: ResponseRecord, model: str | None) -> bool:
    return model is not None and agent_name(model) != agent_name(record.body["fields"]["model"])


def _none(response_id: str) -> NoResponse:
    return NoResponse(f"Response with id '{response_id}' not found; it was deleted, or was not stored (`store` was false)")
