"""What every AAP version does with sessions: create, list, describe. The fields of the responses are the version's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fastapi.responses import Response, StreamingResponse
from pydantic_core import to_json

from drivers.contract.messages import MESSAGE, Message
from gateway.agents.folder_access import FOLDER_OF_SESSION, in_time
from gateway.app import Gateway
from gateway.errors import NotFound
from gateway.events.turn_reader import Turn
from gateway.protocols.aap.agent_info import declared_histories, displayed_values
from gateway.protocols.aap.schema import (
    AgentConfig,
    HistoryType,
    PendingCallInfo,
    SessionInfo,
    SessionWorktreeInfo,
    Tool,
    TurnUsage,
    iso_time,
)
from gateway.protocols.aap.settings_merge import merge_settings, with_output_schema
from gateway.protocols.aap.stop_reasons import STOP_REASONS
from gateway.protocols.cursors import decode_cursor, encode_cursor
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.stored_history import StoredHistory
from gateway.security.authentication import Caller
from gateway.security.redaction import HIDDEN
from gateway.sessions.message_checks import check_new, check_seed
from gateway.sessions.session import Session, Submission
from gateway.sessions.settings import SessionSettings, SessionSummary
from gateway.store import SessionRecord
from gateway.worktrees.worktrees import SessionWorktree

Info = TypeVar("Info", bound=SessionInfo)

HISTORY_CHUNK = 1024 * 1024
"""Bytes of a history that are sent at a time. A shorter one is a response with a Content-Length."""


async def create(
    gateway: Gateway,
    caller: Caller,
    requested: AgentConfig,
    tools: Iterable[Tool] | None,
    messages: Sequence[Message],
    key: IdempotencyKey | None = None,
) -> Session:
    """A session with a history; nothing runs. Raises BadRequest, AgentProblem, SessionElsewhere; then there is none."""
    await _place(gateway, requested)
    agent, config = gateway.agents.get(requested.name), await _config(gateway, caller, requested, tools)
    check_seed(agent, messages)
    return await gateway.sessions.create(caller, agent, config, messages, key=key)


async def create_and_submit(
    gateway: Gateway,
    caller: Caller,
    requested: AgentConfig,
    tools: Iterable[Tool] | None,
    messages: Sequence[Message],
    key: IdempotencyKey | None,
    disconnected: Callable[[], Awaitable[None]],
    *,
    output_schema: Mapping[str, Any] | None = None,
    cancel_on_disconnect: bool,
) -> tuple[Session, Turn]:
    """A session whose last message, the user's, is being answered.

    With `cancel_on_disconnect` the turn is cancelled if `disconnected` returns before the agent has the message. Raises
    BadRequest, AgentProblem, SessionElsewhere; then there is none.
    """
    await _place(gateway, requested)
    agent, config = gateway.agents.get(requested.name), await _config(gateway, caller, requested, tools)
    message = check_new(agent, messages)
    expected = (await in_time(partial(with_output_schema, config, output_schema), FOLDER_OF_SESSION)).answer
    session = await gateway.sessions.create(caller, agent, config, messages[:-1], wait_for_calls=False)
    try:
        request = Submission(
            message=message,
            answer=expected,
            key=key,
            disconnected=disconnected,
            cancel_on_disconnect=cancel_on_disconnect,
        )
        return session, await session.submit(request)
    except BaseException:
        await gateway.sessions.delete(caller, session.id)
        raise


async def _place(gateway: Gateway, requested: AgentConfig) -> None:
    """Raise SessionElsewhere if another node is to create the session: this one may have neither its agent nor its folder."""
    await gateway.sessions.place(requested.name, (requested.options or {}).get("cwd"), again=True)


async def _config(gateway: Gateway, caller: Caller, requested: AgentConfig, tools: Iterable[Tool] | None) -> SessionSettings:
    agent = gateway.agents.get(requested.name)
    await gateway.discovery.check_supported(agent)

    def checked() -> SessionSettings:
        config = merge_settings(
            SessionSettings(workspace_key=agent.workspace_key(caller.name)),
            agent,
            requested,
            tools,
            gateway.agents,
            any_folder=caller.any_folder,
        )
        agent.spec({**config.options, **config.secrets}, config.workspace_key)
        return config

    return await in_time(checked, FOLDER_OF_SESSION)


async def page(gateway: Gateway, caller: Caller, after: str | None, limit: int) -> tuple[list[SessionRecord], str | None]:
    """Sessions, newest first, and the cursor of the page after them, if there is one."""
    records = await gateway.sessions.page(caller, limit + 1, decode_cursor(after, parameter="after", source="`next`"))
    if len(records) <= limit:
        return records, None
    last = records[limit - 1]
    return records[:limit], encode_cursor(last.created_at, last.id)


def session_info(gateway: Gateway, kind: type[Info], tool: type[Tool], summary: SessionSummary) -> Info:
    """A session as a response of an AAP version."""
    config, agent = summary.config, gateway.agents.find(summary.agent)
    chosen = displayed_values(agent, config.options) if agent else config.options
    options = {**chosen, **{name: HIDDEN if value else "" for name, value in config.secrets.items()}}
    grants = None if config.tools is None else [{"name": grant.name, "trust": grant.trust} for grant in config.tools]
    return kind.model_validate(
        {
            "session_id": summary.id,
            "agent": {"name": summary.agent, "tools": grants, "options": options or None},
            "tools": None if config.app_tools is None else [tool.of(spec) for spec in config.app_tools],
            "own": {
                "state": summary.state,
                "stop_reason": "tool_use" if summary.state == "waiting" else STOP_REASONS.get(summary.stop_reason or ""),
                "error": summary.error,
                "title": summary.title,
                "created_at": iso_time(summary.created_at),
                "updated_at": iso_time(summary.used_at),
                "usage": TurnUsage.of(summary.usage) if summary.usage else None,
                "cwd": summary.cwd,
                "pending_calls": [PendingCallInfo.of(call) for call in summary.pending] or None,
                "waiting_since": iso_time(summary.waiting_since) if summary.waiting_since is not None else None,
                "forked_from": summary.forked_from,
                "last_seq": summary.last_seq,
                "queued": summary.queued,
                "queue_stopped": summary.queue_stopped,
                "worktree": _worktree(config.worktree),
            },
        }
    )


def _worktree(worktree: SessionWorktree | None) -> SessionWorktreeInfo | None:
    if worktree is None:
        return None
    return SessionWorktreeInfo(path=worktree.path, branch=worktree.branch, base=worktree.base)


async def histories(
    session: Session, requested: HistoryType | None, info: SessionInfo | None = None, *, errors_as_text: bool
) -> Response:
    """The requested history, or all that the agent declares, in the field `history`. Raises NotFound for one that it does not.

    It is read from the store and sent in chunks, so that memory does not grow with it. `info` are the fields before it. With
    `errors_as_text` the full history has the reasons of failed turns without text.
    """
    declared = declared_histories(session.agent)
    if requested is not None and requested not in declared:
        hint = f"ask for {' or '.join(declared)}" if declared else "it has none"
        raise NotFound(f"agent {session.agent.name!r} declares no {requested} history; {hint}")
    before = b"{" if info is None else to_json(info, by_alias=True)[:-1] + b","
    read: Mapping[HistoryType, Callable[[StoredHistory], AsyncIterator[Message]]] = {
        "compacted": StoredHistory.compacted,
        "full": StoredHistory.with_failures if errors_as_text else StoredHistory.messages,
    }
    kinds = declared if requested is None else (requested,)
    chunks = _history_json({kind: read[kind](session.history) for kind in kinds}, before)
    begin = [chunk async for chunk in _first_two(chunks)]
    if len(begin) < 2:
        return Response(b"".join(begin), media_type="application/json")
    return StreamingResponse(_joined(begin, chunks), media_type="application/json")


async def _history_json(kinds: Mapping[HistoryType, AsyncIterator[Message]], before: bytes) -> AsyncIterator[bytes]:
    parts, size = [before, b'"history":{'], 0
    for n, (kind, messages) in enumerate(kinds.items()):
        parts.append(b'%b"%b":' % (b"," if n else b"", kind.encode()))
        separator = b"["
        async for message in messages:
            data = MESSAGE.dump_json(message)
            parts += (separator, data)
            separator = b","
            size += len(data)
            if size >= HISTORY_CHUNK:
                yield b"".join(parts)
                parts, size = [], 0
        parts.append(b"[]" if separator == b"[" else b"]")
    yield b"".join(parts) + b"}}"


async def _first_two(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for _ in range(2):
        with suppress(StopAsyncIteration):
            yield await anext(chunks)


async def _joined(begin: Iterable[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in begin:
        yield chunk
    async for chunk in rest:
        yield chunk
