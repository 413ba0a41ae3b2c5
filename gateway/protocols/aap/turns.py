"""Maps a request for a turn, of any AAP version, to what a session takes (`Submission`), and checks its messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.messages import ToolMessage, UserMessage
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.agents.folder_access import FOLDER_OF_SESSION, in_time
from gateway.errors import BadRequest, Conflict
from gateway.events.messages import EXTENSIONS
from gateway.protocols.aap.schema import Tool, ToolPermissionMessage, TurnMessage, TurnRequest, iso_time
from gateway.protocols.aap.settings_merge import merge_settings, with_output_schema
from gateway.runs.answer_format import AnswerFormat
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.pending_calls import ids
from gateway.sessions.message_checks import check_messages, check_prompt
from gateway.sessions.permission_choices import ChosenAnswer, choices_of, chosen, with_choices
from gateway.sessions.session import Session, Submission
from gateway.sessions.settings import SessionSettings


async def submission(
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
    made = _choices(session, request.messages)
    replies = _replies(request.messages, made)
    if overrides and overrides.name is not None and overrides.name != agent.name:
        raise BadRequest(
            f"agent.name: this session is of agent {agent.name!r} and stays so; make a new session for {overrides.name!r}"
        )
    tools = None if tools is None else tuple(tools)

    def settings(config: SessionSettings) -> SessionSettings:
        config = with_output_schema(config, request.output_schema)
        return merge_settings(config, agent, overrides, tools, agents, any_folder=any_folder)

    def with_answers(config: SessionSettings) -> SessionSettings:
        _require_pending(made)
        _require_seen(session, request.messages)
        return with_choices(settings(config), [answer for answer in made.values() if answer is not None])

    changes = not (overrides is None and tools is None and request.output_schema is None)
    checked = made or any(_seen(message) for message in request.messages)
    # A wrong option is refused at once, not when the request is the first in the queue.
    await in_time(partial(settings, session.config), FOLDER_OF_SESSION)
    check_messages(agent, [m for m in request.messages if isinstance(m, UserMessage | ToolMessage)])
    if message is not None:
        check_prompt(message)
    return Submission(
        message=message,
        replies=replies,
        settings=with_answers if checked else settings if changes else None,
        key=key,
        when_busy=request.when_busy,
        disconnected=disconnected,
        cancel_on_disconnect=cancel_on_disconnect,
        run_id=session.run.id if made and session.run is not None else None,
        answer=AnswerFormat(request.output_schema) if request.output_schema is not None else None,
    )


def _user_message(messages: Sequence[TurnMessage]) -> UserMessage | None:
    users = [message for message in messages if isinstance(message, UserMessage)]
    if not messages:
        raise BadRequest("messages: empty; send one user message, or the answers to the pending tool calls")
    if users and len(messages) > 1:
        raise BadRequest("messages: a user message stands alone; answers to tool calls are sent without one")
    return users[0] if users else None


def _choices(session: Session, messages: Sequence[TurnMessage]) -> dict[str, ChosenAnswer | None]:
    """The choices of the messages that make one, by their calls; None for a call that is not pending.

    Raises BadRequest for a choice that its call does not have, and for one that is not what `granted` says.
    """
    made: dict[str, ChosenAnswer | None] = {}
    for n, message in enumerate(messages):
        if not isinstance(message, ToolPermissionMessage) or message.own is None or message.own.choice is None:
            continue
        call_id, choice, where = message.tool_call_id, message.own.choice, f"messages.{n}.{EXTENSIONS}.choice"
        run = session.run
        call = run.pending.calls.get(call_id) if run is not None else None
        if run is None or call is None:
            made[call_id] = None
            continue
        block = run.call(call_id)
        tool = block.name if block is not None else ""
        answer = chosen(call, tool, session.config, choice)
        if answer is None:
            there = ", ".join(repr(one.id) for one in choices_of(call, tool, session.config))
            what = f"it has {there}" if there else f"it waits for its {call.wants}, not for a permission"
            raise BadRequest(f"{where}: the call {call_id!r} has no choice {choice[:64]!r}; {what}")
        if answer.granted != message.granted:
            raise BadRequest(
                f"{where}: {choice!r} {'grants' if answer.granted else 'rejects'} the call, and granted is "
                f"{str(message.granted).lower()}; send both alike"
            )
        made[call_id] = answer
    return made


def _require_pending(made: Mapping[str, ChosenAnswer | None]) -> None:
    """Raise Conflict for a choice about a call that was not pending when the request came: it was not checked."""
    if unknown := [call_id for call_id, answer in made.items() if answer is None]:
        raise Conflict(f"{ids(unknown)} was not pending when this came; GET the session, and send the choice again")


def _seen(message: TurnMessage) -> str | None:
    return message.own.waiting_since if isinstance(message, ToolPermissionMessage) and message.own is not None else None


def _require_seen(session: Session, messages: Sequence[TurnMessage]) -> None:
    """Raise Conflict for answers to calls that waited before: an agent may use the id of a call again."""
    since = None if session.waiting_since is None else iso_time(session.waiting_since)
    if any(_seen(message) not in (None, since) for message in messages):
        raise Conflict("other calls wait by now than those that were answered; nothing was done. GET the session to see them")


def _replies(messages: Sequence[TurnMessage], made: Mapping[str, ChosenAnswer | None]) -> list[Reply]:
    replies: list[Reply] = []
    for message in messages:
        if isinstance(message, ToolPermissionMessage):
            answer = made.get(message.tool_call_id)
            plain = PermissionReply(message.tool_call_id, "allow" if message.granted else "deny", message.reason)
            replies.append(plain if answer is None else answer.reply(message.reason))
        elif isinstance(message, ToolMessage):
            replies.append(ToolReply(message.tool_call_id, message.content))
    return replies
