"""SessionView: a session as one client has it open. It sends the events of the session's log, whoever starts the runs, holds the
client's prompt in progress, and asks the client for the permissions that the runs wait for.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from acp.schema import PromptResponse, RequestPermissionRequest, SessionNotification

from drivers.contract.events import AwaitedCall, Awaiting, Commands, Compacted, Error, SessionEnd, Title
from drivers.contract.messages import UserMessage
from gateway.agents.discovery import DiscoveredAgent
from gateway.errors import BadRequest, Conflict, GatewayError
from gateway.events.event_log import Entry
from gateway.events.log_entries import Steered, TurnStart
from gateway.events.turn_reader import Turn
from gateway.protocols.acp.client_files import AcpClientServices
from gateway.protocols.acp.compactions import compaction_update
from gateway.protocols.acp.permission_options import Decision, choice_of, options, with_decisions
from gateway.protocols.acp.rpc import INTERNAL_ERROR, INVALID_REQUEST, NOT_FOUND, Client, RpcError, rpc_error
from gateway.protocols.acp.session_info import SessionInfoUpdates
from gateway.protocols.acp.updates import Updates
from gateway.runs.pending_calls import unanswered
from gateway.runs.run import Run, RunState
from gateway.sessions.session import Session, Submission

log = logging.getLogger(__name__)

Answer = Callable[[PromptResponse | RpcError], Awaitable[None]]


@dataclass
class PromptInProgress:
    """A prompt that is to be answered. `after` is the number of its `turn_start`, once its run has begun."""

    answer: Answer
    after: int | None = None
    cancelled: bool = False


class SessionView:
    """`start` it when the client knows of the session; `close` leaves the session as it is."""

    def __init__(
        self,
        session: Session,
        client: Client,
        info: SessionInfoUpdates,
        client_methods: frozenset[str] = frozenset(),
        *,
        compactions: bool = False,
    ) -> None:
        self.session, self.info = session, info
        self._compactions = compactions
        self._client = client
        options = session.agent.without_locked(session.config.options)
        self._cwd = str(session.agent.working_directory(options.get("cwd"), session.config.workspace_key))
        self._services = AcpClientServices(session.id, client, client_methods)
        self._updates = Updates(
            uuid.uuid4().hex[:8], self._cwd, session.agent.info, self._needs_permission, self._services.has_terminal
        )
        self._seen = session.log.last
        self._in_run = False
        self._user_messages: list[UserMessage] = []
        self._prompt: PromptInProgress | None = None
        self._no_prompt = asyncio.Event()
        self._no_prompt.set()
        self._error: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._asking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._cancelled_questions: asyncio.Task[None] | None = None

    # -- what the client gets first ---------------------------------------------------------------------------------------

    async def replay(self) -> None:
        """Send the whole history: the stored messages, and the events of a run that is not over."""
        end, first = await self._past()
        async for message in self.session.history.messages(0, end):
            for update in self._updates.of_message(message):
                await self._update(update)
        if first is not None:
            self._updates.start_run()
            await self.info.load_metadata()
            self._seen, until = first - 1, self._seen
            while self._seen < until:
                entries = await self.session.log.read(self._seen)
                if not entries:
                    return
                for entry in entries:
                    await self._send(entry)

    async def skip(self) -> None:
        """Send nothing of the past; the client can still be asked about pending calls."""
        _, first = await self._past()
        if first is not None:
            self._updates.add_calls(unanswered(await self.session.history.unanswered_calls()).values())

    async def _past(self) -> tuple[int, int | None]:
        """How many messages the client gets, and the first event of a run that is not over; the events after them are sent later.

        The messages of that run are sent from the log, in more detail.
        """
        session = self.session
        # No run begins meanwhile.
        async with session.lock:
            run = session.run if session.state != "idle" else None
            self._in_run, self._seen = run is not None, session.log.last
            end = await session.history.count()
        position = last_prompt = 0
        async for message in session.history.messages(0, end):
            position += 1
            if isinstance(message, UserMessage):
                self.info.record_prompt(message.content)
                last_prompt = position
        return (last_prompt or end if run else end), run.first_seq if run else None

    def start(self, later: Callable[[], Awaitable[DiscoveredAgent | None]] | None = None) -> None:
        """Send events from now on, and ask for pending permissions. `later` waits for an agent's program that is slow."""
        self._tasks.append(asyncio.create_task(self._follow(), name=f"view of {self.session.id}"))
        if later is not None:
            self._tasks.append(asyncio.create_task(self._learn_of_program(later)))
        if self._seen >= self.session.log.last:
            self._ask()

    async def close(self) -> None:
        """Send and ask nothing more; the session stays as it is."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._watching is not None:
            self._watching.cancel()
        await self._cancel_questions()
        self.session.services.remove(self._services)
        self._services.close()

    # -- the client's prompt ----------------------------------------------------------------------------------------------

    async def prompt(self, message: UserMessage, answer: Answer) -> None:
        """Start a run; `answer` is called when it is over. Raises GatewayError if it does not start.

        A prompt that is refused because calls wait for permission asks about them again, if nothing is asked at the moment:
        their last answers could not be passed on.
        """
        if self._prompt is not None:
            raise Conflict("this session is at work on a prompt; wait for its answer, or session/cancel it")
        self._prompt = prompt = PromptInProgress(answer)
        self._no_prompt.clear()

        def began(turn: Turn) -> None:
            prompt.after = turn.first
            self.info.record_prompt(message.content)

        try:
            await self.session.submit(Submission(message=message, services=self._services, cancel_pending=False, began=began))
        except BaseException:
            self._prompt = None
            self._no_prompt.set()
            if prompt.cancelled:
                return await answer(PromptResponse(stop_reason="cancelled"))
            if self._asking is None:
                self._ask()
            raise

    async def cancel(self) -> None:
        """Stop the run, whoever began it; the prompt is answered with `cancelled`."""
        if self._prompt is not None:
            self._prompt.cancelled = True
        await self.session.cancel()

    @property
    def prompting(self) -> bool:
        """Whether a prompt of this client is in progress."""
        return self._prompt is not None

    async def no_prompt(self) -> None:
        """Wait until no prompt of this client is in progress."""
        await self._no_prompt.wait()

    # -- the events of the session ----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            await self.info.load_metadata()
            await self.send_settings()
            # None come once the session is deleted.
            while entries := await self.session.log.read(self._seen):
                for entry in entries:
                    await self._send(entry)
                    await self._act(entry)
            await self.finish(RpcError(NOT_FOUND, f"session {self.session.id!r} was deleted"))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("session %s: its events cannot be sent any more", self.session.id)
            await self.finish(RpcError(INTERNAL_ERROR, f"the gateway failed: {type(error).__name__}"))

    async def _send(self, entry: Entry) -> None:
        """Send the client the updates of an event."""
        event = entry.event
        self._seen = entry.seq
        if isinstance(event, TurnStart):
            self._user_messages = [message for message in event.messages if isinstance(message, UserMessage)]
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
        updates = self.info.of_event(event) if isinstance(event, Commands | Title) else self._updates.of_event(event)
        for update in updates:
            await self._update(update)
        if isinstance(event, SessionEnd):
            self._in_run = False

    async def _begins(self, seq: int) -> None:
        self._updates.start_run()
        self._error = None
        await self.send_settings()
        if self._is_mine(seq):
            return
        # The messages of another client. Only from the first event of its run on is it known whose run it is.
        for message in self._user_messages:
            for update in self._updates.of_message(message):
                await self._update(update)

    async def _act(self, entry: Entry) -> None:
        """Ask for permissions, or answer the prompt, where an event requires it."""
        event = entry.event
        if isinstance(event, Awaiting):
            if entry.seq == self.session.log.last:
                self._ask()
            if self._is_mine(entry.seq) and any(call.wants == "result" for call in event.calls):
                await self.finish(RpcError(INVALID_REQUEST, _needs_application(event.calls)))
            return
        run = self.session.run
        if run is None or run.state is not RunState.WAITING:
            await self._cancel_questions()
        if isinstance(event, SessionEnd):
            await self.send_settings()
            await self._update(self.info.info())
            if self._is_mine(entry.seq):
                await self.finish(self._outcome(event))

    def _is_mine(self, seq: int) -> bool:
        return self._prompt is not None and self._prompt.after is not None and seq > self._prompt.after

    def _outcome(self, end: SessionEnd) -> PromptResponse | RpcError:
        cancelled = self._prompt is not None and self._prompt.cancelled
        if cancelled or end.stop_reason == "cancelled":
            return PromptResponse(stop_reason="cancelled", usage=self._updates.usage)
        if end.stop_reason == "error":
            return RpcError(INTERNAL_ERROR, self._error or f"the agent ended with exit code {end.exit_code}")
        return PromptResponse(stop_reason=end.stop_reason, usage=self._updates.usage)

    async def finish(self, outcome: PromptResponse | RpcError) -> None:
        """Answer the prompt, if there is one."""
        prompt, self._prompt = self._prompt, None
        self.session.services.remove(self._services)
        if prompt is not None:
            await prompt.answer(outcome)
        self._no_prompt.set()

    def _needs_permission(self, tool: str) -> bool:
        # A tool of a server that the client has brought along asks until it is trusted, listed or not.
        known = {grant.name: grant.trust for grant in self.session.config.tools or ()}
        prefix = self.session.agent.info.mcp_tool_prefix
        return not known.get(tool, prefix is None or not tool.startswith(prefix))

    async def _learn_of_program(self, later: Callable[[], Awaitable[DiscoveredAgent | None]]) -> None:
        if (found := await later()) is not None:
            self.info.update_probe(found.probe)
            await self.send_settings()

    async def send_settings(self) -> None:
        """Send the client the changes of settings and commands since it got them last."""
        for update in self.info.changes():
            await self._update(update)

    async def _update(self, update: Any) -> None:
        await self._client.notify("session/update", SessionNotification(session_id=self.session.id, update=update))

    # -- permissions ------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask about all pending calls at once: the run takes the answers together. Whoever answers first, here or over another
        protocol, decides.

        Nothing is asked while a result of the application is pending, which this client cannot give.
        """
        run = self.session.run
        if run is None or run.state is not RunState.WAITING or any(call.wants == "result" for call in run.pending.calls.values()):
            return
        needed = [call.id for call in run.pending.calls.values() if not call.optional]
        if self._watching is not None:
            self._watching.cancel()
        self._asking = asyncio.create_task(self._decide(run, needed), name=f"permission in {self.session.id}")
        self._watching = asyncio.create_task(self._until_answered(run, self._asking))

    async def _until_answered(self, run: Run, asking: asyncio.Task[None]) -> None:
        """Cancel the questions as soon as another client has answered them."""
        await run.waits_no_longer()
        if self._asking is asking:
            await self._cancel_questions()

    async def _cancel_questions(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            self._cancelled_questions = asking
        if self._cancelled_questions is not None:
            # Also where another task has cancelled them: the client gets the cancellation before anything else.
            await asyncio.wait([self._cancelled_questions])

    async def _decide(self, run: Run, call_ids: Sequence[str]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._decision(run, call_id)) for call_id in call_ids]
            decisions = [task.result() for task in asked]
        except* RpcError as errors:
            log.warning("session %s: the client cannot be asked: %s", self.session.id, errors.exceptions[0])
            decisions = [Decision(call_id, self._tool(call_id), "reject_once") for call_id in call_ids]
        # From here on these are answers: the end of the waiting, which they bring about, does not cancel them.
        self._asking = None
        if any(decision.choice == "cancelled" for decision in decisions):
            if self.session.run is run:
                await self.cancel()
            return
        await self._submit(run, decisions)

    async def _decision(self, run: Run, call_id: str) -> Decision:
        session, tool = self.session, self._tool(call_id)
        grants = {grant.name: grant.trust for grant in session.config.tools or ()}
        if grants.get(tool) and run.lacks_trust_only(call_id):
            # Trusted since the run began; the agent's process was started without that trust.
            return Decision(call_id, tool, "allow_once")
        question = RequestPermissionRequest(
            session_id=session.id,
            tool_call=self._updates.permission_details(call_id),
            options=options(tool or "this tool", enabled=tool in grants),
        )
        return Decision(call_id, tool, choice_of(await self._client.request("session/request_permission", question)))

    async def _submit(self, run: Run, decisions: list[Decision]) -> None:
        replies = [decision.reply for decision in decisions]
        try:
            await self.session.submit(
                Submission(replies=replies, settings=lambda config: with_decisions(config, decisions), run_id=run.id)
            )
        except (BadRequest, Conflict) as error:
            log.info("session %s: the calls were answered elsewhere: %s", self.session.id, error)
        except GatewayError as error:
            # For example a fresh agent was needed and did not start. The calls are pending still, and the next prompt asks again.
            await self.finish(rpc_error(error))
        else:
            await self.send_settings()

    def _tool(self, call_id: str) -> str:
        call = self._updates.calls.get(call_id)
        return call.name if call else ""


def _needs_application(calls: Iterable[AwaitedCall]) -> str:
    names = ", ".join(repr(call.id) for call in calls if call.wants == "result")
    return f"tool call {names} waits for its result from the application, over AAP; answer it there, or session/cancel it"
