"""Asking: the permission requests of one session to one client. Whoever answers first, here or over another protocol, decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from acp.schema import PromptResponse, RequestPermissionRequest

from gateway.errors import BadRequest, GatewayError
from gateway.protocols.acp.permissions import Decision, choice_of, options, with_decisions
from gateway.protocols.acp.rpc import Client, RpcError, rpc_error
from gateway.protocols.acp.updates import Updates
from gateway.runs.run import Run, RunState
from gateway.sessions.session import Session

log = logging.getLogger(__name__)


class Shown(Protocol):
    """The session as the client has it open."""

    async def cancel(self) -> None:
        """Stop the run."""

    async def finish(self, outcome: PromptResponse | RpcError) -> None:
        """Answer the client's prompt, if there is one."""

    async def tell_settings(self) -> None:
        """Tell the client what has changed of the settings."""


class PermissionRequests:
    """Asks about all the calls that wait, at once: the run takes the answers together."""

    def __init__(self, session: Session, client: Client, updates: Updates, shown: Shown) -> None:
        self._session, self._client, self._updates, self._shown = session, client, updates, shown
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Ask what is open, unless it is a result of the application's, which is not this client's to give."""
        run = self._session.run
        if run is None or run.state is not RunState.WAITING or any(call.wants == "result" for call in run.calls.values()):
            return
        needed = [call.id for call in run.calls.values() if not call.optional]
        self._task = asyncio.create_task(self._decide(run, needed), name=f"permission in {self._session.id}")
        self._watch = asyncio.create_task(self._until_answered(run, self._task))

    async def _until_answered(self, run: Run, task: asyncio.Task[None]) -> None:
        """Take the questions back as soon as somebody else has answered them."""
        await run.moved()
        if self._task is task:
            await self._take_back()

    async def settled(self) -> None:
        """Before anything is told of what came after the questions: they are taken back, if they still stand."""
        run = self._session.run
        if run is None or run.state is not RunState.WAITING:
            await self._take_back()

    async def stop(self) -> None:
        """Ask no more."""
        if self._watch is not None:
            self._watch.cancel()
        await self._take_back()

    async def _take_back(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self._ending = task
        if self._ending is not None:
            # Also for who comes while another takes them back: the client is told before anything else.
            await asyncio.wait([self._ending])

    async def _decide(self, run: Run, call_ids: Sequence[str]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._decision(run, call_id)) for call_id in call_ids]
            decisions = [task.result() for task in asked]
        except* RpcError as errors:
            log.warning("session %s: the client cannot be asked: %s", self._session.id, errors.exceptions[0])
            decisions = [Decision(call_id, self._tool(call_id), "reject_once") for call_id in call_ids]
        # From here on these are answers: what comes of them does not take them back.
        self._task = None
        if any(decision.choice == "cancelled" for decision in decisions):
            if self._session.run is run:
                await self._shown.cancel()
            return
        await self._settle(run, decisions)

    async def _decision(self, run: Run, call_id: str) -> Decision:
        session, tool = self._session, self._tool(call_id)
        grants = {grant.name: grant.trust for grant in session.config.tools or ()}
        if grants.get(tool) and run.trust_would_do(call_id):
            # Trusted since the run began; the agent's process does not know of it yet.
            return Decision(call_id, tool, "allow_once")
        question = RequestPermissionRequest(
            session_id=session.id,
            tool_call=self._updates.permission_details(call_id),
            options=options(tool or "this tool", enabled=tool in grants),
        )
        return Decision(call_id, tool, choice_of(await self._client.request("session/request_permission", question)))

    async def _settle(self, run: Run, decisions: list[Decision]) -> None:
        session = self._session
        try:
            async with session.lock:
                if session.run is not run:
                    return
                await session.open_calls.refuse_wrong_answers([decision.call_id for decision in decisions])
                with session.entering():
                    await session.configure(with_decisions(session.config, decisions))
                    await session.open_calls.answer([decision.reply for decision in decisions], [])
        except BadRequest as error:
            log.info("session %s: somebody else was quicker: %s", session.id, error)
        except GatewayError as error:
            # A fresh agent was needed and did not start. The calls are open still, for whoever asks again.
            await self._shown.finish(rpc_error(error))
        else:
            await self._shown.tell_settings()

    def _tool(self, call_id: str) -> str:
        call = self._updates.calls.get(call_id)
        return call.name if call else ""
