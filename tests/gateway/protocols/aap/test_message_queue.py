"""The queue of a session over AAP: messages outlive their clients and the daemon, and are listed, changed, moved and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.gateway.protocols.aap.test_when_busy import Busy, post
from tests.gateway.protocols.aap.test_when_busy import busy as busy
from tests.support.daemon import Daemon, RunningGateway
from tests.support.requests import create_session, expect_error, get_history, get_session, send_turn, session_of, user_message
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]


async def queue_of(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    return (await client.get(f"/session/{session}/queue")).raise_for_status().json()


async def texts(client: httpx.AsyncClient, session: str) -> list[Any]:
    return [one["message"]["content"] for one in (await queue_of(client, session))["messages"]]


async def until_queued(client: httpx.AsyncClient, session: str, *expected: str) -> list[str]:
    """Wait until these messages are queued, and return their ids."""

    async def queued() -> bool:
        return await texts(client, session) == list(expected)

    await wait_until(queued)
    return [one["id"] for one in (await queue_of(client, session))["messages"]]


async def add(client: httpx.AsyncClient, session: str, text: str, **fields: Any) -> str:
    """Queue a message without waiting for its turn, and return its id."""
    answer = await client.post(f"/session/{session}/queue", json={"messages": [user_message(text)], **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def answered(client: httpx.AsyncClient, session: str, *expected: str) -> None:
    """Wait until the history ends with these messages of the user, each with its answer."""

    async def found() -> bool:
        messages = (await get_history(client, session))[-2 * len(expected) :]
        return [one["content"] for one in messages] == [text for one in expected for text in (one, f"[{one}]")]

    await wait_until(found)


async def test_queued_message_outlives_its_client(portico: RunningGateway, busy: Busy) -> None:
    session, turn, release = busy
    gone = post(portico.client, session, "gone", when_busy="queue")
    await until_queued(portico.client, session, "gone")
    gone.cancel()
    await asyncio.wait([gone])
    assert (await get_session(portico.client, session))["queued"] == 1
    release()
    await turn
    await answered(portico.client, session, "gone")
    assert await texts(portico.client, session) == []


async def test_queued_messages_are_edited_moved_and_removed(portico: RunningGateway, busy: Busy) -> None:
    session, turn, release = busy
    client, path = portico.client, f"/session/{session}/queue"
    removed = post(client, session, "removed", when_busy="queue")
    await until_queued(client, session, "removed")
    edited = post(client, session, "a", when_busy="queue")
    await until_queued(client, session, "removed", "a")
    await add(client, session, "b")
    first, second, third = (one["id"] for one in (await queue_of(client, session))["messages"])
    answer = await client.patch(f"{path}/{second}", json={"message": user_message("in other words")})
    assert (answer.status_code, answer.json()["message"]["content"]) == (200, "in other words")
    ordered = await client.put(path, json={"order": [third, first, second]})
    assert [one["id"] for one in ordered.json()["messages"]] == [third, first, second]
    assert (await client.delete(f"{path}/{first}")).status_code == 204
    assert "removed" in await expect_error(removed, 409)
    assert await texts(client, session) == ["b", "in other words"]
    release()
    await turn
    assert (await edited).json()["messages"][0]["content"] == "[in other words]"
    await answered(client, session, "b", "in other words")


async def test_invalid_changes_of_the_queue_change_nothing(portico: RunningGateway, busy: Busy) -> None:
    session, turn, release = busy
    client, path = portico.client, f"/session/{session}/queue"
    first, second = [await add(client, session, text) for text in ("a", "b")]
    unknown = "msg_unknown"
    assert "twice" in await expect_error(client.put(path, json={"order": [first, first, second]}), 400)
    assert "GET the queue" in await expect_error(client.put(path, json={"order": [second]}), 409)
    assert "GET the queue" in await expect_error(client.put(path, json={"order": [first, second, unknown]}), 409)
    assert unknown in await expect_error(client.delete(f"{path}/{unknown}"), 404)
    body = {"message": user_message("x")}
    assert unknown in await expect_error(client.patch(f"{path}/{unknown}", json=body), 404)
    assert "blank" in await expect_error(client.patch(f"{path}/{first}", json={"message": user_message(" ")}), 400)
    await expect_error(client.patch(f"{path}/{first}", json={"message": {"role": "assistant", "content": "x"}}), 400)
    results = [{"role": "tool", "toolCallId": "x", "content": "y"}]
    assert "user message" in await expect_error(client.post(path, json={"messages": results}), 400)
    assert "blank" in await expect_error(client.post(path, json={"messages": [user_message(" ")]}), 400)
    wrong = {"messages": [user_message("c")], "agent": {"options": {"unknown": "x"}}}
    assert "unknown" in await expect_error(client.post(path, json=wrong), 400)
    # A message that waits with its connection can be removed but not edited.
    tied = post(client, session, "tied", when_busy="queue", on_disconnect="cancel")
    *_, tied_id = await until_queued(client, session, "a", "b", "tied")
    assert [one["stored"] for one in (await queue_of(client, session))["messages"]] == [True, True, False]
    assert "only that client" in await expect_error(client.patch(f"{path}/{tied_id}", json=body), 409)
    assert (await client.delete(f"{path}/{tied_id}")).status_code == 204
    await expect_error(tied, 409)
    assert await texts(client, session) == ["a", "b"]
    release()
    await turn
    await answered(client, session, "a", "b")
    # They have begun.
    assert first in await expect_error(client.delete(f"{path}/{first}"), 404)


async def test_cancel_stops_the_queue_until_a_client_goes_on(portico: RunningGateway, busy: Busy) -> None:
    session, turn, _ = busy
    client = portico.client
    kept = post(client, session, "kept", when_busy="queue")
    await until_queued(client, session, "kept")
    assert (await client.post(f"/session/{session}/cancel")).json() == {
        "sessionId": session,
        "cancelled": True,
        "state": "idle",
    }
    await turn
    assert (await queue_of(client, session))["stopped"] == "cancelled"
    own = await get_session(client, session)
    assert (own["state"], own["queued"], own["queueStopped"]) == ("idle", 1, "cancelled")
    # A plain message begins at once, and the queue stays stopped.
    assert (await send_turn(client, session, "plain"))["messages"][0]["content"] == "[plain]"
    assert (await queue_of(client, session))["stopped"] == "cancelled"
    assert not kept.done()
    answer = await client.post(f"/session/{session}/queue/continue")
    assert (answer.status_code, "stopped" in answer.json()) == (200, False)
    assert (await kept).json()["messages"][0]["content"] == "[kept]"
    assert "queueStopped" not in (await get_session(client, session))


async def test_message_to_a_stopped_queue_lets_it_go_on(portico: RunningGateway, busy: Busy) -> None:
    session, turn, _ = busy
    await add(portico.client, session, "first")
    await portico.client.post(f"/session/{session}/cancel")
    await turn
    answer = await post(portico.client, session, "second", when_busy="queue")
    assert answer.json()["messages"][0]["content"] == "[second]"
    await answered(portico.client, session, "first", "second")


async def test_queued_messages_keep_the_settings_that_change_meanwhile(portico: RunningGateway, busy: Busy) -> None:
    """Each message changes only the settings that its request has named."""
    session, turn, release = busy
    await add(portico.client, session, "a", agent={"options": {"pace": "fast"}})
    await add(portico.client, session, "b", agent={"tools": [{"name": "shell", "trust": True}]})
    found = await session_of(portico.gateway, session)
    release()
    await turn
    await answered(portico.client, session, "a", "b")
    assert found.config.options["pace"] == "fast"
    assert [(grant.name, grant.trust) for grant in found.config.tools or ()] == [("shell", True)]


async def test_repeated_request_waits_for_the_message_of_the_first_one(portico: RunningGateway, busy: Busy) -> None:
    session, turn, release = busy
    body = {"messages": [user_message("once")], "when_busy": "queue"}

    def send(**fields: Any) -> asyncio.Task[httpx.Response]:
        headers = {"Idempotency-Key": "k"}
        return asyncio.create_task(portico.client.post(f"/session/{session}", json={**body, **fields}, headers=headers))

    first = send()
    await until_queued(portico.client, session, "once")
    first.cancel()
    await asyncio.wait([first])
    assert "another request" in await expect_error(send(on_disconnect="continue"), 409)
    again = send()
    release()
    await turn
    assert (await again).json()["messages"][0]["content"] == "[once]"
    assert (await send()).json() == again.result().json()
    assert [one["content"] for one in await get_history(portico.client, session)].count("once") == 1


async def test_repeated_request_to_queue_a_message_adds_one(portico: RunningGateway, busy: Busy) -> None:
    session, turn, release = busy
    body, headers = {"messages": [user_message("once")]}, {"Idempotency-Key": "k"}
    path = f"/session/{session}/queue"
    answers = [await portico.client.post(path, json=body, headers=headers) for _ in range(2)]
    assert await texts(portico.client, session) == ["once"]
    release()
    await turn
    await answered(portico.client, session, "once")
    answers.append(await portico.client.post(path, json=body, headers=headers))
    assert {(answer.status_code, answer.json()["id"]) for answer in answers} == {(201, answers[0].json()["id"])}
    assert await texts(portico.client, session) == []


async def test_deletion_of_a_session_answers_the_clients_of_its_queue(portico: RunningGateway, busy: Busy) -> None:
    session, _, _ = busy
    waiting = post(portico.client, session, "a", when_busy="queue")
    await until_queued(portico.client, session, "a")
    assert (await portico.client.delete(f"/session/{session}")).status_code == 204
    assert "deleted" in await expect_error(waiting, 404)
    assert await portico.gateway.store.queued_messages.of(session) == []


async def test_queue_survives_a_kill(daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path) -> None:
    steps = [{"text": "begin"}, {"write_file": {"path": "began", "text": "x"}}, {"hang": True}]
    name = write_scenario({"when": "^work$", "steps": steps}, [{"text": "[{prompt}]"}])
    key = {"Idempotency-Key": "k"}
    body = {"messages": [user_message("waited for")], "when_busy": "queue"}
    await daemon.start()
    async with daemon.client() as client:
        session = (await create_session(client, options={"scenario": name}))["sessionId"]
        stopped = (await create_session(client, options={"scenario": name}))["sessionId"]
        turns = [post(client, one, "work") for one in (session, stopped)]
        await wait_until((tmp_path / "scenes" / "began").exists)
        turns.append(asyncio.create_task(client.post(f"/session/{session}", json=body, headers=key)))
        await until_queued(client, session, "waited for")
        await add(client, session, "second", agent={"options": {"pace": "fast"}})
        await add(client, stopped, "later")
        await client.post(f"/session/{stopped}/cancel")
        await daemon.kill()
        await asyncio.wait(turns)
    await daemon.start()
    async with daemon.client() as client:
        # The daemon goes on by itself, and a repeated request gets the turn of its message.
        answer = await client.post(f"/session/{session}", json=body, headers=key)
        assert answer.json()["messages"][0]["content"] == "[waited for]"
        await answered(client, session, "waited for", "second")
        assert (await get_session(client, session))["agent"]["options"]["pace"] == "fast"
        assert (await queue_of(client, stopped))["stopped"] == "cancelled"
        listed = (await client.get("/aap/v3/sessions")).json()["sessions"]
        own = next(one["x-portico"] for one in listed if one["sessionId"] == stopped)
        assert (own["queued"], own["queueStopped"]) == (1, "cancelled")
        assert (await client.post(f"/session/{stopped}/queue/continue")).status_code == 200
        await answered(client, stopped, "later")
