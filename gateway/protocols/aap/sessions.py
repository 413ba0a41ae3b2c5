"""What every AAP version does with sessions: create, list, describe. The fields of the responses are the version's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from drivers.contract.messages import Message
from gateway.errors import NotFound
from gateway.events.turn_reader import Turn
from gateway.gateway import Gateway
from gateway.protocols.aap.agent_info import declared_histories
from gateway.protocols.aap.schema import AgentConfig, HistoryType, SessionHistory, SessionInfo, Tool
from gateway.protocols.aap.settings_merge import merge_settings
from gateway.protocols.aap.stop_reasons import STOP_REASONS
from gateway.protocols.aap.validation import check_new, check_seed
from gateway.protocols.cursors import decode_cursor, encode_cursor
from gateway.runs.idempotency import IdempotencyKey
from gateway.security.authentication import Caller
from gateway.security.redaction import HIDDEN
from gateway.sessions.session import Session, Submission
from gateway.sessions.settings import SessionSettings, SessionSummary
from gateway.store import SessionRecord

Info = TypeVar("Info", bound=SessionInfo)

_HISTORIES: Mapping[HistoryType, Callable[[Session], Awaitable[list[Message]]]] = {
    "compacted": Session.compacted_history,
    "full": Session.history,
}


async def create(
    gateway: Gateway,
    caller: Caller,
    requested: AgentConfig,
    tools: Iterable[Tool] | None,
    messages: Sequence[Message],
    key: IdempotencyKey | None = None,
) -> Session:
    """A session with a history; nothing runs. Raises BadRequest, AgentProblem; then there is none."""
    agent, config = gateway.agents.get(requested.name), _config(gateway, requested, tools)
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
    cancel_on_disconnect: bool,
) -> tuple[Session, Turn]:
    """A session whose last message, the user's, is being answered. Raises BadRequest, AgentProblem; then there is none.

    With `cancel_on_disconnect` the turn is cancelled if `disconnected` returns before the agent has the message.
    """
    agent, config = gateway.agents.get(requested.name), _config(gateway, requested, tools)
    message = check_new(agent, messages)
    session = await gateway.sessions.create(caller, agent, config, messages[:-1], wait_for_calls=False)
    try:
        request = Submission(message=message, key=key, disconnected=disconnected, cancel_on_disconnect=cancel_on_disconnect)
        return session, await session.submit(request)
    except BaseException:
        await gateway.sessions.delete(caller, session.id)
        raise


def _config(gateway: Gateway, requested: AgentConfig, tools: Iterable[Tool] | None) -> SessionSettings:
    agent = gateway.agents.get(requested.name)
    config = merge_settings(SessionSettings(), agent, requested, tools)
    agent.spec({**config.options, **config.secrets})
    return config


async def page(gateway: Gateway, caller: Caller, after: str | None, limit: int) -> tuple[list[SessionRecord], str | None]:
    """Sessions, newest first, and the cursor of the page after them, if there is one."""
    records = await gateway.sessions.page(caller, limit + 1, decode_cursor(after, parameter="after", source="`next`"))
    if len(records) <= limit:
        return records, None
    last = records[limit - 1]
    return records[:limit], encode_cursor(last.created_at, last.id)


def session_info(kind: type[Info], tool: type[Tool], summary: SessionSummary, **more: Any) -> Info:
    """A session as a response of an AAP version; `more` are the fields that only that version has."""
    config = summary.config
    options = {**config.options, **dict.fromkeys(config.secrets, HIDDEN)}
    grants = None if config.tools is None else [{"name": grant.name, "trust": grant.trust} for grant in config.tools]
    return kind.model_validate(
        {
            "session_id": summary.id,
            "agent": {"name": summary.agent, "tools": grants, "options": options or None},
            "tools": None if config.app_tools is None else [tool.of(spec) for spec in config.app_tools],
            "state": summary.state,
            "stop_reason": "tool_use" if summary.state == "waiting" else STOP_REASONS.get(summary.stop_reason or ""),
            **more,
        }
    )


async def histories(session: Session, requested: HistoryType | None) -> SessionHistory:
    """The requested history, or all that the agent declares. Raises NotFound for one that it does not."""
    declared = declared_histories(session.agent)
    if requested is not None and requested not in declared:
        hint = f"ask for {' or '.join(declared)}" if declared else "it has none"
        raise NotFound(f"agent {session.agent.name!r} declares no {requested} history; {hint}")
    kinds = declared if requested is None else (requested,)
    return SessionHistory.model_validate({kind: await _HISTORIES[kind](session) for kind in kinds})
