"""Session: one conversation with one agent. Its settings, its history, its live agent, and one run at a time."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from drivers.base import Agent, AgentGone, AgentUnavailable, Limits, Prompt, Reply, ResumeFailed, SessionSpec, ToolGrant, ToolSpec
from drivers.messages import MESSAGE, Message, SystemMessage, UserMessage
from drivers.process import Spawner
from gateway.agents import ConfiguredAgent
from gateway.errors import AgentProblem, BadRequest, Conflict, NotFound
from gateway.event_log import EventLog
from gateway.redaction import Redactor
from gateway.run import Run, RunState, Turn
from gateway.store import RunRecord, SessionRecord, Store
from gateway.vault import Vault

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionConfig:
    """What the client has set. `app_tools` are kept as the client gave them; `secrets` are the options that are hidden."""

    options: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[ToolGrant, ...] | None = None
    app_tools: tuple[ToolSpec, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything but the secrets, as JSON data."""
        tools = None if self.tools is None else [[grant.name, grant.trust] for grant in self.tools]
        app_tools = (
            None if self.app_tools is None else [[t.name, t.description, dict(t.input_schema), t.title] for t in self.app_tools]
        )
        return {"options": dict(self.options), "tools": tools, "app_tools": app_tools}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], secrets: Mapping[str, str]) -> SessionConfig:
        tools = None if data.get("tools") is None else tuple(ToolGrant(*grant) for grant in data["tools"])
        app_tools = None if data.get("app_tools") is None else tuple(ToolSpec(*tool) for tool in data["app_tools"])
        return cls(dict(data.get("options", {})), dict(secrets), tools, app_tools)


@dataclass(frozen=True)
class House:
    """What all sessions share."""

    store: Store
    vault: Vault
    redactor: Redactor
    spawner: Spawner
    limits: Limits
    states: Path
    admit: Callable[[Session], None]
    changed: Callable[[Session], None]


