"""A turn of AAP, whichever version asked for it: the request checked, the run started or answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal

from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.messages import ImageBlock, Message, SystemMessage, ToolMessage, UserMessage, blocks, text_of
from gateway.agents.configured import ConfiguredAgent
from gateway.errors import BadRequest, GatewayError
from gateway.events.turn import Turn
from gateway.protocols.aap.meta import check_messages, merge_settings
from gateway.protocols.aap.schema import AgentOverrides, Tool, ToolPermissionMessage, TurnMessage
from gateway.runs.idempotency import IdempotencyKey
from gateway.sessions.session import Session
from gateway.sessions.settings import SessionSettings

WhenBusy = Literal["refuse", "steer", "queue"]
Gone = Callable[[], Awaitable[None]]


async def never() -> None:
    """Nobody goes."""
    await asyncio.Event().wait()


async def take_turn(
    session: Session,
    messages: Sequence[TurnMessage],
    overrides: AgentOverrides | None,
    tools: Iterable[Tool] | None,
    ask: IdempotencyKey | None = None,
    *,
    when_busy: WhenBusy = "refuse",
    gone: Gone = never,
) -> Turn:
    """Start or go on with the session's run. Raises BadRequest, Conflict and others; then nothing has changed.

    A user message that finds a run at work is refused, or said to that run, or waits until `gone` returns.
    """
    said = _user_message(messages)
    if said is not None and when_busy == "queue":
        _check_said(session, said, overrides, tools)
        async with session.line.place(gone):
            return await _take(session, messages, overrides, tools, ask, in_line=True)
    if said is not None and when_busy == "steer":
        async with session.lock:
            if session.busy:
                _check_said(session, said, overrides, tools)
                if overrides is not None or tools is not None:
                    raise BadRequest("when_busy: a run at work keeps its settings; leave agent and tools out to steer it")
                return await session.steer(said, ask)
    return await _take(session, messages, overrides, tools, ask)


def _check_said(session: Session, said: UserMessage, overrides: AgentOverrides | None, tools: Iterable[Tool] | None) -> None:
    _config(session, overrides, tools)
    check_messages(session.agent, [said])
    check_prompt(said)


async def _take(
    session: Session,
    messages: Sequence[TurnMessage],
    overrides: AgentOverrides | None,
    tools: Iterable[Tool] | None,
    ask: IdempotencyKey | None,
    *,
    in_line: bool = False,
) -> Turn:
    said = _user_message(messages)
    async with session.lock:
        if said is None:
            await session.open_calls.refuse_wrong_answers([m.tool_call_id for m in messages if not isinstance(m, UserMessage)])
        session.refuse_if_busy(in_line=in_line)
        config, before = _config(session, overrides, tools), session.config
        replies, results = _answers(messages)
        check_messages(session.agent, results if said is None else [said])
        if said is not None:
            check_prompt(said)
        with session.entering():
            if said is not None:
                await session.open_calls.cancel()
            await session.configure(config)
            try:
                if said is None:
                    return await session.open_calls.answer(replies, results, ask)
                return await session.say(said, ask)
            except GatewayError:
                # With settings that the agent does not start with, the session would be of no use any more.
                await session.configure(before)
                raise


def _config(session: Session, overrides: AgentOverrides | None, tools: Iterable[Tool] | None) -> SessionSettings:
    if overrides and overrides.name is not None and overrides.name != session.agent.name:
        raise BadRequest(
            f"agent.name: this session is of agent {session.agent.name!r} and stays so; make a new session for {overrides.name!r}"
        )
    return merge_settings(session.config, session.agent, overrides, tools)


def _user_message(messages: Sequence[TurnMessage]) -> UserMessage | None:
    users = [message for message in messages if isinstance(message, UserMessage)]
    if not messages:
        raise BadRequest("messages: empty; send one user message, or the answers to the open tool calls")
    if users and len(messages) > 1:
        raise BadRequest("messages: a user message stands alone; answers to tool calls are sent without one")
    return users[0] if users else None


def _answers(messages: Sequence[TurnMessage]) -> tuple[list[Reply], list[ToolMessage]]:
    replies: list[Reply] = []
    results: list[ToolMessage] = []
    for message in messages:
        if isinstance(message, ToolPermissionMessage):
            replies.append(PermissionReply(message.tool_call_id, message.granted, message.reason))
        elif isinstance(message, ToolMessage):
            replies.append(ToolReply(message.tool_call_id, message.content))
            results.append(message)
    return replies, results


def check_new(agent: ConfiguredAgent, messages: Sequence[Message]) -> None:
    """Raises BadRequest unless these can start a session that answers at once: the last one is the user's."""
    if not messages or not isinstance(messages[-1], UserMessage):
        raise BadRequest("messages: the last message must be a user message, which the agent then answers")
    check_prompt(messages[-1])
    check_seed(agent, messages[:-1])
    check_messages(agent, messages[-1:])


def check_seed(agent: ConfiguredAgent, messages: Sequence[Message]) -> None:
    """Raises BadRequest unless the agent can be given these as a history."""
    if not agent.info.system and any(isinstance(message, SystemMessage) for message in messages):
        raise BadRequest(f"messages: agent {agent.name!r} takes no system message; leave it out")
    if not agent.info.seeds and any(not isinstance(message, SystemMessage) for message in messages):
        raise BadRequest(f"messages: agent {agent.name!r} cannot be given a history; begin with one user message, in a turn")
    check_messages(agent, messages)


def check_prompt(message: UserMessage) -> None:
    """Raises BadRequest for a message that says nothing: no CLI takes one."""
    images = any(isinstance(block, ImageBlock) for block in blocks(message.content))
    if not images and not text_of(message.content).strip():
        raise BadRequest("messages: the user message is blank; write a text or add an image")
