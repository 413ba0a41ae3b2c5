"""SessionView: a session as one client has it open. It sends the events of the session's log, whoever starts the runs, and holds
the client's prompts. It does not ask the client for permissions.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from acp.schema import PromptResponse, SessionNotification

from drivers.contract.client_services import READ, WRITE
from drivers.contract.driver_info import ASK_MODE
from drivers.contract.events import (
    DELTAS,
    AgentToken,
    AwaitedCall,
    Awaiting,
    Commands,
    Compacted,
    Error,
    Event,
    ModeChanged,
    Notice,
    SessionEnd,
    Thinking,
    Title,
)
from drivers.contract.messages import UserMessage
from gateway.agents.discovery import DiscoveredAgent
from gateway.errors import Conflict, GatewayError, LeaseLost
from gateway.events.event_log import Entry
from gateway.events.log_entries import Steered, TurnStart
from gateway.events.turn_reader import Turn
from gateway.protocols.acp.client_files import AcpClientServices
from gateway.protocols.acp.compactions import compaction_update, notice_update
from gateway.protocols.acp.initialization import ClientFeatures
from gateway.protocols.acp.permission_requests import PermissionRequests
from gateway.protocols.acp.rpc import INTERNAL_ERROR, INVALID_REQUEST, NOT_FOUND, Client, RpcError, rpc_error
from gateway.protocols.acp.session_info import SessionInfoUpdates
from gateway.protocols.acp.updates import Updates
from gateway.runs.pending_calls import unanswered
from gateway.runs.run import Run, RunState
from gateway.sessions.session import Session, Submission

log = logging.getLogger(__name__)

DELTA_BYTES = 64 * 1024
"""About how many bytes of deltas are written at once. Then a client that does not read makes the next ones wait."""
Answer = Callable[[PromptResponse | RpcError], Awaitable[None]]


async def _answer_nobody(answer: PromptResponse | RpcError) -> None:
    """For a prompt that was answered already."""


@dataclass(eq=False)
class PendingPrompt:
    """A prompt that is to be answered: held until earlier runs have ended, or in progress.

    `run` is its run and `after` the number of its `turn_start`, once the run has begun. A prompt that is cancelled before that
    leaves the turn queue. A cancelled one is answered with `cancelled`.
    """

    answer: Answer
    run: Run | None = None
    after: int | None = None
    _cancelled: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    async def until_cancelled(self) -> None:
        await self._cancelled.wait()

    def cancel(self) -> None:
        self._cancelled.set()


class SessionView:
    """`start` it when the client knows of the session; `close` leaves the session as it is."""

    def __init__(
        self,
        session: Session,
        client: Client,
        info: SessionInfoUpdates,
        features: ClientFeatures,
        cwd: Path,
    ) -> None:
        self.session, self.info = session, info
        self.lost = False
        """Whether another node of a cluster has the session by now."""
        self._compactions, self._notices = features.compactions, features.notices
        self._client = client
        self._cwd = str(cwd)
        self._services = AcpClientServices(session.id, client, _methods(session, features))
        self._updates = Updates(
            uuid.uuid4().hex[:8],
            self._cwd,
            session.agent.info,
            self._needs_permission,
            self._services.has_terminal,
            features.terminal_output,
        )
        self._seen = session.log.last
        self._in_run = False
        self._user_messages: list[UserMessage] = []
        self._prompts: list[PendingPrompt] = []
        self._background: set[asyncio.Task[None]] = set()
        self._steered: list[UserMessage] = []
        self._no_prompt = asyncio.Event()
        self._no_prompt.set()
        self._error: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._permissions = PermissionRequests(
            session,
            client,
            self._updates,
            forms=features.forms,
            cancel_run=self.cancel,
            submitted=self.send_settings,
            failed=self._answers_failed,
        )

    # -- what the client gets first ---------------------------------------------------------------------------------------

    async def replay(self) -> None:
        """Send the whole history: the stored messages, and the events of a run that is not over."""
        end, first = await self._past()
        async for message in self.session.history.messages(0, end):
            for update in self._updates.of_message(message):
                await self._update(update)
        if first is not None:
            self._updates.start_run()
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
        await self.info.open()
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
        self.session.metadata_changed.add(self._metadata_changed)
        if self._seen >= self.session.log.last:
            self._permissions.ask()

    async def close(self) -> None:
        """Send and ask nothing more; the session stays as it is."""
        self.session.metadata_changed.discard(self._metadata_changed)
        tasks = [*self._tasks, *self._background]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._permissions.close()
        self.session.services.remove(self._services)
        self._services.close()

    async def replay_turn(self, entries: Iterable[Entry], *, prompted: bool) -> PromptResponse | RpcError | None:
        """Send events of a run that is over, or a part of it, as the client got them whose prompt began the run.

        Nothing is asked that decides something. `prompted`: the run begins with these events. Returns the answer to the prompt;
        None if the run does not end with these events.
        """
        prompt = PendingPrompt(_answer_nobody, after=0)
        self._prompts = [prompt] if prompted else self._prompts
        for entry in entries:
            event = entry.event
            await self._send(entry)
            if isinstance(event, Awaiting):
                await self._permissions.show(event.calls)
            elif isinstance(event, SessionEnd):
                await self._send_end()
                return self._outcome(prompt, event)
        return None

    # -- the client's prompts ---------------------------------------------------------------------------------------------

    async def prompt(self, message: UserMessage, prompt: PendingPrompt) -> None:
        """Begin a run on a prompt. While another run is under way, hold the prompt until the session is idle, and return.

        `prompt.answer` is called when the run is over, and for an error of a prompt that was held. Raises GatewayError if the run
        does not start. A prompt that is held because calls wait for permission asks about them again, if nothing is asked at the
        moment: their last answers could not be passed on. While the result of an application's tool is pending, which no client
        of this protocol can give, a prompt is refused.
        """
        run = self.session.run
        if run is not None and run.state is RunState.WAITING and run.pending.awaits_results:
            raise Conflict(_needs_application(run.pending.calls.values()))
        at_once = self.session.accepts_turn and not self._prompts
        self._prompts.append(prompt)
        self._no_prompt.clear()
        if at_once:
            return await self._submit_prompt(message, prompt)
        self._run_in_background(self._submit_held(message, prompt))
        self._run_in_background(self._ask_again())

    async def _submit_prompt(self, message: UserMessage, prompt: PendingPrompt) -> None:
        def began(turn: Turn) -> None:
            prompt.after, prompt.run = turn.first, self.session.run
            self.info.record_prompt(message.content)

        submission = Submission(
            message=message,
            services=self._services,
            when_busy="queue",
            cancel_pending=False,
            disconnected=prompt.until_cancelled,
            cancel_on_disconnect=True,
            began=began,
        )
        try:
            await self.session.submit(submission)
        except BaseException as error:
            if prompt not in self._prompts:
                # Its run has begun and failed, and the prompt is answered.
                return
            if prompt.cancelled and isinstance(error, GatewayError):
                return await self._finish(prompt, PromptResponse(stop_reason="cancelled"))
            self._remove(prompt)
            raise

    async def _submit_held(self, message: UserMessage, prompt: PendingPrompt) -> None:
        try:
            await self._submit_prompt(message, prompt)
        except Exception as error:
            await prompt.answer(rpc_error(error))

    async def _ask_again(self) -> None:
        """Ask about the calls that wait for permission, if nothing is asked at the moment."""
        # Answers that are being passed on hold the lock.
        async with self.session.lock:
            pass
        if not self._permissions.asking and self._seen >= self.session.log.last:
            self._permissions.ask()

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"view of {self.session.id}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def steer(self, message: UserMessage) -> bool:
        """Send a message to the run at work, whoever began it. Returns False if none is at work or it takes none at this moment.

        Raises GatewayError.
        """
        self._steered.append(message)
        steered = False
        try:
            steered = await self.session.steer(message)
        finally:
            if not steered and message in self._steered:
                self._steered.remove(message)
        return steered

    async def cancel(self) -> None:
        """Stop the run, whoever began it; all prompts of this client, held ones too, are answered with `cancelled`."""
        for prompt in self._prompts:
            prompt.cancel()
        await self.session.cancel()

    async def cancel_prompt(self, prompt: PendingPrompt) -> None:
        """Have one prompt answered with `cancelled`: stop its run, or do not begin it."""
        prompt.cancel()
        if prompt.run is not None and prompt.run is self.session.run:
            await self.session.cancel()

    @property
    def prompting(self) -> bool:
        """Whether a prompt of this client is held or in progress."""
        return bool(self._prompts)

    async def no_prompt(self) -> None:
        """Wait until no prompt of this client is held or in progress."""
        await self._no_prompt.wait()

    # -- the events of the session ----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            # Also what has changed since the client got the answer that opens the session.
            await self._send_metadata()
            # None come once the session is deleted.
            while entries := await self.session.log.read(self._seen):
                for kind, group in groupby(entries, lambda entry: type(entry.event)):
                    first, *others = group
                    await self._send(first)
                    await self._act(first)
                    if kind in DELTAS:
                        await self._send_deltas(others)
                        continue
                    for entry in others:
                        await self._send(entry)
                        await self._act(entry)
            await self._finish_begun(RpcError(NOT_FOUND, f"session {self.session.id!r} was deleted"))
        except asyncio.CancelledError:
            raise
        except LeaseLost as error:
            self.lost = True
            await self._finish_begun(RpcError(INTERNAL_ERROR, str(error)))
        except Exception as error:
            log.exception("session %s: its events cannot be sent any more", self.session.id)
            await self._finish_begun(RpcError(INTERNAL_ERROR, f"the gateway failed: {type(error).__name__}"))

    async def _send(self, entry: Entry) -> None:
        """Send the client the updates of an event."""
        event = entry.event
        self._seen = entry.seq
        if isinstance(event, TurnStart):
            self._user_messages = [message for message in event.messages if isinstance(message, UserMessage)]
            return
        if isinstance(event, Steered):
            if event.message in self._steered:
                return self._steered.remove(event.message)
            for update in self._updates.of_message(event.message):
                await self._update(update)
            return
        if not self._in_run:
            self._in_run = True
            await self._begins(entry.seq)
        if isinstance(event, Error):
            self._error = event.message
        if (plain := self._plain_update(entry.seq, event)) is not None:
            await self._client.notify("session/update", {"sessionId": self.session.id, "update": plain})
        updates = self.info.of_event(event) if isinstance(event, Commands | Title) else self._updates.of_event(event)
        for update in updates:
            await self._update(update)
        if isinstance(event, SessionEnd):
            self._in_run = False

    async def _send_deltas(self, entries: Sequence[Entry]) -> None:
        """Send the updates of deltas of one kind, after the first of them: each needs one update and nothing else."""
        part, size = list[Entry](), 0
        for n, entry in enumerate(entries, 1):
            part.append(entry)
            size += len(entry.data)
            if size >= DELTA_BYTES or n == len(entries):
                updates = self._updates.of_deltas([cast("AgentToken | Thinking", delta.event) for delta in part])
                self._seen = entry.seq
                session_id = self.session.id
                await self._client.notify_all("session/update", [{"sessionId": session_id, "update": one} for one in updates])
                part, size = [], 0

    async def _begins(self, seq: int) -> None:
        self._updates.start_run()
        self._error = None
        await self.send_settings()
        if self._prompt_of(seq) is not None:
            return
        # The messages of another client. Only from the first event of its run on is it known whose run it is.
        for message in self._user_messages:
            for update in self._updates.of_message(message):
                await self._update(update)

    async def _act(self, entry: Entry) -> None:
        """Ask for permissions, or answer the prompt, where an event requires it."""
        event = entry.event
        if isinstance(event, ModeChanged):
            return await self.send_settings()
        if isinstance(event, Awaiting):
            if entry.seq == self.session.log.last:
                self._permissions.ask()
            prompt = self._prompt_of(entry.seq)
            if prompt is not None and any(call.wants == "result" for call in event.calls):
                await self._finish(prompt, RpcError(INVALID_REQUEST, _needs_application(event.calls)))
            return
        run = self.session.run
        if run is None or run.state is not RunState.WAITING:
            await self._permissions.cancel()
        if isinstance(event, SessionEnd):
            await self._send_end()
            if (prompt := self._prompt_of(entry.seq)) is not None:
                await self._finish(prompt, self._outcome(prompt, event))

    async def _send_end(self) -> None:
        """Send what has changed by the end of a run."""
        await self.send_settings()
        if self._updates.has_cost and (cost := await self.info.cost()) is not None:
            for update in self._updates.of_cost(cost):
                await self._update(update)
        await self._update(self.info.info())

    def _prompt_of(self, seq: int) -> PendingPrompt | None:
        """The prompt of this client whose run has put out the event with this number; None for a run of another client."""
        # The next prompt may have begun already: this view reads the log behind the session.
        return next((prompt for prompt in self._prompts if prompt.after is not None and prompt.after < seq), None)

    def _outcome(self, prompt: PendingPrompt, end: SessionEnd) -> PromptResponse | RpcError:
        if prompt.cancelled or end.stop_reason == "cancelled":
            return PromptResponse(stop_reason="cancelled", usage=self._updates.usage)
        if end.stop_reason == "error":
            return RpcError(INTERNAL_ERROR, self._error or f"the agent ended with exit code {end.exit_code}")
        return PromptResponse(stop_reason=end.stop_reason, usage=self._updates.usage)

    async def _finish_begun(self, outcome: RpcError) -> None:
        """Answer the prompts whose runs have begun. Held ones are answered by the end of their submission."""
        for prompt in [prompt for prompt in self._prompts if prompt.after is not None]:
            await self._finish(prompt, outcome)

    async def _answers_failed(self, run: Run, error: GatewayError) -> None:
        """Answer the prompts of a run to which the client's decisions could not be passed."""
        for prompt in [prompt for prompt in self._prompts if prompt.run is run]:
            await self._finish(prompt, rpc_error(error))

    async def _finish(self, prompt: PendingPrompt, outcome: PromptResponse | RpcError) -> None:
        """Answer a prompt."""
        self._prompts.remove(prompt)
        if all(other.after is None for other in self._prompts):
            self.session.services.remove(self._services)
        await prompt.answer(outcome)
        self._remove(prompt)

    def _remove(self, prompt: PendingPrompt) -> None:
        if prompt in self._prompts:
            self._prompts.remove(prompt)
        if not self._prompts:
            self._no_prompt.set()

    def _needs_permission(self, tool: str) -> bool:
        session = self.session
        if session.agent.mode(session.config.options) != ASK_MODE:
            # The CLI decides; that it asks is only known then.
            return tool in session.agent.info.permissions.question_tools
        # A tool of a server that the client has brought along asks until it is trusted, listed or not.
        known = {grant.name: grant.trust for grant in self.session.config.tools or ()}
        prefix = self.session.agent.info.mcp.tool_prefix
        return not known.get(tool, prefix is None or not tool.startswith(prefix))

    async def _learn_of_program(self, later: Callable[[], Awaitable[DiscoveredAgent | None]]) -> None:
        if (found := await later()) is not None:
            self.info.update_probe(found.probe)
            await self.send_settings()

    def _metadata_changed(self) -> None:
        self._run_in_background(self._send_metadata())

    async def _send_metadata(self) -> None:
        await self.info.load_metadata()
        await self.send_settings()
        for update in self.info.title_change():
            await self._update(update)

    async def send_settings(self) -> None:
        """Send the client the changes of settings and commands since it got them last."""
        for update in self.info.changes():
            await self._update(update)

    def _plain_update(self, seq: int, event: Event) -> dict[str, Any] | None:
        """The update of an event that only clients with a capability get, as plain data."""
        if isinstance(event, Compacted) and self._compactions:
            return compaction_update(seq, event)
        return notice_update(event) if isinstance(event, Notice) and self._notices else None

    async def _update(self, update: Any) -> None:
        await self._client.notify("session/update", SessionNotification(session_id=self.session.id, update=update))


def _needs_application(calls: Iterable[AwaitedCall]) -> str:
    names = ", ".join(repr(call.id) for call in calls if call.wants == "result")
    return f"tool call {names} waits for its result from the application, over AAP; answer it there, or session/cancel it"


def _methods(session: Session, features: ClientFeatures) -> frozenset[str]:
    """What the client does for the agent. Not files of a worktree: editors refuse paths outside of the project that they show."""
    return features.methods if session.config.worktree is None else features.methods - {READ, WRITE}
