"""One session over the Agent Client Protocol and over AAP at the same time."""

from __future__ import annotations

import pytest

from tests.gateway.protocols.acp.conftest import ConnectClient, Scripted, WriteScenario
from tests.support.acp_client import RpcFailed, kinds, load, prompt
from tests.support.daemon import RunningGateway
from tests.support.requests import create_session, get_session, send_turn

pytestmark = pytest.mark.usefixtures("also_in_a_cluster")


async def test_session_of_another_agent_cannot_be_loaded(acp: ConnectClient, portico: RunningGateway) -> None:
    client = await acp("echo")
    other = (await create_session(portico.client, "script", "hello"))["sessionId"]
    with pytest.raises(RpcFailed, match="belongs to agent 'script'") as refused:
        await client.request("session/load", load(other))
    assert refused.value.code == -32002


async def test_turns_over_aap_are_sent_to_the_acp_client(scripted: Scripted, portico: RunningGateway) -> None:
    client, session = await scripted([{"text": "turn {turn}: "}, {"remember": True}])
    await client.prompt(session, "over ACP")
    assert session in (await portico.client.get("/sessions")).json()["sessions"]
    # A turn over AAP is sent to the ACP client too, the user message first.
    since = len(client.received)
    answer = await send_turn(portico.client, session, "over AAP")
    assert answer["messages"][-1]["content"] == 'turn 2: ["over ACP"]'
    await client.until(lambda _: "session_info_update" in kinds(client.updates(since=since)))
    assert kinds(client.updates(since=since))[0] == "user_message_chunk"
    assert client.text(kind="user_message_chunk", since=since) == "over AAP"
    assert client.text(since=since) == 'turn 2: ["over ACP"]'
    since = len(client.received)
    await client.prompt(session, "back")
    assert "user_message_chunk" not in kinds(client.updates(since=since))
    assert client.text(since=since) == 'turn 3: ["over ACP", "over AAP"]'


async def test_session_deleted_over_aap_fails_its_prompt(scripted: Scripted, portico: RunningGateway) -> None:
    client, session = await scripted([{"text": "busy"}, {"hang": True}])
    answer = await client.begin("session/prompt", prompt(session, "go"))
    await client.until(lambda _: client.text() == "busy")
    assert (await portico.client.delete(f"/session/{session}")).status_code == 204
    with pytest.raises(RpcFailed, match="deleted"):
        await answer
    with pytest.raises(RpcFailed, match="deleted") as refused:
        await client.prompt(session, "more")
    assert refused.value.code == -32002


async def test_permissions_over_both_protocols(
    scripted: Scripted, portico: RunningGateway, acp: ConnectClient, write_scenario: WriteScenario
) -> None:
    # Permission request is cancelled when answered over AAP.
    client, session = await scripted([{"tool_call": {"id": "c", "name": "shell"}}, {"text": "{last_result}"}])
    answer = await client.begin("session/prompt", prompt(session, "go"))
    question = await client.next_permission_request()
    assert (await get_session(portico.client, session))["state"] == "waiting"
    await send_turn(portico.client, session, {"role": "tool_permission", "toolCallId": "c", "granted": False, "reason": "no"})
    assert (await answer)["stopReason"] == "end_turn"
    assert "no" in client.text()
    cancellation = next(m for m in client.received if m.get("method") == "$/cancel_request")
    assert cancellation["params"] == {"requestId": question["id"]}
    assert client.received.index(cancellation) < len(client.received) - 1
    # A late answer is ignored.
    await client.answer(question, "allow_once")
    assert (await client.request("session/list"))["sessions"][0]["sessionId"] == session
    # Permission of an AAP turn can be answered over ACP.
    grants = [{"name": "shell", "trust": False}]
    scenario = write_scenario([{"tool_call": {"id": "c", "name": "shell"}}, {"text": "{last_result}"}])
    first = await create_session(portico.client, "script", "go", options={"scenario": scenario}, grants=grants)
    assert first["stopReason"] == "tool_use"
    client = await acp()
    await client.request("session/load", load(first["sessionId"]))
    await client.answer(await client.next_permission_request(), "allow_once")
    await client.until(lambda _: "session_info_update" in kinds(client.updates()))
    assert client.text() == "done"
    assert (await get_session(portico.client, first["sessionId"]))["state"] == "idle"


async def test_prompt_is_refused_while_an_application_tool_is_pending(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    tool = {"name": "get_weather", "description": "d", "inputSchema": {"type": "object"}}
    scenario = write_scenario([{"app_tool": {"id": "w{turn}", "name": "get_weather"}}, {"text": "{last_result}"}])
    first = await create_session(portico.client, "script", "go", options={"scenario": scenario}, tools=[tool])
    session = first["sessionId"]
    client = await acp()
    await client.request("session/load", load(session))
    with pytest.raises(RpcFailed, match="'w1' waits for its result from the application"):
        await client.prompt(session)
    await send_turn(portico.client, session, {"role": "tool", "toolCallId": "w1", "content": "rain"})
    await client.until(lambda _: client.text() == "rain")
    with pytest.raises(RpcFailed, match="'w2' waits for its result from the application"):
        await client.prompt(session)
    await client.notify("session/cancel", {"sessionId": session})
    ends = [update for update in kinds(client.updates()) if update == "session_info_update"]
    await client.until(lambda _: kinds(client.updates()).count("session_info_update") > len(ends))
    assert (await get_session(portico.client, session))["state"] == "idle"
