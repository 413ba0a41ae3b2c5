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


@pytest.fixture(params=["ws", "http"])
def transport(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


async def test_official_client_prompts_and_lists_a_session(transport: str, portico: RunningGateway) -> None:
    async with over(transport, portico, "echo") as (agent, client):
        session = await agent.new_session(cwd=".", mcp_servers=[])
        for text in ("one", "two"):
            answer = await agent.prompt(session_id=session.session_id, prompt=[text_block(text)])
            assert answer.stop_reason == "end_turn"
        assert client.text() == "onetwo"
        listed = await agent.list_sessions()
        assert [found.session_id for found in listed.sessions] == [session.session_id]


async def test_official_client_gets_all_events_of_a_burst(
    transport: str, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    deltas = [{"thinking": "hm"}, {"events": {"count": 300, "text": "é {n} "}}, {"text": "last"}]
    scenario = write_scenario(deltas)
    async with over(transport, portico, "script") as (agent, client):
        session = (await agent.new_session(cwd=".", mcp_servers=[])).session_id
        await set_options(portico.gateway, session, scenario=scenario)
        answer = await agent.prompt(session_id=session, prompt=[text_block("go")])
        assert answer.stop_reason == "end_turn"
        assert client.text("agent_thought_chunk") == "hm"
        assert client.text() == "".join(f"é {n} " for n in range(300)) + "last"
        chunks = [update for update in client.updates if update.session_update == "agent_message_chunk"]
        assert len({chunk.message_id for chunk in chunks[:300]}) == 1


async def test_official_client_continues_a_loaded_session(transport: str, portico: RunningGateway) -> None:
    async with over(transport, portico, "echo") as (agent, _):
        session = (await agent.new_session(cwd=".", mcp_servers=[])).session_id
        await agent.prompt(session_id=session, prompt=[text_block("before")])
    async with over(transport, portico, "echo") as (agent, client):
        await agent.load_session(cwd=".", session_id=session, mcp_servers=[])
        assert (client.text("user_message_chunk"), client.text()) == ("before", "before")
        client.updates.clear()
        await agent.prompt(session_id=session, prompt=[text_block("after")])
        assert client.text() == "after"


async def test_official_client_cancels_a_prompt(transport: str, portico: RunningGateway, write_scenario: WriteScenario) -> None:
    scenario = write_scenario([{"text": "at work"}, {"hang": True}])
    async with over(transport, portico, "script") as (agent, client):
        session = (await agent.new_session(cwd=".", mcp_servers=[])).session_id
        await set_options(portico.gateway, session, scenario=scenario)
        prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block("go")]))
        async with asyncio.timeout(60):
            await client.text_received.wait()
            await agent.cancel(session_id=session)
            assert (await prompt).stop_reason == "cancelled"


async def test_official_client_answers_a_permission_request(
    transport: str, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    call = {"name": "write_note", "input": {"path": "a.md", "text": "A"}, "result": "written"}
    scenario = write_scenario([{"tool_call": call}, {"text": "{last_result}"}])
    async with over(transport, portico, "script") as (agent, client):
        session = (await agent.new_session(cwd=".", mcp_servers=[])).session_id
        await set_options(portico.gateway, session, scenario=scenario)
        answer = await agent.prompt(session_id=session, prompt=[text_block("go")])
        assert answer.stop_reason == "end_turn"
        assert len(client.permission_requests) == 1
        assert client.text() == "written"


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.long)])
async def test_many_sessions_over_one_websocket(portico: RunningGateway, count: int) -> None:
    async with over("ws", portico, "echo") as (agent, client):
        sessions = [(await agent.new_session(cwd=".", mcp_servers=[])).session_id for _ in range(count)]
        assert len(set(sessions)) == count
        for some in (sessions[n : n + 10] for n in range(0, count, 10)):
            prompts = (agent.prompt(session_id=session, prompt=[text_block(session)]) for session in some)
            assert {answer.stop_reason for answer in await asyncio.gather(*prompts)} == {"end_turn"}
        assert all(session in client.text() for session in sessions)
