"""What a list of sessions shows, live: `GET /aap/v3/updates`, and the fields of a session's information."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from gateway.protocols.aap.session_updates import INTERVAL
from tests.conftest import write_config
from tests.support.cluster import placement
from tests.support.daemon import Daemon, RunningGateway, gateway_config, http_client, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.named_keys import add_key
from tests.support.requests import user_message
from tests.support.sse import arriving
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
Update = tuple[str, dict[str, Any]]
SESSIONS = "/aap/v3/sessions"
NOTE = {"tool_call": {"name": "write_note", "id": "n1", "input": {"path": "a.md", "text": "A"}}}
GRANT = [{"name": "write_note"}]


@asynccontextmanager
async def updates(client: httpx.AsyncClient) -> AsyncIterator[AsyncIterator[Update]]:
    """Open the stream of updates, read `ready`, and yield what follows."""

    async def frames() -> AsyncIterator[Update]:
        async for event in arriving(response):
            yield event.event, event.json()

    async with client.stream("GET", "/aap/v3/updates", headers={"Accept": "text/event-stream"}) as response:
        assert response.status_code == 200, await response.aread()
        found = frames()
        assert await anext(found) == ("ready", {})
        yield found


async def until(stream: AsyncIterator[Update], condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read sessions up to one whose `x-portico` fulfils a condition, and return that."""
    async for event, data in stream:
        if event == "session" and condition(data["x-portico"]):
            return data
    raise AssertionError("the stream has ended")


async def create(client: httpx.AsyncClient, agent: str = "echo", scenario: str | None = None, **fields: Any) -> str:
    config = {"name": agent, **({"options": {"scenario": scenario}} if scenario else {}), **fields}
    answer = await client.post(SESSIONS, json={"agent": config})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["sessionId"])


