"""Both transports of the daemon with the unmodified official Python client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from acp import connect_to_agent, text_block
from acp.http import create_http_stream
from acp.ws import create_websocket_stream

from tests.gateway.protocols.acp.conftest import WriteScenario, set_options
from tests.gateway.protocols.acp.raw_connections import BEARER
from tests.support.daemon import RunningGateway

pytestmark = pytest.mark.usefixtures("also_in_a_cluster")


class Client:
    """The client side of an editor: it keeps the updates and allows each permission request once."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.permission_requests: list[Any] = []
        self.text_received = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        if update.session_update == "agent_message_chunk":
            self.text_received.set()

    async def request_permission(self, options: list[Any], session_id: str, tool_call: Any, **_: Any) -> Any:
        self.permission_requests.append(tool_call)
        once = next(option for option in options if option.kind == "allow_once")
        return {"outcome": {"outcome": "selected", "optionId": once.option_id}}

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(update.content.text for update in self.updates if update.session_update == kind)


@asynccontextmanager
async def over(transport: str, portico: RunningGateway, agent: str) -> AsyncIterator[tuple[Any, Client]]:
    """A connection of the official client."""
    client = Client()
    if transport == "http":
        stream = create_http_stream(f"{portico.url}/acp/{agent}", headers=BEARER)
    else:
        stream = await create_websocket_stream(f"ws{portico.url[4:]}/acp/{agent}", headers=BEARER)
    connection = connect_to_agent(client, stream)
    try:
        await connection.initialize(protocol_version=1)
        yield connection, client
    finally:
        with suppress(Exception):
            await connection.close()


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_official_client_uses_a_session(transport: str, portico: RunningGateway, write_scenario: WriteScenario) -> None:
    call = {"name": "write_note", "input": {"path": "a.md", "text": "A"}, "result": "written"}
    burst = [{"thinking": "hm"}, {"events": {"count": 300, "text": "é {n} "}}, {"text": "last"}]
    asks = [{"tool_call": call}, {"text": "{last_result}"}]
    scenario = write_scenario(burst, asks, [{"text": "at work"}, {"hang": True}])
    async with over(transport, portico, "script") as (agent, client):
        session = (await agent.new_session(cwd=".", mcp_servers=[])).session_id
        await set_options(portico.gateway, session, scenario=scenario)

        async def prompt(text: str) -> Any:
            client.updates.clear()
            return await agent.prompt(session_id=session, prompt=[text_block(text)])

        assert (await prompt("go")).stop_reason == "end_turn"
        assert client.text("agent_thought_chunk") == "hm"
        assert client.text() == "".join(f"é {n} " for n in range(300)) + "last"
        chunks = [update for update in client.updates if update.session_update == "agent_message_chunk"]
        assert len({chunk.message_id for chunk in chunks[:300]}) == 1
        assert (await prompt("write")).stop_reason == "end_turn"
        assert (len(client.permission_requests), client.text()) == (1, "written")
        client.text_received.clear()
        prompting = asyncio.create_task(prompt("hang"))
        async with asyncio.timeout(60):
            await client.text_received.wait()
            await agent.cancel(session_id=session)
            assert (await prompting).stop_reason == "cancelled"
        assert [found.session_id for found in (await agent.list_sessions()).sessions] == [session]
    async with over(transport, portico, "script") as (agent, client):
        await agent.load_session(cwd=".", session_id=session, mcp_servers=[])
        assert client.text("user_message_chunk") == "gowritehang"
        assert client.text().endswith("lastwrittenat work")
