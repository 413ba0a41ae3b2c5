"""Maps a request for a turn, of any AAP version, to what a session takes (`Submission`), and checks its messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.messages import ToolMessage, UserMessage
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.protocols.aap.schema import Tool, ToolPermissionMessage, TurnMessage, TurnRequest
from gateway.protocols.aap.settings_merge import merge_settings
from gateway.runs.idempotency import IdempotencyKey
from gateway.sessions.message_checks import check_messages, check_prompt
from gateway.sessions.session import Session, Submission
from gateway.sessions.settings import SessionSettings


def submission(
    agents: Iterable[ConfiguredAgent],
    session: Session,
    request: TurnRequest,
    tools: Iterable[Tool] | None,
    key: IdempotencyKey | None,
    disconnected: Callable[[], Awaitable[None]],
    *,
    cancel_on_disconnect: bool,
    any_folder: bool = False,
) -> Submission:
    """The request as the session takes it. Raises BadRequest, which may name others of the `agents`.

    `disconnected` returns when the client's connection is gone. `any_folder` is the caller's right to name folders outside of
    the agent's own.
    """
    agent, overrides = session.agent, request.agent
    message = _user_message(request.messages)
    replies = _replies(request.messages)
    if overrides and overrides.name is not None and overrides.name != agent.name:
        raise BadRequest(
            f"agent.name: this session is of agent {agent.name!r} and stays so; make a new session for {overrides.name!r}"
        )
    tools = None if tools is None else tuple(tools)

    def settings(config: SessionSettings) -> SessionSettings:
        return merge_settings(config, agent, overrides, tools, agents, any_folder=any_folder)

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
        cancel_on_disconnect=cancel_on_disconnect,
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
