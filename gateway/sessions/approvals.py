"""PendingApprovals: a session's calls that wait for the client, until they are answered, given up, or too late to be answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from drivers.contract.agent import GO_ON, Agent, PermissionReply, Reply
from drivers.contract.messages import Message, ToolMessage, ToolUseBlock
from gateway.agents.configured import ConfiguredAgent
from gateway.errors import BadRequest, Conflict
from gateway.events.event_log import Entry
from gateway.events.log_entries import TurnStart
from gateway.events.turn import Turn
from gateway.policy.decisions import CLIENT
from gateway.policy.enforcement import TIME_LIMIT
from gateway.policy.pending_calls import ids, refuse_wrong_answers, resolve, unanswered, waiting_calls
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.run import Run, RunState
from gateway.sessions.approval_timeout import ApprovalTimeout
from gateway.sessions.settings import SessionSettings
from gateway.store import KeyRecord


class Conversation(Protocol):
    """The session whose calls they are; `Session` says what each of these does."""

    agent: ConfiguredAgent
    config: SessionSettings
    lock: asyncio.Lock
    run: Run | None

    async def history(self) -> list[Message]: ...

    def refuse_if_busy(self) -> None: ...

    def entering(self) -> AbstractContextManager[None]: ...

    async def seeded(self, more: Sequence[Message]) -> Agent: ...

    async def turn_start(self, start: TurnStart, ask: IdempotencyKey | None) -> tuple[Entry, KeyRecord | None]: ...

    def turn_begins(self, begin: Entry) -> Turn: ...

    def start(self, run: Run) -> None: ...

    def run_ended(self, run: Run) -> None: ...


class PendingApprovals:
    """Those of one session. `limit` is how many seconds its client has for an answer, 0 for ever."""

    def __init__(self, session: Conversation, limit: float) -> None:
        self._session = session
        self._limit = ApprovalTimeout(limit, self._close)
        self.watch, self.stop_watching = self._limit.watch, self._limit.stop

    async def take_up(self, run: Run) -> None:
        """Go on waiting with a run that an earlier gateway left so."""
        history = await self._session.history()
        run.wait_for(waiting_calls(history, self._runs_at_once, self._session.config.app_tools), unanswered(history))
        self.watch(run)

    async def refuse_wrong_answers(self, answered: Sequence[str]) -> None:
        """Raises BadRequest naming the ids unless these are exactly the open calls, each once; Conflict if a run is at work."""
        run = self._session.run
        waiting = run.calls if run and run.state is RunState.WAITING else {}
        unknown = [call_id for call_id in answered if call_id not in waiting]
        if unknown and (known := sorted(await self._answered() & set(unknown))):
            raise BadRequest(f"{ids(known)} is answered already; nothing was done twice. GET the session to see what came of it")
        self._session.refuse_if_busy()
        refuse_wrong_answers(answered, waiting)

    async def answer(self, replies: Sequence[Reply], results: Sequence[ToolMessage], ask: IdempotencyKey | None = None) -> Turn:
        """Go on with a run that waits, with all its calls answered. Call it under the lock, after `refuse_wrong_answers`.

        Raises AgentProblem where a fresh agent is needed and cannot start; then nothing has changed.
        """
        run = self._session.run
        if run is None:
            raise Conflict("no tool call is open in this session")
        with self._session.entering():
            if run.suspended:
                return await self._resume(run, replies, results, ask)
            return await self._pass_on(run, replies, results, ask)

    async def cancel(self) -> None:
        """Give up a run that waits for the client. Call it under the lock."""
        run = self._session.run
        if run is not None and run.state is RunState.WAITING:
            await run.cancel()
            self.stop_watching()

    async def close_overdue(self) -> None:
        """Do what the time limit for answers says, if that has passed while nobody looked."""
        run = self._session.run
        if run is not None and self._limit.passed(run):
            await self._close(run, run.waiting_since or 0.0)

    async def _pass_on(
        self,
        run: Run,
        replies: Sequence[Reply],
        results: Sequence[ToolMessage],
        ask: IdempotencyKey | None = None,
        by: str = CLIENT,
    ) -> Turn:
        begin, key = await self._session.turn_start(_answers(replies, results), ask)
        await run.answer(replies, results, begin, key, by)
        return self._session.turn_begins(begin)

    async def _resume(
        self, run: Run, replies: Sequence[Reply], results: Sequence[ToolMessage], ask: IdempotencyKey | None
    ) -> Turn:
        """Its agent is gone: a fresh one is given the history with what became of the calls, and goes on from there."""
        session = self._session
        resolution = resolve(await session.history(), run.calls, replies)
        agent = await session.seeded([*results, *resolution.results])
        begin, key = await session.turn_start(_answers(replies, results), ask)
        try:
            await run.resume(agent, session.config.tools or (), replies, results, resolution, begin, key)
            turn = session.turn_begins(begin)
            await agent.prompt(GO_ON)
        except BaseException:
            # Its history has the answers: nothing else may be said to it. The run waits still, unless they are stored.
            await agent.close(0.0)
            if not run.suspended:
                await run.fail("the agent did not go on")
            raise
        session.start(run)
        return turn

    async def _close(self, run: Run, since: float) -> None:
        """Nobody has answered in time: the calls are denied. A live agent goes on from there; none is started for it."""
        session = self._session
        async with session.lock:
            if session.run is not run or run.state is not RunState.WAITING or run.waiting_since != since:
                return
            replies = self._limit.replies(run.calls)
            if not run.suspended:
                await self._pass_on(run, replies, [], by=TIME_LIMIT)
                return
            await run.wait()
            await run.close_calls(replies, resolve(await session.history(), run.calls, replies), TIME_LIMIT)
            session.run_ended(run)

    async def _answered(self) -> set[str]:
        stored = {message.tool_call_id for message in await self._session.history() if isinstance(message, ToolMessage)}
        return stored | (self._session.run.answered if self._session.run else set())

    def _runs_at_once(self, call: ToolUseBlock) -> bool:
        """Whether a call of the agent's own tools needs nobody's word."""
        verdict = self._session.agent.policy.evaluate(call.name, call.input).verdict
        trusted = any(grant.name == call.name and grant.trust for grant in self._session.config.tools or ())
        return verdict == "allow" or (verdict is None and trusted)


def _answers(replies: Sequence[Reply], results: Sequence[ToolMessage]) -> TurnStart:
    permissions = tuple(reply for reply in replies if isinstance(reply, PermissionReply))
    return TurnStart(messages=tuple(results), permissions=permissions)
