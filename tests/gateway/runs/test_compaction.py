"""Compacted history: the conversation after the agent's CLI has replaced messages by a summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from drivers.contract.messages import AssistantMessage, Message, SystemMessage, ToolMessage, ToolUseBlock, UserMessage
from gateway.events.messages import message_row
from gateway.runs.stored_history import StoredHistory
from gateway.store import SessionRecord, Store
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import create_session, execute, expect_error, get_session, send_turn, user_message
from tests.support.stores import store_url

WriteScenario = Callable[..., str]
SUMMARY = user_message("So far: a, b.")


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def histories(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    """Return both histories of a session: the full one, and the compacted one."""
    return dict((await client.get(f"/session/{session}")).json()["history"])


async def test_compacted_history_equals_the_full_history_until_the_cli_compacts_it(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    name = write_scenario([{"text": "one"}], [{"compact": "So far: a, b."}, {"text": "two"}], [{"text": "three"}])
    client = portico.client
    seed = {"role": "system", "content": "Be brief."}
    session = (await create_session(client, "script", seed, "a", options={"scenario": name}))["sessionId"]
    found = await histories(client, session)
    assert found["compacted"] == found["full"] == [seed, user_message("a"), assistant("one")]
    # No event reports it to the client, which can request the history.
    assert [message["content"] for message in (await send_turn(client, session, "b"))["messages"]] == ["two"]
    await send_turn(client, session, "c")
    after = [assistant("two"), user_message("c"), assistant("three")]
    found = await histories(client, session)
    assert found["compacted"] == [seed, SUMMARY, *after]
    assert found["full"] == [seed, user_message("a"), assistant("one"), user_message("b"), *after]


async def test_kept_messages_follow_the_summary(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "one"}], [{"compact": {"summary": "So far: a, b.", "kept": 2}}, {"text": "two"}])
    session = (await create_session(portico.client, "script", "a", options={"scenario": name}))["sessionId"]
    await send_turn(portico.client, session, "b")
    found = await histories(portico.client, session)
    assert found["compacted"] == [SUMMARY, assistant("one"), user_message("b"), assistant("two")]


async def test_last_compaction_counts_and_may_keep_more_messages_than_exist(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    name = write_scenario(
        [{"compact": "old"}, {"text": "one"}, {"message_end": True}, {"compact": {"summary": "new", "kept": 9}}]
    )
    session = (await create_session(portico.client, "script", "a", options={"scenario": name}))["sessionId"]
    assert (await histories(portico.client, session))["compacted"] == [
        user_message("new"),
        user_message("a"),
        assistant("one"),
    ]


async def test_request_for_one_kind_of_history(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    session = (await create_session(portico.client, "script", "a"))["sessionId"]
    for kind in ("compacted", "full"):
        answer = await portico.client.get(f"/session/{session}", params={"history": kind})
        assert list(answer.json()["history"]) == [kind]
    echo = (await create_session(portico.client, "echo", "a"))["sessionId"]
    assert list((await get_session(portico.client, echo))["history"]) == ["full"]
    text = await expect_error(portico.client.get(f"/session/{echo}", params={"history": "compacted"}), 404)
    assert text == "agent 'echo' declares no compacted history; ask for full"
    declared = {agent["name"]: agent["capabilities"]["history"] for agent in (await portico.client.get("/meta")).json()["agents"]}
    assert declared["echo"] == {"full": {}} and declared["script"] == {"compacted": {}, "full": {}}


async def test_compacted_history_is_seeded_to_a_new_agent_after_a_restart(tmp_path: Path, write_scenario: WriteScenario) -> None:
    name = write_scenario({"when": "b", "steps": [{"compact": {"summary": "So far: a, b."}}]}, [{"remember": True}])
    async with run_gateway(gateway_config(tmp_path)) as portico:
        session = (await create_session(portico.client, "script", "a", options={"scenario": name}))["sessionId"]
        await send_turn(portico.client, session, "b")
    async with run_gateway(gateway_config(tmp_path)) as portico:
        assert (await histories(portico.client, session))["compacted"] == [SUMMARY]
        (answer,) = (await send_turn(portico.client, session, "c"))["messages"]
        assert answer["content"] == '["So far: a, b."]'
        assert (await portico.client.delete(f"/session/{session}")).status_code == 204


async def test_compaction_in_a_task_is_ignored(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    write_scenario([{"compact": "nothing"}, {"text": "done"}], name="task.json")
    portico.gateway.agents.get("script").settings.options["scenario"] = "task.json"
    events = await execute(portico.client)
    assert [event["kind"] for event in events] == ["agent_token", "session_end"]


async def test_result_without_its_call_is_dropped_from_the_compacted_history(tmp_path: Path) -> None:
    call = AssistantMessage(content=(ToolUseBlock(tool_call_id="1", name="t", input={}),))
    history: list[Message] = [SystemMessage(content="s"), UserMessage(content="a"), call]
    history += [ToolMessage(tool_call_id="1", content="x"), ToolMessage(tool_call_id="2", content="y")]
    store = await Store.open(store_url(tmp_path))
    await store.sessions.create(SessionRecord("s", "script"), [message_row(message) for message in history])
    for kept, rest in ((1, history[2:]), (0, [])):
        await store.compactions.set("s", kept, "sum")
        stored = StoredHistory(store, "s")
        expected = [history[0], UserMessage(content="sum"), *rest]
        assert [message async for message in stored.compacted()] == await stored.seed() == expected
    await store.close()
