"""`GET /aap/v3/sessions/ID/frames`: the frames of a turn are those that a client of each protocol has got."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivers.contract.driver_info import ToolGrant
from gateway.security.authentication import ADMINISTRATOR
from tests.support.daemon import RunningGateway, http_client
from tests.support.named_keys import add_key
from tests.support.requests import create_session, expect_error, send_turn
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
SCENE = [
    {"thinking": "Hm."},
    {"text": "First."},
    {"tool_call": {"id": "look", "name": "lookup", "input": {"query": "x"}, "result": "3 hits"}},
    {"text": {"text": "The second part is longer than a delta.", "chunk": 10}},
    {"usage": {"input_tokens": 3, "output_tokens": 4}},
]
NOTE = {"tool_call": {"id": "note", "name": "write_note", "input": {"path": "a.txt", "text": "x"}}}
GRANTS = [{"name": "lookup", "trust": True}, {"name": "write_note"}]


async def frames(client: httpx.AsyncClient, session: str, protocol: str, turn: int = 1) -> list[dict[str, Any]]:
    answer = await client.get(f"/aap/v3/sessions/{session}/frames", params={"turn": turn, "protocol": protocol})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["truncated"] is False
    return list(body["frames"])


def parsed(stream: str) -> list[dict[str, Any]]:
    """The frames of a stream in the form of the endpoint."""
    found = []
    for block in stream.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        if fields["data"] != "[DONE]":
            fields["data"] = json.loads(fields["data"])
        found.append(fields)
    return found


@pytest.fixture
def options(write_scenario: WriteScenario) -> dict[str, str]:
    return {"scenario": write_scenario(SCENE)}


async def test_frames_of_aap_are_those_of_the_turns_stream(portico: RunningGateway, options: dict[str, str]) -> None:
    for mode in ("delta", "message"):
        client = portico.client
        session = (await create_session(client, options=options, grants=GRANTS))["sessionId"]
        for text in ("one", "two"):
            body = {"messages": [{"role": "user", "content": text}], "stream": mode}
            streamed = parsed((await client.post(f"/session/{session}", json=body)).text)
            begin = int(streamed[0]["id"])
            assert await frames(client, session, f"aap-{mode}", begin) == streamed, mode
    # JSON of AAP is the answer of the turn.
    created = await create_session(portico.client, options=options, grants=GRANTS)
    session = created.pop("sessionId")
    assert await frames(portico.client, session, "aap-none") == [{"data": created}]


async def test_turn_after_a_permission(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    for mode in ("delta", "message"):
        client, scenario = portico.client, write_scenario([{"text": "Before."}, NOTE, {"text": "After."}])
        session = (await create_session(client, options={"scenario": scenario}, grants=GRANTS))["sessionId"]
        reply = {"role": "tool_permission", "toolCallId": "note", "granted": True}
        answer = await client.post(f"/session/{session}", json={"messages": [reply], "stream": mode})
        streamed = parsed(answer.text)
        assert await frames(client, session, f"aap-{mode}", int(streamed[0]["id"])) == streamed, mode
        first = await frames(client, session, f"aap-{mode}")
        assert first[-1]["data"]["stopReason"] == "tool_use" and "After." not in json.dumps(first), mode
        messages = [frame["data"] for frame in await frames(client, session, "acp")]
        assert [one.get("method") for one in messages][-1] == "session/request_permission", mode
        assert [option["optionId"] for option in messages[-1]["params"]["options"]] == [
            "allow_once", "allow_always", "reject_once", "reject_always",
        ], mode  # fmt: skip
        # The request was not made again, and nothing was decided.
        second = [frame["data"] for frame in await frames(client, session, "acp", int(streamed[0]["id"]))]
        assert second[-1] == {"jsonrpc": "2.0", "id": 1, "result": second[-1]["result"]}, mode
        assert second[-1]["result"]["stopReason"] == "end_turn", mode


async def test_frames_of_a_waiting_turn_decide_nothing(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    client, scenario = portico.client, write_scenario([NOTE, {"text": "After."}])
    session = (await create_session(client, options={"scenario": scenario}, grants=GRANTS))["sessionId"]
    # Trusted meanwhile: a client that has the session open would grant the call now.
    held = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    async with held.lock:
        await held.configure(replace(held.config, tools=(ToolGrant("write_note", trust=True),)))
    last = held.log.last
    for protocol in ("acp", "openai-chat", "openai-responses", "anthropic-messages", "execute", "aap-none"):
        assert await frames(client, session, protocol)
    assert held.state == "waiting" and held.log.last == last
    assert (await send_turn(client, session, {"role": "tool_permission", "toolCallId": "note", "granted": True}))["messages"]


async def test_frames_of_acp_and_of_execute(portico: RunningGateway, options: dict[str, str]) -> None:
    # Frames of ACP.
    session = (await create_session(portico.client, options=options, grants=GRANTS))["sessionId"]
    messages = [frame["data"] for frame in await frames(portico.client, session, "acp")]
    updates = [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
    kinds = [update["sessionUpdate"] for update in updates]
    assert kinds[0] == "agent_thought_chunk" and "user_message_chunk" not in kinds
    assert [kind for kind in kinds if kind.startswith("tool_call")] == ["tool_call", "tool_call_update"]
    text = "".join(update["content"]["text"] for update in updates if update["sessionUpdate"] == "agent_message_chunk")
    assert text == "First.The second part is longer than a delta."
    assert messages[-1]["result"]["stopReason"] == "end_turn"
    assert all(message["params"]["sessionId"] == session for message in messages[:-1])
    # Frames of execute.
    session = (await create_session(portico.client, options=options, grants=GRANTS))["sessionId"]
    events = [frame["data"] for frame in await frames(portico.client, session, "execute")]
    assert events[0] == {"kind": "thinking", "text": "Hm."}
    assert [event["kind"] for event in events][-2:] == ["usage", "session_end"]


async def test_frames_of_the_vendors_apis_are_those_of_their_streams(portico: RunningGateway) -> None:
    for path, protocol, body in (
        ("/v1/chat/completions", "openai-chat", {"stream_options": {"include_usage": True}}),
        ("/v1/messages", "anthropic-messages", {"max_tokens": 100, "thinking": {"type": "adaptive"}}),
        ("/v1/responses", "openai-responses", {}),
    ):
        messages = {"input": "hello"} if "responses" in path else {"messages": [{"role": "user", "content": "hello"}]}
        answer = await portico.client.post(path, json={"model": "echo", "stream": True, **messages, **body})
        assert answer.status_code == 200, answer.text
        session = answer.headers["x-portico-session"]
        found = await frames(portico.client, session, protocol)
        assert [_shape(frame) for frame in found] == [_shape(frame) for frame in parsed(answer.text)], (path, protocol)


def _shape(frame: dict[str, Any]) -> Any:
    """A frame without ids and times, which the endpoint makes up."""

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = ("id", "item_id", "created", "created_at", "completed_at", "model", "duration_ms")
            return {name: shape(item) for name, item in value.items() if name not in left_out}
        return [shape(item) for item in value] if isinstance(value, list) else value

    return shape(frame)


async def test_turn_at_work_has_its_frames_so_far(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    options = {"scenario": write_scenario([{"text": "begun"}, {"hang": True}])}
    created = await portico.client.post("/aap/v3/sessions", json={"agent": {"name": "script", "options": options}})
    session = created.json()["sessionId"]
    turn = asyncio.create_task(send_turn(portico.client, session, "go"))

    async def begun(protocol: str) -> list[dict[str, Any]] | None:
        log = await portico.client.get(f"/aap/v3/sessions/{session}/frames", params={"turn": 1, "protocol": protocol})
        return log.json()["frames"] if log.status_code == 200 and "begun" in log.text else None

    for protocol in ("aap-delta", "acp", "openai-chat", "anthropic-messages", "openai-responses", "execute"):
        found = await wait_until(functools.partial(begun, protocol))
        assert "[DONE]" not in [frame["data"] for frame in found] and "stopReason" not in json.dumps(found), protocol
    await portico.client.post(f"/session/{session}/cancel")
    await turn


async def test_turn_of_a_message_that_steers(portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path) -> None:
    scene = [{"text": "begun"}, {"wait_for_file": "go"}, {"text": "steered: {steered}"}]
    created = await portico.client.post(
        "/aap/v3/sessions", json={"agent": {"name": "script", "options": {"scenario": write_scenario(scene)}}}
    )
    session = created.json()["sessionId"]
    first = asyncio.create_task(send_turn(portico.client, session, "go"))
    held = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    await wait_until(lambda: held.busy and held.log.last > 2)
    body = {"messages": [{"role": "user", "content": "left"}], "when_busy": "steer", "stream": "delta"}
    steering = asyncio.create_task(portico.client.post(f"/session/{session}", json=body))
    before = held.log.last
    await wait_until(lambda: held.log.last > before)
    (tmp_path / "scenes" / "go").touch()
    streamed = parsed((await steering).text)
    await first
    assert await frames(portico.client, session, "aap-delta", int(streamed[0]["id"])) == streamed
    (answer,) = await frames(portico.client, session, "aap-none", int(streamed[0]["id"]))
    assert answer["data"]["messages"] == [{"role": "assistant", "content": "steered: left"}]
    messages = [frame["data"] for frame in await frames(portico.client, session, "acp", int(streamed[0]["id"]))]
    assert messages[0]["params"]["update"]["sessionUpdate"] == "user_message_chunk"


async def test_wrong_turn_or_protocol_is_refused(portico: RunningGateway) -> None:
    for query in (
        "turn=2&protocol=acp",
        "turn=99&protocol=acp",
        "turn=0&protocol=acp",
        "turn=1&protocol=x",
        "turn=1",
        "protocol=acp",
    ):
        session = (await create_session(portico.client, "echo"))["sessionId"]
        await expect_error(portico.client.get(f"/aap/v3/sessions/{session}/frames?{query}"), 400)


async def test_frames_of_another_keys_session_are_not_found(portico: RunningGateway) -> None:
    session = (await create_session(portico.client, "echo"))["sessionId"]
    async with http_client(portico.url) as phone:
        phone.headers["authorization"] = f"Bearer {await add_key(portico.gateway, 'phone')}"
        await expect_error(phone.get(f"/aap/v3/sessions/{session}/frames?turn=1&protocol=acp"), 404)