async def turn(client: httpx.AsyncClient, session: str, *messages: Any, **fields: Any) -> dict[str, Any]:
    answer = await client.post(f"{SESSIONS}/{session}/turns", json={"messages": [*messages], **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def info(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    answer = await client.get(f"{SESSIONS}/{session}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def listed(client: httpx.AsyncClient, **query: str) -> list[dict[str, Any]]:
    return list((await client.get(SESSIONS, params=query)).json()["sessions"])


async def expect_read(client: httpx.AsyncClient, session: str, told: dict[str, Any]) -> None:
    """What was told of a session is what is read of it: at another node once it is stored, some milliseconds later."""

    async def agrees() -> bool:
        return await info(client, session) == told

    if placement():
        await wait_until(agrees)
    assert told == await info(client, session)


async def test_an_idle_stream_is_kept_open(tmp_path: Path, clock: ManualClock) -> None:
    async with (
        run_gateway(gateway_config(tmp_path, server={"keep_alive": 0.7}), clock) as portico,
        portico.client.stream("GET", "/aap/v3/updates") as answer,
    ):
        chunks = answer.aiter_text()
        assert "event: ready" in await anext(chunks)
        await clock.expire(0.7)
        assert await anext(chunks) == ": keep-alive\n\n"


async def test_changes_of_a_short_time_are_sent_together(tmp_path: Path, clock: ManualClock) -> None:
    async with run_gateway(gateway_config(tmp_path), clock) as portico, updates(portico.client) as stream:
        first = await create(portico.client)
        assert (await until(stream, lambda own: True))["sessionId"] == first
        # The stream has looked for changes, and looks again after this time.
        await clock.waited_for(INTERVAL)
        second, third = [await create(portico.client) for _ in range(2)]
        await clock.advance(INTERVAL)

        async def sent() -> set[str]:
            return {(await anext(stream))[1]["sessionId"] for _ in range(2)}

        # Each node waits for itself: one that began to wait after `advance` has a change that came later.
        assert await (clock.outlast(sent(), INTERVAL) if placement() else sent()) == {second, third}


async def test_a_session_from_its_creation_to_its_deletion(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"title": "Notes"}, NOTE, {"text": "{last_result}"}])
    client = portico.client
    async with updates(client) as stream:
        session = await create(client, "script", name, tools=GRANT)
        new = await until(stream, lambda own: True)
        await expect_read(client, session, new)
        assert (new["x-portico"]["state"], new["x-portico"]["lastSeq"], new["x-portico"]["queued"]) == ("idle", 0, 0)
        assert new["x-portico"]["cwd"] == str(portico.gateway.settings.data_dir.parent / "scenes")
        assert "pendingCalls" not in new["x-portico"] and "waitingSince" not in new["x-portico"]
        first = await turn(client, session, user_message("write"))
        assert first["stopReason"] == "tool_use"
        waiting = await until(stream, lambda own: own["state"] == "waiting")
        await expect_read(client, session, waiting)
        assert waiting == (await listed(client))[0]
        own = waiting["x-portico"]
        assert own["title"] == "Notes" and own["waitingSince"] >= own["createdAt"]
        [call] = own["pendingCalls"]
        assert [choice.pop("name") for choice in call["choices"]] == [
            "Allow", "Always allow write_note in this session", "Reject", "Never allow write_note in this session",
        ]  # fmt: skip
        kinds = ["allow_once", "allow_always", "reject_once", "reject_always"]
        assert call.pop("choices") == [{"id": kind, "kind": kind} for kind in kinds]
        call.pop("title", None)
        expected = {"toolCallId": "n1", "name": "write_note", "input": {"path": "a.md", "text": "A"}}
        assert call == {**expected, "wants": "permission", "optional": False}
        await turn(client, session, {"role": "tool_permission", "toolCallId": "n1", "granted": True})
        idle = await until(stream, lambda own: own["state"] == "idle")
        await expect_read(client, session, idle)
        assert "pendingCalls" not in idle["x-portico"] and idle["x-portico"]["lastSeq"] > own["lastSeq"]
        assert (await client.delete(f"{SESSIONS}/{session}")).status_code == 204
        async for event, data in stream:
            if event == "session_deleted":
                assert data == {"sessionId": session}
                break


async def test_requests_in_the_queue_are_counted(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"wait_for_file": "go.txt"}, {"text": "one"}], [{"text": "two"}])
    client = portico.client
    async with updates(client) as stream:
        session = await create(client, "script", name)
        running = asyncio.create_task(turn(client, session, user_message("a")))
        await until(stream, lambda own: own["state"] == "running")
        queued = asyncio.create_task(turn(client, session, user_message("b"), when_busy="queue"))
        assert (await until(stream, lambda own: own["queued"] == 1))["x-portico"]["state"] == "running"
        assert (await info(client, session))["x-portico"]["queued"] == 1
        (portico.gateway.settings.data_dir.parent / "scenes" / "go.txt").touch()
        await asyncio.gather(running, queued)
        await until(stream, lambda own: own["queued"] == 0 and own["state"] == "idle")


async def test_a_result_of_the_application_has_no_choices(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"app_tool": {"id": "w", "name": "weather", "input": {"city": "Oslo"}}}])
    body = {
        "agent": {"name": "script", "options": {"scenario": name}},
        "tools": [{"name": "weather", "title": "Weather", "description": "The weather.", "parameters": {"type": "object"}}],
    }
    session = (await portico.client.post(SESSIONS, json=body)).json()["sessionId"]
    await turn(portico.client, session, user_message("?"))
    [call] = (await info(portico.client, session))["x-portico"]["pendingCalls"]
    assert call == {
        "toolCallId": "w", "name": "weather", "title": "Weather", "input": {"city": "Oslo"},
        "wants": "result", "optional": False, "choices": [],
    }  # fmt: skip


async def test_a_trusted_call_at_the_end_of_a_given_history_needs_no_answer(portico: RunningGateway) -> None:
    calls = [{"type": "tool_use", "toolCallId": name, "name": name, "input": {}} for name in ("lookup", "write_note")]
    body = {
        "agent": {"name": "script", "tools": [{"name": "lookup", "trust": True}, {"name": "write_note"}]},
        "messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": calls}],
    }
    session = (await portico.client.post(SESSIONS, json=body)).json()["sessionId"]
    pending = (await info(portico.client, session))["x-portico"]["pendingCalls"]
    assert [(call["toolCallId"], call["optional"]) for call in pending] == [("lookup", True), ("write_note", False)]


