"""`POST …/cancel` with the real claude: the run and the processes of its tools end, and the session is idle at once."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.real.aap_client import create_session, read_until_event, user
from tests.real.conftest import Home
from tests.real.processes import TIMEOUT_SECONDS, cli_of, processes_of, wait_for_exit
from tests.support.daemon import RunningGateway


@pytest.mark.parametrize("command", ["sleep 97", "trap '' TERM INT HUP; sleep 97; sleep 98"])
async def test_a_cancelled_run_ends_its_shell_command(portico: RunningGateway, home: Home, command: str) -> None:
    aap = await create_session(portico.client, "[[plain]] before")
    cli = cli_of(home.path)
    grants = {"agent": {"tools": [{"name": "Bash", "trust": True}]}}
    await aap.send_turn("[[plain]] with tools", **grants)
    body = {"messages": [user(f"[[run:{command}]]")], "stream": "delta"}
    turn = asyncio.create_task(portico.client.post(f"/session/{aap.id}", json=body))
    sleeps = await asyncio.wait_for(_sleeping(home), TIMEOUT_SECONDS)
    began = time.monotonic()
    answer = await portico.client.post(f"/session/{aap.id}/cancel")
    took = time.monotonic() - began
    assert answer.json() == {"sessionId": aap.id, "cancelled": True, "state": "idle"}
    text = (await turn).text
    assert text.count("event: turn_stop") == 1
    assert text.rstrip().split("\n")[-2].startswith('data: {"stopReason":"end_turn"')
    for pid in sleeps:
        await wait_for_exit(pid)
    assert took < 5, f"{took:.2f} s; 1 s on a machine that has nothing else to do"
    assert await aap.send_turn("[[echo:again]]") == "again"
    assert (await aap.history())[-1]["content"] == "again"
    assert cli.pid


async def test_a_cancelled_run_ends_its_text(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, "[[plain]] before")
    cli = cli_of(home.path)
    async with aap.open_stream("[[slowtext]]") as frames:
        await read_until_event(frames, "text_delta")
        assert (await portico.client.post(f"/session/{aap.id}/cancel")).json()["cancelled"]
        name, data = [frame async for frame in frames][-1]
        assert (name, data["stopReason"]) == ("turn_stop", "end_turn")
    assert await aap.send_turn("[[echo:again]]") == "again"
    assert cli_of(home.path) == cli, "it was interrupted, not killed"


async def _sleeping(home: Home) -> list[int]:
    while True:
        # Read each process once: it may end between two reads.
        found = [process.pid for process in processes_of(home.path, command="sleep 97")]
        if found:
            return found
        await asyncio.sleep(0.05)
