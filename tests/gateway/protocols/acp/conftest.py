"""Clients of the Agent Client Protocol on a gateway in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.protocols.acp.connection import Connection
from gateway.security.authentication import ADMINISTRATOR
from tests.support.acp_client import Client, connect
from tests.support.daemon import RunningGateway

ConnectClient = Callable[..., Awaitable[Client]]
Scripted = Callable[..., Awaitable[tuple[Client, str]]]
WriteScenario = Callable[..., str]


async def scripted_session(client: Client, gateway: Gateway, scenario: str) -> str:
    """A new session of the script agent with this scenario."""
    session = await client.new()
    await set_options(gateway, session, scenario=scenario)
    return session


async def set_options(gateway: Gateway, session_id: str, **options: str) -> None:
    """Set options of a session, as another client does."""
    session = await gateway.sessions.get(ADMINISTRATOR, session_id)
    async with session.lock:
        await session.configure(replace(session.config, options={**session.config.options, **options}))


@pytest.fixture
async def acp(portico: RunningGateway) -> AsyncIterator[ConnectClient]:
    """Connects and initializes clients of an agent, by default `script`."""
    connections: list[Connection] = []

    async def start(agent: str = "script", **capabilities: Any) -> Client:
        client, connection = connect(portico.gateway, agent)
        connections.append(connection)
        await client.initialize(**capabilities)
        return client

    yield start
    for connection in connections:
        await connection.close()


@pytest.fixture
def scripted(acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario) -> Scripted:
    """Connects a client, and creates a session whose agent plays the given turns. Keywords are capabilities of the client."""

    async def start(*turns: Any, **capabilities: Any) -> tuple[Client, str]:
        client = await acp(**capabilities)
        return client, await scripted_session(client, portico.gateway, write_scenario(*turns))

    return start
