"""The answer to a request while its run goes on: waits for its first part, gives the parts, and reports why a run has failed.

A run that fails before it has answered anything is an error response, not a stream.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fastapi import Response
from fastapi.responses import JSONResponse

from gateway.app import Gateway
from gateway.conversations.conversations import ConversationTurn
from gateway.errors import GatewayError
from gateway.protocols.client_connection import ClientConnection
from gateway.protocols.model_apis.answer import Answer, Part
from gateway.sessions.session import Session

Result = TypeVar("Result")

SESSION = "X-Portico-Session"
"""The header of every response with the id of its session."""
IGNORED = "X-Portico-Ignored"
"""The header of a response that lists the fields of the request that have no effect here."""
MAX_IGNORED = 1024
"""Characters of the value of that header: the names are the client's."""
CANCELLED = "the run was cancelled, by another client or by an administrator"

_NOT_IN_HEADERS = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer: the status of an error response, a text for people, and headers of that response."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


class RunningAnswer:
    """Reads the answer of a turn: call `complete`; or `begun`, and then `parts`.

    `connection` is that of the client; None for an answer that goes on without one. `merged` is that of the answer.
    """

    def __init__(
        self, gateway: Gateway, turn: ConversationTurn, connection: ClientConnection | None, *, merged: bool = True
    ) -> None:
        shows = gateway.settings.openai.show_tools
        self.turn, self.answer = turn, Answer(turn.app_tools, shows, merged=merged, structured=turn.structured)
        self._patience, self._clock, self._connection = gateway.keep_alive, gateway.clock, connection
        self._batches = turn.batches()
        self._reading: asyncio.Task[Sequence[Part]] | None = None
        self._closed = False
        self.over = False
        """Whether nothing follows any more."""
        self.last = turn.first
        """The number of the last event that was read."""

    async def begun(self) -> None:
        """Return when there is a first part, or the answer is over; at the latest when a stream needs its first keep-alive.

        Raises GatewayError.
        """
        reading = self._reading = asyncio.create_task(self._first_parts())
        await self._until_over(self._wait(reading))

    async def _wait(self, reading: asyncio.Task[Sequence[Part]]) -> None:
        done, _ = await self._clock.wait((reading,), self._patience)
        for task in done:
            task.result()

    async def _first_parts(self) -> Sequence[Part]:
        while not (parts := await self._read()) and not self.over:
            pass
        return parts

    @property
    def silent(self) -> bool:
        """Whether the agent has sent nothing yet, although `begun` has waited."""
        return self._reading is not None and not self._reading.done()

    async def parts(self) -> AsyncGenerator[Sequence[Part], None]:
        """The parts of the answer as they come, those of one read together. With the last ones, which may be none, it is `over`.

        A run whose reader stops before the end is cancelled. Raises GatewayError.
        """
        try:
            if self._reading is not None:
                first = await self._reading
                self._closed = self.over
                yield first
            while not self._closed:
                parts = await self._read()
                self._closed = self.over
                if parts or self._closed:
                    yield parts
        except GatewayError:
            self._closed = True
            raise
        finally:
            self.close()

    def close(self) -> None:
        """The client gets nothing more. The run is cancelled, unless the last parts of the answer were given."""
        if not self._closed:
            self._closed = True
            self.turn.abandon(self.answer.message)

    async def complete(self) -> list[Part]:
        """Return all parts of the answer when it is over. The run is cancelled if the client disconnects. Raises GatewayError."""
        return await self._until_over(self._read_all())

    async def _until_over(self, work: Coroutine[None, None, Result]) -> Result:
        return await (work if self._connection is None else self._connection.wait_for(work, self.turn.abandon))

    async def _read_all(self) -> list[Part]:
        found: list[Part] = []
        while not self.over:
            found += await self._read()
        return found

    async def _read(self) -> Sequence[Part]:
        entries = await anext(self._batches, None)
        parts: Sequence[Part] = ()
        if entries is not None:
            self.last, parts = entries[-1].seq, self.answer.feed(entries)
        if entries is None or self.answer.end is not None:
            self.over = True
            # Nothing follows. It lets the turn see that.
            await anext(self._batches, None)
        return parts

    def failure(self) -> Failure | None:
        """Why there is nothing to answer, after `begun` or `complete`: the run has failed before it has answered anything."""
        return failure_of(self.answer) if self.over and not self.answer.message.content else None

    def finish(self) -> Failure | None:
        """The answer is over, and its last bytes are about to be sent. Return why it failed, if it did."""
        self.turn.answered(self.answer.message)
        return failure_of(self.answer)


def failure_of(answer: Answer) -> Failure | None:
    """Return why a run that is over has failed; None for an answer that is complete, or that waits for the client.

    Clients are told not to send the request again: that would run the agent again.
    """
    if answer.end in (None, "cancelled"):
        return Failure(502, CANCELLED, {"x-should-retry": "false"})
    if answer.end != "error" or answer.error is None:
        return None
    if answer.resets_at is None:
        return Failure(502, answer.error, {"x-should-retry": "false"})
    seconds = max(1, round(answer.resets_at - time.time()))
    return Failure(429, answer.error, {"Retry-After": str(seconds), "x-should-retry": "false"})


def failure_response(failure: Failure) -> Response:
    """Return the error response for a run that has failed before its client has got anything of the answer."""
    return JSONResponse({"error": failure.text}, failure.status, failure.headers)


def with_session(response: Response, session: Session, ignored: Iterable[str]) -> Response:
    """Return the response with the headers that every response of these APIs has."""
    response.raw_headers.append((SESSION.lower().encode(), session.id.encode()))
    if names := ", ".join(ignored):
        response.raw_headers.append((IGNORED.lower().encode(), _NOT_IN_HEADERS.sub("?", names)[:MAX_IGNORED].encode()))
    return response
