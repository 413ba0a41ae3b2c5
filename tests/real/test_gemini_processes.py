"""The real gemini's processes: resuming in another one, interrupts, the daemon or the CLI killed, and its entry in `/meta`."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import httpx

from gateway.security.authentication import ADMINISTRATOR
from tests.real.gemini import SHELL, AapSession, Gemini, create_session
from tests.real.processes import processes_of, running_process, wait_for_exit
from tests.support.daemon import RunningGateway
from tests.support.waiting import wait_until


async def test_a_session_is_resumed_after_a_restart_of_the_daemon(gemini: Gemini) -> None:
    daemon = await gemini.daemon()
    async with daemon.client() as client:
        aap = await create_session(client, "hello [[plain]]")
        await aap.send_turn("and [[think]]")
    for end in (daemon.kill, daemon.stop):
        await end()
        await daemon.start()
        async with daemon.client() as client:
            aap = AapSession(client, aap.id, {})
            answer = await aap.send_turn("[[recall]]")
            assert "hello [[plain]] | and [[think]]" in answer
            # The replay of the loaded session is not part of the answer.
            assert "Hello from the model" not in answer
    assert len([r for r in gemini.model.requests if r.scenario == "recall"]) == 2


async def test_a_lost_native_session_is_seeded(gemini: Gemini) -> None:
    daemon = await gemini.daemon()
    async with daemon.client() as client:
        aap = await create_session(client, "hello [[plain]]")
    await daemon.stop()
    for path in gemini.base.rglob("session-*.jsonl"):
        path.unlink()
    await daemon.start()
    async with daemon.client() as client:
        answer = await AapSession(client, aap.id, {}).send_turn("[[recall]]")
    assert answer == "I see 2 user texts. Before this one: hello [[plain]]"


async def test_an_interrupt_in_text(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[plain]]")
    session = await running.gateway.sessions.get(ADMINISTRATOR, aap.id)
    turn = asyncio.create_task(aap.post({"role": "user", "content": "[[slowcount]]"}))
    await wait_until(lambda: any(r.scenario == "slowcount" for r in gemini.model.requests), "the model has a request")
    assert session.run is not None
    await session.run.cancel()
    answer = await turn
    assert answer["stopReason"] in ("end_turn", "error")
    assert await aap.send_turn("[[plain]]") == "Hello from the model, this is plain text."


async def test_an_interrupt_in_a_tool_ends_its_process(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[plain]]", tools={SHELL: True})
    turn = asyncio.create_task(aap.post({"role": "user", "content": "[[longshell]]"}))
    child = await running_process(gemini.home, "python")
    began = time.monotonic()
    answer = await running.client.post(f"/session/{aap.id}/cancel")
    took = time.monotonic() - began
    assert answer.json() == {"sessionId": aap.id, "cancelled": True, "state": "idle"}
    await turn
    await wait_for_exit(child.pid)
    assert took < 5, f"{took:.2f} s; 1 s on a machine that has nothing else to do"
    assert await aap.send_turn("[[plain]]") == "Hello from the model, this is plain text."


async def test_the_cli_killed_in_mid_run(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "hello [[plain]]", tools={SHELL: True})
    turn = asyncio.create_task(aap.post({"role": "user", "content": "[[longshell]]"}))
    child = await running_process(gemini.home, "python")
    (process,) = processes_of(gemini.home, "node")
    process.kill()
    answer = await turn
    assert answer["stopReason"] == "error"
    assert "ended in the middle of the run" in answer["x-portico"]["error"]
    await wait_for_exit(child.pid)
    assert "hello [[plain]]" in await aap.send_turn("[[recall]]")


async def test_a_deleted_session_leaves_nothing(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "hello [[e401]]")
    state = gemini.base / "data" / "state"
    assert [folder.name for folder in state.iterdir()] == [aap.id]
    assert list((state / aap.id / "tmp").glob("gemini-client-error-*"))
    assert (await running.client.delete(f"/session/{aap.id}")).status_code == 204
    assert list(state.iterdir()) == []


async def test_meta_lists_gemini(gemini: Gemini) -> None:
    daemon = await gemini.daemon()
    async with daemon.client() as client:
        agent = await _agent(client)
    assert agent["version"] == "0.61.0"
    assert SHELL in [tool["name"] for tool in agent["tools"]]
    assert agent["capabilities"]["image"] == {"data": {}}


async def _agent(client: httpx.AsyncClient) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            while not found:
                agents = (await client.get("/meta")).json()["agents"]
                found = [agent for agent in agents if agent["name"] == "gemini" and agent["version"] != "0.0.0"]
    assert found, "gemini is not listed"
    return found[0]
