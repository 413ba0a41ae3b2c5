"""AnswerFormat: what a client wants an answer to be. FormattedAgent asks the agent for it, and asks once more if it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

from pydantic_core import to_json

from drivers.contract.agent import Agent, DeniedCall, ProcessUse, Prompt, Reply, ToolReply
from drivers.contract.driver_info import TakesSchema
from drivers.contract.errors import AgentGone
from drivers.contract.events import (
    AgentToken,
    Commands,
    ContextUse,
    Hook,
    MessageEnd,
    ModeChanged,
    NativeSession,
    OutputEvent,
    RateLimit,
    SessionEnd,
    Stdout,
    StructuredOutput,
    Title,
    ToolCall,
    Usage,
)
from drivers.contract.messages import Message, TextBlock, blocks
from drivers.runtime.clock import Clock
from drivers.runtime.file_threads import bounded
from gateway.errors import BadRequest
from gateway.runs.history_as_text import with_history

CHECK_SECONDS = 5.0
"""The time limit for the check of an answer, whose schema is the client's."""
_UNRELATED: frozenset[type[OutputEvent]] = frozenset(
    (Usage, ContextUse, RateLimit, NativeSession, Commands, Title, Stdout, ModeChanged, Hook)
)
"""Events that say nothing about whether a message is the last one."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What an answer has to be: JSON of a schema, or a call of one of the application's tools, or one of both."""

    schema: Mapping[str, Any] | None = None
    """The JSON schema; None for text."""
    tools: tuple[str, ...] = ()
    """The names of the tools of which the agent has to call one; empty if it may answer without a call."""

    def to_json(self) -> dict[str, Any]:
        return {"schema": self.schema, "tools": list(self.tools)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AnswerFormat:
        return cls(data["schema"], tuple(data["tools"]))


def require_schema(schema: Mapping[str, Any], field: str) -> None:
    """Raise BadRequest if this is no JSON schema. It may take long: call it in a thread."""
    if (problem := _json_answers().schema_problem(schema)) is not None:
        raise BadRequest(f"{field}: is no JSON schema that can be used here: {problem}")


def _json_answers() -> ModuleType:
    # jsonschema: 0.1 s, and most daemons never need it.
    from gateway.runs import json_answers

    return json_answers


def _find_value(text: str, schema: Mapping[str, Any]) -> tuple[Any, str | None]:
    found: tuple[Any, str | None] = _json_answers().find_value(text, schema)
    return found


class FormattedAgent(Agent):
    """An agent whose answers have a format, if `expected` is set: it is asked once more for an answer that has not.

    The text of the last message is held back until it is known. What is asked for again is no part of the conversation. `untold`
    are earlier messages that the agent does not know: its first prompt has them as text.

    Parameters:
        agent: The agent itself.
        takes_schema: How its CLI takes a schema; None where the prompt has to have it.
    """

    def __init__(self, agent: Agent, takes_schema: Callable[[Mapping[str, Any]], TakesSchema | None], clock: Clock) -> None:
        self.expected: AnswerFormat | None = None
        self.untold: Sequence[Message] = ()
        self.agent, self._takes_schema, self._clock = agent, takes_schema, clock
        self._begin()

    def _begin(self) -> None:
        self._ready: list[OutputEvent] = []
        self._held: list[OutputEvent] = []
        self._message_over = self._called = self._asked_again = self._interrupted = False
        self._end: SessionEnd | None = None
        self._milliseconds = 0

    # -- the agent itself -------------------------------------------------------------------------------------------------

    @property
    def native_id(self) -> str | None:  # type: ignore[override]
        return self.agent.native_id

    @property
    def resumable(self) -> bool:  # type: ignore[override]
        return self.agent.resumable

    @property
    def alive(self) -> bool:
        return self.agent.alive

    async def steer(self, prompt: Prompt) -> bool:
        return await self.agent.steer(prompt)

    async def set_mode(self, mode: str) -> bool:
        return await self.agent.set_mode(mode)

    def watch_commands(self, reported: Callable[[Commands], None]) -> bool:
        return self.agent.watch_commands(reported)

    def watch_denials(self, denied: Callable[[DeniedCall], None]) -> None:
        self.agent.watch_denials(denied)

    async def process_use(self) -> ProcessUse | None:
        return await self.agent.process_use()

    async def close(self, grace: float | None = None) -> None:
        await self.agent.close(grace)

    # -- a run ------------------------------------------------------------------------------------------------------------

    async def prompt(self, prompt: Prompt) -> None:
        self._begin()
        told = with_history(prompt, self.untold) if self.untold else prompt
        await self.agent.prompt(told if self.expected is None else self._with_format(told, self.expected))
        self.untold = ()

    async def reply(self, reply: Reply) -> None:
        if isinstance(reply, ToolReply):
            self._called = self._asked_again = False
        await self.agent.reply(reply)

    async def interrupt(self, grace: float | None = None) -> None:
        self._interrupted = True
        if self._end is None:
            await self.agent.interrupt(grace)

    async def receive(self) -> Sequence[OutputEvent]:
        if self.expected is None and not self._held and self._end is None:
            return await self.agent.receive()
        while not self._ready:
            if self._end is None:
                self._take(await self.agent.receive())
            if self._end is not None:
                await self._judge(self._end)
        ready, self._ready = self._ready, []
        return ready

    def _with_format(self, prompt: Prompt, expected: AnswerFormat) -> Prompt:
        asked: list[str] = []
        if expected.schema is not None:
            takes = self._takes_schema(expected.schema)
            if takes == "with_prompt":
                prompt = replace(prompt, output_schema=expected.schema)
            elif takes is None:
                asked.append(_asks_for_json(expected.schema))
        if expected.tools:
            asked.append(_asks_for_call(expected.tools))
        if not asked or prompt.go_on:
            return prompt
        return replace(prompt, content=(*blocks(prompt.content), *(TextBlock(text=f"\n\n{text}") for text in asked)))

    def _take(self, events: Sequence[OutputEvent]) -> None:
        for event in events:
            kind = type(event)
            if isinstance(event, AgentToken):
                if self._message_over:
                    self._release()
                self._held.append(event)
            elif isinstance(event, MessageEnd) and not event.discarded:
                self._message_over = bool(self._held)
                (self._held if self._held else self._ready).append(event)
            elif isinstance(event, SessionEnd):
                self._end = event
            else:
                if isinstance(event, MessageEnd):
                    self._held = [] if not self._message_over else self._held
                if kind not in _UNRELATED:
                    self._release()
                    self._called = self._called or self._is_required_call(event)
                self._ready.append(event)

    def _is_required_call(self, event: OutputEvent) -> bool:
        if self.expected is None or not isinstance(event, ToolCall):
            return False
        return event.status == "started" and event.name in self.expected.tools

    def _release(self) -> None:
        """The text that was held back is that of any message."""
        self._ready += self._held
        self._held, self._message_over = [], False

    async def _judge(self, end: SessionEnd) -> None:
        """Give the end of the run, or ask once more."""
        expected, output = self.expected, list[OutputEvent]()
        if expected is not None and end.stop_reason == "end_turn" and not self._interrupted:
            missing: str | None = None
            if expected.tools:
                missing = None if self._called else f"You have not called a tool. {_asks_for_call(expected.tools)}"
            elif expected.schema is not None:
                value, problem = await self._checked(expected.schema)
                if problem is None:
                    text = AgentToken(text=to_json(value).decode())
                    self._held = [text, *(event for event in self._held if isinstance(event, MessageEnd))]
                    output = [StructuredOutput(value=value)]
                else:
                    missing = f"Your answer does not match the JSON schema: {problem}\n\n{_asks_for_json(expected.schema)}"
                    output = [StructuredOutput(error=f"the answer does not match the JSON schema: {problem}")]
            if missing is not None and not (self._asked_again or self._interrupted) and await self._ask_again(missing, end):
                return
        self._release()
        self._ready += [*output, end.model_copy(update={"duration_ms": end.duration_ms + self._milliseconds})]
        self._end = None

    async def _checked(self, schema: Mapping[str, Any]) -> tuple[Any, str | None]:
        text = "".join(event.text for event in self._held if isinstance(event, AgentToken))
        try:
            return await bounded(partial(_find_value, text, schema), CHECK_SECONDS, self._clock)
        except OSError as error:
            # TimeoutError is one: the schema is one that takes very long.
            return None, str(error) or f"it was not checked within {CHECK_SECONDS:g} s"

    async def _ask_again(self, text: str, end: SessionEnd) -> bool:
        """Prompt the agent in the same run. False if it is gone."""
        self._asked_again = True
        schema = self.expected.schema if self.expected is not None else None
        if schema is not None and self._takes_schema(schema) != "with_prompt":
            schema = None
        try:
            await self.agent.prompt(Prompt(text, output_schema=schema))
        except AgentGone:
            return False
        self._held, self._message_over, self._end = [], False, None
        self._milliseconds += end.duration_ms
        if self._interrupted:
            await self.agent.interrupt()
        return True


def _asks_for_json(schema: Mapping[str, Any]) -> str:
    return (
        "Answer with one JSON value that matches this JSON schema, and with nothing else: no explanation, and no Markdown.\n"
        f"{to_json(schema).decode()}"
    )


def _asks_for_call(tools: Sequence[str]) -> str:
    names = " or ".join(f"`{name}`" for name in tools)
    return f"Answer by a call of the tool {names}." if len(tools) == 1 else f"Answer by a call of one of the tools {names}."