class Session:
    """Made and found by `Sessions`. What changes it happens under its lock, one request after the other."""

    def __init__(self, record: SessionRecord, config: SessionConfig, agent: ConfiguredAgent, house: House, last_seq: int) -> None:
        self.id, self.created_at = record.id, record.created_at
        self.agent, self.config = agent, config
        self.log = EventLog(record.id, house.store, last_seq)
        self.lock = asyncio.Lock()
        self.run: Run | None = None
        self.live: Agent | None = None
        self.used_at = time.monotonic()
        self.starting = self.deleted = False
        self._native_id = record.native_id
        self._outdated = False
        self._house = house

    @property
    def busy(self) -> bool:
        return self.run is not None and self.run.state is RunState.RUNNING

    @property
    def state(self) -> Literal["idle", "running", "waiting"]:
        """`idle`, `running`, or `waiting` for the client."""
        if self.run is None or self.run.state is RunState.ENDED:
            return "idle"
        return "waiting" if self.run.state is RunState.WAITING else "running"

    async def history(self) -> list[Message]:
        """All messages, exactly as they were given and made."""
        return [MESSAGE.validate_json(body) for body in await self._house.store.messages(self.id)]

    def refuse_if_busy(self) -> None:
        """Raises Conflict while a run is at work, NotFound once the session is deleted."""
        if self.deleted:
            raise NotFound(f"session {self.id!r} was deleted")
        if self.busy:
            raise Conflict("this session is at work on a turn; wait for its turn_stop, then send this again")

    async def configure(self, config: SessionConfig) -> None:
        """Replace the settings, for the session's life. Call it under the lock."""
        if config == self.config:
            return
        sealed = self._house.vault.seal(config.secrets)
        await self._house.store.update_session(self.id, config=config.to_json(), secrets=sealed)
        self.config = config
        # The CLI took its settings when it started; before the next run a fresh process resumes the native session.
        self._outdated = True

    async def say(self, message: UserMessage) -> Turn:
        """Start a run on a user message. Call it under the lock. Raises Conflict, AgentProblem; then nothing has changed."""
        self.refuse_if_busy()
        await self.cancel_open_calls()
        return await self._begin(message, [message])

    async def begin(self) -> Turn:
        """Start the first run, on the user message that the session was made with."""
        message = (await self.history())[-1]
        if not isinstance(message, UserMessage):
            raise BadRequest("the last message is not a user message, so there is nothing to answer")
        return await self._begin(message, [])

    async def answer(self, replies: Sequence[Reply], messages: Sequence[Message]) -> Turn:
        """Go on with a run that waits, with all its calls answered. Call it under the lock. Raises BadRequest, Conflict."""
        self.refuse_if_busy()
        run = self.run
        self.refuse_wrong_answers([reply.call_id for reply in replies])
        assert run is not None
        turn = Turn(self.log, self.log.last)
        if messages:
            await self._keep(messages)
        await run.answer(replies)
        return turn

    def refuse_wrong_answers(self, answered: Sequence[str]) -> None:
        """Raises BadRequest naming the ids unless these are exactly the open calls, each once."""
        waiting = set(self.run.calls) if self.run and self.run.state is RunState.WAITING else set()
        if not waiting:
            raise BadRequest(f"no tool call is open in this session, so {_ids(answered)} cannot be answered; send a user message")
        unknown = [call_id for call_id in answered if call_id not in waiting]
        if unknown:
            raise BadRequest(f"{_ids(unknown)} is not an open tool call; open are {_ids(sorted(waiting))}")
        if len(set(answered)) != len(answered):
            raise BadRequest(f"a tool call is answered twice in {_ids(answered)}; answer each once")
        missing = sorted(waiting - set(answered))
        if missing:
            raise BadRequest(f"{_ids(missing)} is still open; answer all open calls in one request")

    async def cancel_open_calls(self) -> None:
        """Give up a run that waits for the client."""
        if self.run is not None and self.run.state is RunState.WAITING:
            await self.run.cancel()

    async def sleep(self) -> None:
        """End the live agent, if it is idle; the native session is resumed when it is needed."""
        if self.live is not None and self.state == "idle":
            live, self.live = self.live, None
            await self._note_native_id(live)
            await live.close()
            self._house.changed(self)

    async def stop(self, why: str) -> None:
        """End the run, with this as its error, and the agent: the daemon goes down or the session is deleted."""
        if self.run is not None:
            await self.run.fail(why)
        live, self.live = self.live, None
        if live is not None:
            await live.close()
        await self.log.written()

    async def _begin(self, message: UserMessage, to_store: Sequence[Message]) -> Turn:
        self.used_at = time.monotonic()
        agent = await self._awake(unsaid=0 if to_store else 1)
        turn = Turn(self.log, self.log.last)
        house = self._house
        run = Run(f"run_{uuid.uuid4().hex}", agent, self.log, store=house.store, redactor=house.redactor, keep=self._keep)
        record = RunRecord(run.id, self.id, run.state.value, None, run.first_seq)
        self.run = run
        # The agent begins while its run is stored; nothing of it is read, let alone shown, before both are done.
        storing = asyncio.create_task(house.store.start_run(record, [_json(m) for m in to_store]))
        try:
            taken = await self._takes(agent, Prompt(message.content))
            await storing
            if not taken:
                # It ended between two turns, unseen; its native session is on disk.
                run.agent = await self._awake(unsaid=1)
                await run.agent.prompt(Prompt(message.content))
        except BaseException:
            await agent.close(0.0)
            await asyncio.wait([storing])
            await run.fail("the agent did not take the prompt")
            raise
        run.start(self._run_ended)
        house.changed(self)
        return turn

    async def _takes(self, agent: Agent, prompt: Prompt) -> bool:
        try:
            await agent.prompt(prompt)
        except AgentGone:
            return False
        return True

    def _run_ended(self, run: Run) -> None:
        self.used_at = time.monotonic()
        self._house.changed(self)

    async def _awake(self, unsaid: int) -> Agent:
        """The live agent; started, resumed or seeded if there is none. Raises AgentProblem, TooMany.

        `unsaid` of the stored messages, at the end, are not for the seed: they are about to be prompted.
        """
        self._house.admit(self)
        if self.live is not None and self.live.alive and not self._outdated:
            return self.live
        if self.live is not None:
            await self._note_native_id(self.live)
            await self.live.close()
            self.live = None
        self.starting = True
        try:
            self.live = await self._open(unsaid)
        except AgentUnavailable as error:
            raise AgentProblem(self._house.redactor.clean(f"agent {self.agent.name!r} cannot start: {error}")) from error
        finally:
            self.starting = False
            # Held from here on, whatever comes next: an agent that nobody holds would never be closed.
            self._house.changed(self)
        self._outdated = False
        await self._note_native_id(self.live)
        return self.live

    async def _note_native_id(self, agent: Agent) -> None:
        if agent.native_id and agent.native_id != self._native_id:
            self._native_id = agent.native_id
            await self._house.store.update_session(self.id, native_id=self._native_id)

    async def _open(self, unsaid: int) -> Agent:
        spec = await self._spec(unsaid)
        if self._native_id is not None:
            try:
                return await self._start(replace(spec, resume=self._native_id, history=()))
            except ResumeFailed:
                log.info("session %s: its native session is gone, a fresh one is seeded with the history", self.id)
        return await self._start(spec)

    async def _start(self, spec: SessionSpec) -> Agent:
        return await self.agent.driver.open(spec, self._house.spawner, self._house.limits)

    async def _spec(self, unsaid: int) -> SessionSpec:
        history = await self.history()
        history = history[: len(history) - unsaid]
        base = self.agent.spec({**self.config.options, **self.config.secrets})
        system = "\n\n".join(message.content for message in history if isinstance(message, SystemMessage))
        return SessionSpec(
            base.program,
            base.cwd,
            base.env,
            base.args,
            base.options,
            self._house.states / self.id,
            system=system or None,
            tools=self.config.tools or (),
            app_tools=self.config.app_tools or (),
            history=tuple(message for message in history if not isinstance(message, SystemMessage)),
        )

    async def _keep(self, messages: Sequence[Message]) -> None:
        await self._house.store.append_messages(self.id, [_json(message) for message in messages])


def _tool_json(tool: ToolSpec) -> list[Any]:
    return [tool.name, tool.description, dict(tool.input_schema), tool.title]


def _json(message: Message) -> str:
    return message.model_dump_json()


def _ids(ids: Sequence[str]) -> str:
    return ", ".join(repr(call_id) for call_id in ids)
