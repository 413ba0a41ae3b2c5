"""Sessions over the Agent Client Protocol: load, resume, list, close, delete and fork."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.security.authentication import ADMINISTRATOR
from tests.gateway.protocols.acp.conftest import ConnectClient, Scripted, WriteScenario, scripted_session
from tests.support.acp_client import RpcFailed, connect, connected, kinds, load, prompt
from tests.support.daemon import RunningGateway
from tests.support.requests import create_session, get_history

STEPS: list[Any] = [
    {"thinking": "hm"},
    {"text": "I look."},
    {"tool_call": {"id": "l{turn}", "name": "lookup", "input": {"query": "q"}, "result": "3 hits"}},
    {"text": "Found {last_result}."},
]


@pytest.mark.usefixtures("each_store")
async def test_load_replays_the_history_before_its_response(scripted: Scripted, acp: ConnectClient) -> None:
    first, session = await scripted(STEPS)
    first.choose = lambda params: "allow_once"
    for text in ("one", "two"):
        await first.prompt(session, text)
    second = await acp()
    since = len(second.received)
    answer = await second.request("session/load", load(session))
    # The response is the last message, after the whole history.
    assert second.received[-1].get("result") == answer
    turn = [
        "user_message_chunk",
        "agent_thought_chunk",
        "agent_message_chunk",
        "tool_call",
        "tool_call_update",
        "agent_message_chunk",
    ]
    assert kinds(second.updates(session, since)) == turn * 2
    assert second.text(kind="user_message_chunk") == "onetwo"
    assert second.text() == "I look.Found 3 hits." * 2
    results = [u for u in second.updates() if u["sessionUpdate"] == "tool_call_update"]
    assert [(u["status"], u["content"][0]["content"]["text"]) for u in results] == [("completed", "3 hits")] * 2
    # The loaded session accepts a prompt.
    second.choose = lambda params: "allow_once"
    assert (await second.prompt(session, "three"))["stopReason"] == "end_turn"


async def test_fork_copies_the_history(scripted: Scripted, portico: RunningGateway) -> None:
    client, session = await scripted([{"text": "{turn}: "}, {"remember": True}])
    await client.prompt(session, "one")
    forked = (await client.request("session/fork", load(session)))["sessionId"]
    assert forked != session
    await client.prompt(forked, "two")
    assert client.text(forked) == '2: ["one"]'
    await client.prompt(session, "three")
    assert client.text(session).endswith('2: ["one"]')
    assert [m["content"] for m in await get_history(portico.client, session) if m["role"] == "user"] == ["one", "three"]


async def test_load_during_a_run_replays_it_and_repeats_the_permission_request(scripted: Scripted, acp: ConnectClient) -> None:
    turns = ([{"text": "first"}], [{"text": "so far"}, {"tool_call": {"id": "c", "name": "shell"}}, {"text": " and on"}])
    first, session = await scripted(*turns)
    await first.prompt(session, "one")
    answer = await first.begin("session/prompt", prompt(session, "two"))
    question = await first.next_permission_request()
    second = await acp()
    since = len(second.received)
    await second.request("session/load", load(session))
    assert kinds(second.updates(since=since)) == [
        "user_message_chunk", "agent_message_chunk", "user_message_chunk", "agent_message_chunk", "tool_call",
    ]  # fmt: skip
    assert second.text(kind="user_message_chunk") == "onetwo"
    # The pending permission is requested here too. The first answer counts; the other request is cancelled.
    same = await second.next_permission_request()
    assert same["params"]["toolCall"]["toolCallId"] == "c"
    await second.answer(same, "allow_once")
    assert (await answer)["stopReason"] == "end_turn"
    assert [m["params"]["requestId"] for m in first.received if m.get("method") == "$/cancel_request"] == [question["id"]]
    await first.answer(question, "reject_once")
    await second.until(lambda _: second.text().endswith(" and on"))
    first.choose = lambda params: "reject_once"
    assert (await first.prompt(session, "three"))["stopReason"] == "end_turn"


async def test_permission_requests_of_two_clients(scripted: Scripted, acp: ConnectClient) -> None:
    # Permission request is cancelled as soon as another client answers.
    first, session = await scripted([{"tool_call": {"id": "c", "name": "shell", "takes": 600}}])
    answer = await first.begin("session/prompt", prompt(session, "go"))
    question = await first.next_permission_request()
    second = await acp()
    await second.request("session/resume", load(session))
    await second.answer(await second.next_permission_request(), "allow_once")
    # The tool runs now and has no output for ten minutes.
    cancellations = await first.until(lambda got: [m for m in got if m.get("method") == "$/cancel_request"])
    assert cancellations[0]["params"] == {"requestId": question["id"]}
    await first.notify("session/cancel", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"
    # Resume repeats the pending permission request.
    first, session = await scripted([{"tool_call": {"id": "c", "name": "shell", "input": {"command": "ls"}}}])
    answer = await first.begin("session/prompt", prompt(session, "go"))
    await first.next_permission_request()
    second = await acp()
    await second.request("session/resume", load(session))
    question = await second.next_permission_request()
    assert second.updates() == []
    assert question["params"]["toolCall"]["title"] == "ls"
    await second.answer(question, "reject_once")
    assert (await answer)["stopReason"] == "end_turn"


async def test_list_returns_titles_and_folders_newest_first(acp: ConnectClient, portico: RunningGateway, tmp_path: Path) -> None:
    client = await acp("echo")
    assert (await client.request("session/list"))["sessions"] == []
    sessions = [await client.new() for _ in range(3)]
    await client.prompt(sessions[1], "What is   it about?\nThis.")
    await create_session(portico.client, "echo", "from elsewhere")
    await create_session(portico.client, "script", "of another agent")
    found = (await client.request("session/list"))["sessions"]
    assert [s.get("title") for s in found] == ["from elsewhere", None, "What is it about? This.", None]
    assert [s["sessionId"] for s in found[1:]] == sessions[::-1]
    assert all(s["cwd"] == str(portico.gateway.settings.data_dir / "workspaces" / "echo") for s in found)
    assert found[2]["updatedAt"] > found[1]["updatedAt"]
    assert (await client.request("session/list", {"cwd": str(tmp_path)}))["sessions"] == []
    assert len((await client.request("session/list", {"cwd": found[0]["cwd"]}))["sessions"]) == 4


async def test_list_is_paginated(acp: ConnectClient, portico: RunningGateway) -> None:
    client = await acp("echo")
    made = [await client.new() for _ in range(101)]
    found: list[str] = []
    cursor: dict[str, Any] = {}
    while True:
        page = await client.request("session/list", {"cwd": str(portico.gateway.settings.data_dir / "workspaces/echo"), **cursor})
        found += [s["sessionId"] for s in page["sessions"]]
        if page.get("nextCursor") is None:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert found == made[::-1]
    with pytest.raises(RpcFailed, match="nextCursor"):
        await client.request("session/list", {"cursor": "nonsense"})


async def test_close_and_delete_cancel_the_prompt(scripted: Scripted, portico: RunningGateway) -> None:
    # Close cancels the prompt and stops the agent.
    client, session = await scripted([{"text": "busy"}, {"hang": True}], [{"text": "back"}])
    answer = await client.begin("session/prompt", prompt(session, "go"))
    await client.until(lambda _: client.text() == "busy")
    await client.request("session/close", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"
    assert (await portico.gateway.sessions.get(ADMINISTRATOR, session)).live is None
    with pytest.raises(RpcFailed, match="not open") as refused:
        await client.prompt(session)
    assert refused.value.code == -32002
    await client.request("session/load", load(session))
    assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"
    # Delete cancels the prompt and removes the session.
    client, session = await scripted([{"hang": True}])
    answer = await client.begin("session/prompt", prompt(session, "go"))
    assert await client.request("session/delete", {"sessionId": session}) == {}
    assert (await answer)["stopReason"] == "cancelled"
    assert session not in str(await client.request("session/list"))
    assert await client.request("session/delete", {"sessionId": session}) == {}
    with pytest.raises(RpcFailed) as gone:
        await client.request("session/load", load(session))
    assert gone.value.code == -32002


async def test_folder_must_be_below_the_agents_folder(acp: ConnectClient, tmp_path: Path) -> None:
    client = await acp()
    (tmp_path / "scenes" / "below").mkdir()
    session = await client.new(str(tmp_path / "scenes" / "below"))
    assert (await client.request("session/list"))["sessions"][0]["cwd"] == str(tmp_path / "scenes" / "below")
    for wrong in (str(tmp_path), "/", str(tmp_path / "scenes" / "absent"), "below/../.."):
        with pytest.raises(RpcFailed, match=r"^cwd: ") as refused:
            await client.new(wrong)
        assert refused.value.code == -32602
    with pytest.raises(RpcFailed, match="works in"):
        await client.request("session/load", load(session, str(tmp_path / "scenes")))


async def test_run_continues_after_its_client_disconnects(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    async with connected(portico.gateway) as client:
        steps = [{"text": "begun"}, {"wait_for_file": "go"}, {"text": ", done"}]
        session = await scripted_session(client, portico.gateway, write_scenario(steps))
        await client.begin("session/prompt", prompt(session, "go"))
        await client.until(lambda _: client.text() == "begun")
    (tmp_path / "scenes" / "go").touch()
    found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    assert found.run is not None
    await asyncio.wait_for(found.run.wait(), 60)
    again = await acp()
    await again.request("session/load", load(session))
    assert again.text() == "begun, done"


@pytest.mark.parametrize("method", ["session/close", "session/delete"])
async def test_client_that_disconnects_behind_a_close_leaves_no_agent(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    client, connection = connect(portico.gateway)
    await client.initialize()
    session = await scripted_session(client, portico.gateway, write_scenario([{"text": "one"}]))
    await client.request("session/prompt", prompt(session, "go"))
    found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    agent = found.live
    assert agent is not None
    closing, released, close = asyncio.Event(), asyncio.Event(), agent.close

    async def slow(grace: float | None = None) -> None:
        closing.set()
        await released.wait()
        await close(grace)

    monkeypatch.setattr(agent, "close", slow)
    await client.begin(method, {"sessionId": session})
    await closing.wait()
    disconnecting = asyncio.create_task(connection.close())
    await asyncio.sleep(0.01)
    released.set()
    await disconnecting
    async with found.lock:
        assert (agent.alive, found.live) == (False, None)
