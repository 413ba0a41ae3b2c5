"""Maps a request for a turn, of any AAP version, to what a session takes (`Submission`), and checks its messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.messages import ImageBlock, Message, SystemMessage, ToolMessage, UserMessage, blocks, text_of
from gateway.agents.configured import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.protocols.aap.meta import check_messages, merge_settings
from gateway.protocols.aap.schema import Tool, ToolPermissionMessage, TurnMessage, TurnRequest
from gateway.runs.idempotency import IdempotencyKey
from gateway.sessions.session import Session, Submission
from gateway.sessions.settings import SessionSettings


def submission(
    session: Session,
    request: TurnRequest,
    tools: Iterable[Tool] | None,
    key: IdempotencyKey | None,
    disconnected: Callable[[], Awaitable[None]],
) -> Submission:
    """The request as the session takes it; `disconnected` returns when the client's connection is gone. Raises BadRequest."""
    agent, overrides = session.agent, request.agent
    message = _user_message(request.messages)
    replies = _replies(request.messages)
    if overrides and overrides.name is not None and overrides.name != agent.name:
        raise BadRequest(
            f"agent.name: this session is of agent {agent.name!r} and stays so; make a new session for {overrides.name!r}"
        )
    tools = None if tools is None else tuple(tools)

    def settings(config: SessionSettings) -> SessionSettings:
        return merge_settings(config, agent, overrides, tools)

    # A wrong option is refused at once, not when the request is the first in the queue.
    settings(session.config)
    check_messages(agent, [m for m in request.messages if isinstance(m, UserMessage | ToolMessage)])
    if message is not None:
        check_prompt(message)
    return Submission(
        message=message,
        replies=replies,
        settings=None if overrides is None and tools is None else settings,
        key=key,
        when_busy=request.when_busy,
        disconnected=disconnected,
    )


def _user_message(messages: Sequence[TurnMessage]) -> UserMessage | None:
    users = [message for message in messages if isinstance(message, UserMessage)]
    if not messages:
        raise BadRequest("messages: empty; send one user message, or the answers to the pending tool calls")
    if users and len(messages) > 1:
        raise BadRequest("messages: a user message stands alone; answers to tool calls are sent without one")
    return users[0] if users else None


def _replies(messages: Sequence[TurnMessage]) -> list[Reply]:
    replies: list[Reply] = []
    for message in messages:
        if isinstance(message, ToolPermissionMessage):
            replies.append(PermissionReply(message.tool_call_id, message.granted, message.reason))
        elif isinstance(message, ToolMessage):
            replies.append(ToolReply(message.tool_call_id, message.content))
    return replies


def check_new(agent: ConfiguredAgent, messages: Sequence[Message]) -> UserMessage:
    """The message that a new session begins with: the last one. Raises BadRequest unless these can start a session that answers
    at once."""
    if not messages or not isinstance(messages[-1], UserMessage):
        raise BadRequest("messages: the last message must be a user message, which the agent then answers")
    check_prompt(messages[-1])
    check_seed(agent, messages[:-1])
    check_messages(agent, messages[-1:])
    return messages[-1]


def check_seed(agent: ConfiguredAgent, messages: Sequence[Message]) -> None:
    """Raises BadRequest unless the agent can be given these as a history."""
    if not agent.info.system and any(isinstance(message, SystemMessage) for message in messages):
        raise BadRequest(f"messages: agent {agent.name!r} takes no system message; leave it out")
    if not agent.info.seeds and any(not isinstance(message, SystemMessage) for message in messages):
        raise BadRequest(f"messages: agent {agent.name!r} cannot be given a history; begin with one user message, in a turn")
    check_messages(agent, messages)


def check_prompt(message: UserMessage) -> None:
    """Raises BadRequest for a message without text and images: no CLI takes one."""
    images = any(isinstance(block, ImageBlock) for block in blocks(message.content))
    if not images and not text_of(message.content).strip():
        raise BadRequest("messages: the user message is blank; write a text or add an image")
