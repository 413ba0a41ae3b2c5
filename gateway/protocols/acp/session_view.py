"""Window: one session as one client has it open. It follows the session's log from there on, whoever starts the runs; it has
the client's prompt under way."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from acp.schema import PromptResponse, SessionNotification

from drivers.contract.events import AwaitedCall, Awaiting, Commands, Compacted, Error, SessionEnd, Title
from drivers.contract.messages import Message, UserMessage
from gateway.agents.discovery import DiscoveredAgent
from gateway.errors import Conflict, NotFound
from gateway.events.event_log import Entry
from gateway.events.log_entries import Steered, TurnStart
from gateway.policy.pending_calls import unanswered
from gateway.protocols.acp.client_services import AcpClientServices
from gateway.protocols.acp.compactions import compaction_update
from gateway.protocols.acp.permission_requests import PermissionRequests
from gateway.protocols.acp.rpc import INTERNAL_ERROR, INVALID_REQUEST, NOT_FOUND, Client, RpcError
from gateway.protocols.acp.session_info import SessionInfoUpdates
from gateway.protocols.acp.updates import Updates
from gateway.runs.run import RunState
from gateway.sessions.session import Session

log = logging.getLogger(__name__)

Answer = Callable[[PromptResponse | RpcError], Awaitable[None]]


@dataclass
class PromptInProgress:
    """A prompt that is to be answered. `after` is the number of the last event before its run, once that has begun."""

    answer: Answer
    after: int | None = None
    cancelled: bool = False


class SessionView:
    """`start` it when the client knows of the session; `close` leaves the session as it is."""

    def __init__(
        self,
        session: Session,
        client: Client,
        about: SessionInfoUpdates,
        offered: frozenset[str] = frozenset(),
        *,
        compactions: bool = False,
    ) -> None:
        self.session, self.about = session, about
        self._compactions = compactions
        self._client = client
        self._cwd = str(session.agent.working_directory(session.config.options.get("cwd")))
        self._services = AcpClientServices(session.id, client, offered)
        self._updates = Updates(uuid.uuid4().hex[:8], self._cwd, session.agent.info, self._asks_for, self._services.has_terminal)
        self._asking = PermissionRequests(session, client, self._updates, self)
        self._seen = session.log.last
        self._in_run = False
        self._said: list[UserMessage] = []
        self._speaking: PromptInProgress | None = None
        self._error: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._quiet = asyncio.Event()
        self._quiet.set()

    # -- opening ----------------------------------------------------------------------------------------------------

    async def replay(self) -> None:
        """Tell the whole history: what is stored, and of a run that is not over what it has done so far."""
        history, first = await self._past()
        if first is not None:
            # What its run has added stands in the log, in more detail.
            said = [n for n, message in enumerate(history) if isinstance(message, UserMessage)]
            history = history[: said[-1] + 1] if said else history
        for message in history:
            for update in self._updates.of_message(message):
                await self._update(update)
        if first is not None:
            self._updates.start_run()
            await self.about.load_metadata()
            self._seen, until = first - 1, self._seen
            while self._seen < until:
                entries = await self.session.log.read(self._seen)
                if not entries:
                    return
                for entry in entries:
                    await self._show(entry)

    async def skip(self) -> None:
        """Tell nothing of the past; the calls that are open can still be asked about."""
        history, first = await self._past()
        if first is not None:
            self._updates.add_calls(unanswered(history).values())

    async def _past(self) -> tuple[list[Message], int | None]:
        """The history, and the first event of a run that is not over yet; what comes after them is to be shown."""
        session = self.session
        # No run begins meanwhile.
        async with session.lock:
            run = session.run if session.state != "idle" else None
            self._in_run, self._seen = run is not None, session.log.last
            history = await session.history()
        for message in history:
            if isinstance(message, UserMessage):
                self.about.record_prompt(message.content)
        return history, run.first_seq if run else None

    def start(self, later: Callable[[], Awaitable[DiscoveredAgent | None]] | None = None) -> None:
        """Show what comes from now on, and ask what is open. `later` is what the agent's program says when it is slow."""
        self._tasks.append(asyncio.create_task(self._follow(), name=f"window on {self.session.id}"))
        if later is not None:
            self._tasks.append(asyncio.create_task(self._hear_of_program(later)))
        if self._seen >= self.session.log.last:
            self._asking.ask()

    async def close(self) -> None:
        """Nothing more is shown or asked; the session stays as it is."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._asking.stop()
        self.session.services.take_from(self._services)
        self._services.close()

    # -- the client's prompt ----------------------------------------------------------------------------------------

    async def prompt(self, message: UserMessage, answer: Answer) -> None:
        """Start a run; `answer` is called when it is over. Raises GatewayError if it does not start."""
        if self._speaking is not None:
            raise Conflict("this session is at work on a prompt; wait for its answer, or session/cancel it")
        self._speaking = speaking = PromptInProgress(answer)
        self._quiet.clear()
        session = self.session
        try:
            async with session.lock:
                self._refuse_if_taken()
                await session.say(message, client=self._services)
                # Nothing was awaited since the run began: its events come after this one.
                speaking.after = session.log.last
                self.about.record_prompt(message.content)
        except BaseException:
            self._speaking = None
            session.services.take_from(self._services)
            self._quiet.set()
            if speaking.cancelled:
                return await answer(PromptResponse(stop_reason="cancelled"))
            raise

    def _refuse_if_taken(self) -> None:
        run = self.session.run
        if self.session.deleted:
            raise NotFound(f"session {self.session.id!r} was deleted")
        if self.session.busy:
            raise Conflict("this session is at work on a prompt of another client; wait for its end, or session/cancel it")
        if run is None or run.state is not RunState.WAITING:
            return
        if any(call.wants == "result" for call in run.calls.values()):
            raise Conflict(_of_the_application(run.calls.values()))
        raise Conflict("a tool call of this session waits for permission; answer it, or session/cancel it, and send this again")

    async def cancel(self) -> None:
        """Stop the run, whoever began it; the prompt is answered with `cancelled`."""
        if self._speaking is not None:
            self._speaking.cancelled = True
        # A prompt that is just starting its agent holds the lock until its run is there to be cancelled.
        async with self.session.lock:
            await self.session.cancel()

    @property
    def speaking(self) -> bool:
        """Whether a prompt of this client is under way."""
        return self._speaking is not None

    async def quiet(self) -> None:
        """Until no prompt of this client is under way."""
        await self._quiet.wait()

    # -- what comes -------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            await self.about.load_metadata()
            await self.tell_settings()
            # None come once the session is deleted.
            while entries := await self.session.log.read(self._seen):
                for entry in entries:
                    await self._show(entry)
                    await self._act(entry)
            await self.finish(RpcError(NOT_FOUND, f"session {self.session.id!r} was deleted"))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("session %s: it cannot be shown any more", self.session.id)
            await self.finish(RpcError(INTERNAL_ERROR, f"the gateway failed: {type(error).__name__}"))

    async def _show(self, entry: Entry) -> None:
        """Tell the client of an event."""
        event = entry.event
        self._seen = entry.seq
        if isinstance(event, TurnStart):
            self._said = [message for message in event.messages if isinstance(message, UserMessage)]
            return
        if isinstance(event, Steered):
            for update in self._updates.of_message(event.message):
                await self._update(update)
            return
        if not self._in_run:
            self._in_run = True
            await self._begins(entry.seq)
        if isinstance(event, Error):
            self._error = event.message
        if isinstance(event, Compacted) and self._compactions:
            compaction = {"sessionId": self.session.id, "update": compaction_update(entry.seq, event)}
            await self._client.notify("session/update", compaction)
        told = self.about.of_event(event) if isinstance(event, Commands | Title) else self._updates.of_event(event)
        for update in told:
            await self._update(update)
        if isinstance(event, SessionEnd):
            self._in_run = False

    async def _begins(self, seq: int) -> None:
        self._updates.start_run()
        self._error = None
        await self.tell_settings()
        if self._is_mine(seq):
            return
        # Somebody else has said something. Whose it is, is known from the agent's first event on.
        for message in self._said:
            for update in self._updates.of_message(message):
                await self._update(update)

    async def _act(self, entry: Entry) -> None:
        """Do what an event asks for."""
        event = entry.event
        if isinstance(event, Awaiting):
            if entry.seq == self.session.log.last:
                self._asking.ask()
            if self._is_mine(entry.seq) and any(call.wants == "result" for call in event.calls):
                await self.finish(RpcError(INVALID_REQUEST, _of_the_application(event.calls)))
            return
        await self._asking.settled()
        if isinstance(event, SessionEnd):
            await self.tell_settings()
            await self._update(self.about.info())
            if self._is_mine(entry.seq):
                await self.finish(self._outcome(event))

    def _is_mine(self, seq: int) -> bool:
        return self._speaking is not None and self._speaking.after is not None and seq > self._speaking.after

    def _outcome(self, end: SessionEnd) -> PromptResponse | RpcError:
        cancelled = self._speaking is not None and self._speaking.cancelled
        if cancelled or end.stop_reason == "cancelled":
            return PromptResponse(stop_reason="cancelled", usage=self._updates.usage)
        if end.stop_reason == "error":
            return RpcError(INTERNAL_ERROR, self._error or f"the agent ended with exit code {end.exit_code}")
        return PromptResponse(stop_reason=end.stop_reason, usage=self._updates.usage)

    async def finish(self, outcome: PromptResponse | RpcError) -> None:
        """Answer the prompt, if there is one."""
        speaking, self._speaking = self._speaking, None
        self.session.services.take_from(self._services)
        if speaking is not None:
            await speaking.answer(outcome)
        self._quiet.set()

    def _asks_for(self, tool: str) -> bool:
        # A tool of a server that the client has brought along asks until it is trusted, listed or not.
        known = {grant.name: grant.trust for grant in self.session.config.tools or ()}
        prefix = self.session.agent.info.mcp_tool_prefix
        return not known.get(tool, prefix is None or not tool.startswith(prefix))

    async def _hear_of_program(self, later: Callable[[], Awaitable[DiscoveredAgent | None]]) -> None:
        if (found := await later()) is not None:
            self.about.update_probe(found.probe)
            await self.tell_settings()

    async def tell_settings(self) -> None:
        """Tell the client what has changed of its settings and commands since it was told last."""
        for update in self.about.changes():
            await self._update(update)

    async def _update(self, update: Any) -> None:
        await self._client.notify("session/update", SessionNotification(session_id=self.session.id, update=update))


def _of_the_application(calls: Iterable[AwaitedCall]) -> str:
    names = ", ".join(repr(call.id) for call in calls if call.wants == "result")
    return f"tool call {names} waits for its result from the application, over AAP; answer it there, or session/cancel it"
