"""`Idempotency-Key` of session creations and turns: a repeated request returns the same response and runs nothing again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import write_config
from tests.support.daemon import Daemon, RunningGateway, gateway_config
from tests.support.named_keys import add_key
from tests.support.requests import (
    create_session,
    expect_error,
    get_history,
    session_body,
    session_of,
    user_message,
    wait_until_idle,
)
from tests.support.sse import parse_events
from tests.support.stores import content as stored_content
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
KEYED = {"Idempotency-Key": "job-1"}
TURN = {"messages": [user_message("two")], "stream": "delta"}


async def put(client: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> httpx.Response:
    return await client.put("/session", json=body, headers=KEYED | headers)


async def sessions(client: httpx.AsyncClient) -> list[str]:
    return list((await client.get("/sessions")).json()["sessions"])


@pytest.mark.usefixtures("each_store")
async def test_repeated_creation_returns_the_same_response(
    portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    for mode in ("none", "delta", "message"):
        go = tmp_path / "scenes" / f"go-{mode}"
        steps = [{"text": {"text": "some words", "chunk": 2}}, {"wait_for_file": go.name}, {"text": "more"}]
        body = session_body(options={"scenario": write_scenario(steps)}, stream=mode)
        key = {"Idempotency-Key": mode}
        asking = [asyncio.create_task(put(portico.client, body, **key)) for _ in range(3)]
        await wait_until(lambda: any(session.busy for session in portico.gateway.sessions.held))
        go.touch()
        answers = [await one for one in asking]
        answers.append(await put(portico.client, body, **key))
        assert len({(answer.status_code, answer.text) for answer in answers}) == 1, mode
        session = (await sessions(portico.client))[0]
        assert session in answers[0].text, mode
        assert len(await get_history(portico.client, session)) == 2, mode
    assert len(await sessions(portico.client)) == 3


async def test_repeated_turn_returns_the_same_response(
    portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    for mode in ("none", "delta", "message"):
        steps = [
            {"text": "begin"},
            {"write_file": {"path": "began", "text": ""}},
            {"wait_for_file": f"go-{mode}"},
            {"text": "end"},
        ]
        session = (await create_session(portico.client, options={"scenario": write_scenario([{"text": "x"}], steps)}))[
            "sessionId"
        ]
        body = TURN | {"stream": mode}
        first = asyncio.create_task(portico.client.post(f"/session/{session}", json=body, headers=KEYED))
        await wait_until((tmp_path / "scenes" / "began").exists)
        (tmp_path / "scenes" / "began").unlink()
        waiting = asyncio.create_task(portico.client.post(f"/session/{session}", json=body, headers=KEYED))
        await asyncio.sleep(0)
        (tmp_path / "scenes" / f"go-{mode}").touch()
        second = await waiting
        third = await portico.client.post(f"/session/{session}", json=body, headers=KEYED)
        assert (await first).text == second.text == third.text, mode
        assert {(await first).status_code, second.status_code, third.status_code} == {200}, mode
        assert len(await get_history(portico.client, session)) == 4, mode


async def test_retry_with_last_event_id_gets_the_remaining_events(portico: RunningGateway) -> None:
    session = (await create_session(portico.client, "echo"))["sessionId"]
    whole = parse_events((await portico.client.post(f"/session/{session}", json=TURN, headers=KEYED)).text)
    for index, event in enumerate(whole):
        headers = KEYED | {"Last-Event-ID": event[0]}
        rest = await portico.client.post(f"/session/{session}", json=TURN, headers=headers)
        assert parse_events(rest.text) == whole[index + 1 :]


async def test_same_key_with_another_body_is_refused(portico: RunningGateway) -> None:
    body = session_body("echo", "one")
    session = (await put(portico.client, body)).json()["sessionId"]
    for other in (session_body("echo", "two"), body | {"stream": "delta"}, session_body("script", "one")):
        assert "new key" in await expect_error(put(portico.client, other), 409)
    await portico.client.post(f"/session/{session}", json=TURN, headers=KEYED)
    await expect_error(
        portico.client.post(f"/session/{session}", json=TURN | {"messages": [user_message("3")]}, headers=KEYED), 409
    )
    assert await sessions(portico.client) == [session]
    assert len(await get_history(portico.client, session)) == 4
    # Repeated creation of a deleted session is refused.
    await portico.client.delete(f"/session/{session}")
    await expect_error(put(portico.client, body), 404)
    assert not await sessions(portico.client)


async def test_keys_are_separate_for_each_operation_and_caller(portico: RunningGateway) -> None:
    for key in [await add_key(portico.gateway, name) for name in ("one", "two")]:
        portico.client.headers["Authorization"] = f"Bearer {key}"
        await put(portico.client, session_body("echo"))
        (session,) = await sessions(portico.client)
        assert (await portico.client.post(f"/session/{session}", json=TURN, headers=KEYED)).status_code == 200
        assert len(await get_history(portico.client, session)) == 4


async def test_refused_request_can_be_repeated_under_its_key(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    await expect_error(put(portico.client, session_body("echo", options={"no": "such"})), 400)
    await expect_error(put(portico.client, session_body("script", options={"scenario": "none.json"})), 503)
    assert (await put(portico.client, session_body("echo"))).status_code == 201
    name = write_scenario([{"text": "x"}], [{"hang": True}], [{"text": "y"}])
    session = (await create_session(portico.client, options={"scenario": name}))["sessionId"]
    turn = asyncio.create_task(portico.client.post(f"/session/{session}", json=TURN))
    found = await session_of(portico.gateway, session)
    await wait_until(lambda: found.busy)
    await expect_error(portico.client.post(f"/session/{session}", json=TURN, headers=KEYED), 409)
    await portico.client.post(f"/session/{session}/cancel")
    await turn
    assert "y" in (await portico.client.post(f"/session/{session}", json=TURN, headers=KEYED)).text


async def test_repeated_tool_result_returns_the_same_response(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    fields = {"tools": [{"name": "look", "description": "", "inputSchema": {}}]}
    name = write_scenario([{"app_tool": {"name": "look", "id": "a"}}, {"text": "saw {last_result}"}])
    session = (await create_session(portico.client, options={"scenario": name}, **fields))["sessionId"]
    body = {"messages": [{"role": "tool", "toolCallId": "a", "content": "it"}]}
    answers = [await portico.client.post(f"/session/{session}", json=body, headers=KEYED) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert answers[0].json()["messages"] == [{"role": "assistant", "content": "saw it"}]


async def test_key_is_not_stored_in_plain_text(portico: RunningGateway, tmp_path: Path) -> None:
    headers = {"Idempotency-Key": "a-very-secret-key"}
    await portico.client.put("/session", json=session_body("echo"), headers=headers)
    assert b"very-secret" not in stored_content(tmp_path / "data")


async def test_repeated_requests_after_a_restart_do_not_run_again(
    daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    hang = [{"text": "begin"}, {"write_file": {"path": "hangs", "text": "x"}}, {"hang": {"ignore_term": True}}]
    name = write_scenario([{"text": "one"}], hang)
    write_config(tmp_path, gateway_config(tmp_path))
    body = session_body(options={"scenario": name}, stream="delta")
    await daemon.start()
    async with daemon.client() as client:
        first = (await put(client, body)).text
        session = parse_events(first)[0][2]["sessionId"]
        turn = asyncio.create_task(client.post(f"/session/{session}", json=TURN, headers=KEYED))
        await wait_until((tmp_path / "scenes" / "hangs").exists)
        await daemon.kill()
        await asyncio.wait([turn])
    (tmp_path / "scenes" / "hangs").unlink()
    await daemon.start()
    async with daemon.client() as client:
        assert (await put(client, body)).text == first
        again = [parse_events((await client.post(f"/session/{session}", json=TURN, headers=KEYED)).text) for _ in range(2)]
        assert again[0] == again[1]
        assert (again[0][0][1], again[0][-1][2]["stopReason"]) == ("turn_start", "error")
        assert await sessions(client) == [session]
        assert [message["role"] for message in await get_history(client, session)][:3] == ["user", "assistant", "user"]
        await wait_until_idle(client, session)
    assert not (tmp_path / "scenes" / "hangs").exists()
