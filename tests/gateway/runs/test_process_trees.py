"""What agents have started is ended with them: also a process without a parent, in a session of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.daemon import Daemon, RunningGateway, gateway_config
from tests.support.faulty_store import LOCKED, run_faulty_gateway
from tests.support.requests import (
    agent_processes,
    create_session,
    execute,
    get_session,
    is_alive,
    read_pid,
    send_turn,
    session_body,
    wait_until_idle,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="docs/operations.md: what other systems cannot do")

WriteScenario = Callable[..., str]
SPAWN = {"seconds": 300, "new_session": True, "orphan": True, "pid_file": "orphan"}
ORPHAN = {"spawn": SPAWN}
STAYS = {"hang": {"ignore_interrupt": True, "ignore_eof": True}}


@asynccontextmanager
async def _orphan(tmp_path: Path, pid_file: str = "orphan") -> AsyncIterator[int]:
    """Yield the process id of the orphan that the agent has started, and check that it was ended."""
    pid = await read_pid(tmp_path / "scenes" / pid_file)
    try:
        assert is_alive(pid)
        yield pid
        await wait_until(lambda: not is_alive(pid))
    finally:
        if is_alive(pid):
            psutil.Process(pid).kill()


async def test_orphans_end_with_the_agent_of_a_session_however_that_ends(
    portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    client = portico.client
    for how in ("cancelled", "deleted", "exits", "killed between two turns"):
        pid_file = how.replace(" ", "-")
        orphan = {"spawn": {**SPAWN, "pid_file": pid_file}}
        turns = [[{"text": "up"}], [orphan, STAYS]] if how == "cancelled" else [[orphan, {"text": "up"}], [{"exit": 3}]]
        name = write_scenario(*turns, name=f"{pid_file}.json")
        before = {agent.pid for agent in agent_processes(os.getpid())}
        session = (await create_session(client, options={"scenario": name}))["sessionId"]
        turn = asyncio.create_task(send_turn(client, session, "go")) if how == "cancelled" else None
        async with _orphan(tmp_path, pid_file):
            if turn is not None:
                assert (await client.post(f"/session/{session}/cancel")).status_code == 200
                assert (await turn)["stopReason"] == "end_turn"
            elif how == "deleted":
                assert (await client.delete(f"/session/{session}")).status_code == 204
            elif how == "exits":
                assert (await send_turn(client, session, "exit"))["stopReason"] == "error"
            else:
                [agent] = [agent for agent in agent_processes(os.getpid()) if agent.pid not in before]
                agent.kill()


async def test_orphans_end_with_a_task(portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path) -> None:
    write_scenario([ORPHAN, {"text": "done"}], name="orphan.json")
    portico.gateway.agents.get("script").settings.options["scenario"] = "orphan.json"
    assert [event["kind"] for event in await execute(portico.client)] == ["agent_token", "session_end"]
    pid = await read_pid(tmp_path / "scenes" / "orphan")
    await wait_until(lambda: not is_alive(pid), 10)


async def test_an_agent_does_not_end_the_orphans_of_another(
    portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    name = write_scenario([ORPHAN, {"text": "up"}])
    other = write_scenario([{"text": "up"}], name="other.json")
    session = (await create_session(portico.client, options={"scenario": name}))["sessionId"]
    second = (await create_session(portico.client, options={"scenario": other}))["sessionId"]
    async with _orphan(tmp_path) as pid:
        assert (await portico.client.delete(f"/session/{second}")).status_code == 204
        assert is_alive(pid)
        assert (await portico.client.delete(f"/session/{session}")).status_code == 204


@pytest.mark.parametrize(("end", "empty_env"), [("stop", True), ("kill", False)])
async def test_orphans_end_with_their_session_and_with_the_daemon_or_at_its_next_start(
    daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path, end: str, empty_env: bool
) -> None:
    name = write_scenario([{"spawn": {**SPAWN, "empty_env": empty_env}}, {"text": "up"}])
    await daemon.start()
    async with daemon.client() as client:
        await create_session(client, options={"scenario": name})
    async with _orphan(tmp_path) as pid:
        assert psutil.Process(pid).ppid() == daemon.pid
        if end == "kill":
            await daemon.kill()
            await daemon.start()
        else:
            assert await daemon.stop() == 0


async def test_turns_and_deletion_succeed_after_the_end_of_a_process_could_not_be_stored(
    tmp_path: Path, write_scenario: WriteScenario
) -> None:
    name = write_scenario([{"text": "{turn}"}], [{"exit": 3}], [{"text": "{turn}"}])
    async with run_faulty_gateway(gateway_config(tmp_path)) as (portico, faults):
        session = (await create_session(portico.client, options={"scenario": name}))["sessionId"]
        fault = faults.fail("processes.ended", text=LOCKED)
        assert (await send_turn(portico.client, session, "exit"))["stopReason"] == "error"
        await fault.raised()
        assert (await send_turn(portico.client, session, "go on"))["stopReason"] == "end_turn"
        await wait_until_idle(portico.client, session)
        assert (await portico.client.delete(f"/session/{session}")).status_code == 204


async def test_session_goes_on_after_its_agent_could_not_be_stored(tmp_path: Path) -> None:
    async with run_faulty_gateway(gateway_config(tmp_path)) as (portico, faults):
        session = (await create_session(portico.client, "echo"))["sessionId"]
        (agent,) = agent_processes(os.getpid())
        agent.kill()
        await wait_until(lambda: not psutil.pid_exists(agent.pid))
        faults.fail("processes.*", text=LOCKED)
        assert (await portico.client.post(f"/session/{session}", json=session_body("echo"))).status_code >= 400
        faults.clear()
        assert (await get_session(portico.client, session))["state"] == "idle"
        assert (await send_turn(portico.client, session, "again"))["stopReason"] == "end_turn"