async def test_many_changes_at_once_are_few_frames(portico: RunningGateway) -> None:
    client = portico.client
    async with updates(client) as stream:
        session = await create(client)
        for n in range(30):
            await turn(client, session, user_message(f"message {n}"))
        last = (await info(client, session))["x-portico"]["lastSeq"]
        frames = 1
        while (await until(stream, lambda own: True))["x-portico"]["lastSeq"] < last:
            frames += 1
        # Each turn changes the session at least twice.
        assert frames < 60


async def test_each_key_gets_its_own_sessions(portico: RunningGateway) -> None:
    async with http_client(portico.url) as one, http_client(portico.url) as other:
        one.headers["Authorization"] = f"Bearer {await add_key(portico.gateway, 'one')}"
        other.headers["Authorization"] = f"Bearer {await add_key(portico.gateway, 'other')}"
        async with updates(one) as first, updates(other) as second, updates(portico.client) as administrator:
            of_one = await create(one)
            of_other = await create(other)
            await one.delete(f"{SESSIONS}/{of_one}")
            later = await create(one)
            assert (await anext(second))[1]["sessionId"] == of_other
            found = [await anext(first)]
            while found[-1][1]["sessionId"] != later:
                found.append(await anext(first))
            assert {data["sessionId"] for _, data in found} == {of_one, later}
            seen: set[str] = set()
            while not seen >= {of_one, of_other, later}:
                seen.add((await anext(administrator))[1]["sessionId"])
            await turn(other, of_other, user_message())
            assert (await anext(second))[1]["sessionId"] == of_other


async def test_a_stream_ends_when_the_gateway_stops(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path)) as running, updates(running.client) as stream:
        await running.gateway.stop_runs()
        assert [update async for update in stream] == []
        # A stream that begins then ends at once, without `ready`.
        async with asyncio.timeout(60):
            assert (await running.client.get("/aap/v3/updates")).text == ""


async def test_a_listener_of_a_client_that_is_gone_is_removed(portico: RunningGateway) -> None:
    changes = portico.gateway.sessions.changes
    # That of the search is one.
    before = set(changes._listeners)
    async with updates(portico.client):
        assert len(changes._listeners) == len(before) + 1
    await wait_until(lambda: changes._listeners == before)


async def test_what_waits_is_known_after_a_restart(daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path) -> None:
    name = write_scenario([NOTE, {"text": "{last_result}"}])
    write_config(tmp_path, gateway_config(tmp_path))
    await daemon.start()
    async with daemon.client() as client:
        session = await create(client, "script", name, tools=GRANT)
        await turn(client, session, user_message("write"))
        before = await info(client, session)
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client, updates(client) as stream:
        assert await listed(client) == [before] == [await info(client, session)]
        await turn(client, session, {"role": "tool_permission", "toolCallId": "n1", "granted": False})
        after = await until(stream, lambda own: own["state"] == "idle")
        assert "pendingCalls" not in after["x-portico"]


async def test_a_session_whose_agent_is_gone_has_no_folder(tmp_path: Path) -> None:
    config = gateway_config(tmp_path)
    agents = {**config["agents"], "other": {"driver": "echo"}}
    async with run_gateway({**config, "agents": agents}) as portico:
        session = await create(portico.client, "other")
        folder = (await info(portico.client, session))["x-portico"]["cwd"]
        assert folder == str(tmp_path / "data" / "workspaces" / "other")
        assert [one["sessionId"] for one in await listed(portico.client, cwd=folder)] == [session]
    async with run_gateway(config) as portico:
        [found] = await listed(portico.client)
        assert (found["sessionId"], found["x-portico"]["cwd"]) == (session, None)
        assert await listed(portico.client, cwd=folder) == []
        assert await listed(portico.client, agent="other") == [found]
