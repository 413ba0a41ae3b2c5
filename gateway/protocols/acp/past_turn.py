"""The messages of the Agent Client Protocol that the client of a past turn has got, by the view that sends them to clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from gateway.agents.folder_access import FOLDER_OF_SESSION, in_time
from gateway.app import Gateway
from gateway.events.event_log import Entry
from gateway.protocols.acp.initialization import ClientFeatures
from gateway.protocols.acp.rpc import Client, RpcError
from gateway.protocols.acp.session_info import SessionInfoUpdates
from gateway.protocols.acp.session_view import SessionView
from gateway.sessions.session import Session

PROMPT_ID = 1
"""The id of the client's `session/prompt`."""


async def messages_of_turn(
    gateway: Gateway, session: Session, before: AsyncIterator[Sequence[Entry]], turn: Sequence[Entry]
) -> list[Mapping[str, Any]]:
    """Return the JSON-RPC messages for the events of a turn. `before` are those of its run before it.

    The client is one without optional features. The last message is the response to its prompt, if the run ends with the turn.
    """
    sent: list[Mapping[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if "method" in message and "id" in message:
            # The answer is in the next turn's events.
            client.resolve({"id": message["id"], "result": {"outcome": {"outcome": "cancelled"}}})

    client = Client(send, session.redactor, last_request_id=PROMPT_ID)
    probe = (await gateway.discovery.probe(session.agent)).probe
    cwd = await in_time(session.working_directory, FOLDER_OF_SESSION)
    view = SessionView(session, client, SessionInfoUpdates(session, probe, gateway.store), ClientFeatures(), cwd)
    try:
        await view.info.load_metadata()
        # What the client got when it opened the session.
        view.info.changes()
        prompted = True
        async for entries in before:
            await view.replay_turn(entries, prompted=prompted)
            prompted = False
        sent.clear()
        outcome = await view.replay_turn(turn, prompted=prompted)
    finally:
        await view.close()
    if isinstance(outcome, RpcError):
        await client.respond_error(PROMPT_ID, outcome)
    elif outcome is not None:
        await client.respond(PROMPT_ID, outcome)
    return sent
