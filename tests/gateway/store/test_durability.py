"""`store.durability`: what clients have received when the daemon is killed, or its store fails."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.config import parse
from gateway.errors import ConfigError
from gateway.events.event_log import RETRY, STOP_TIMEOUT, STORE_TIMEOUT
from tests.support.daemon import gateway_config, run_gateway
from tests.support.faulty_store import run_faulty_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import create_session, execute, session_body, user_message, wait_until_idle
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
pytestmark = pytest.mark.sqlite_only


def stored(folder: Path, log_id: str) -> int:
    """Return the number of the last event that another process can read."""
    with closing(sqlite3.connect(folder / "data" / "portico.db")) as connection:
        [last] = connection.execute("SELECT coalesce(max(last), 0) FROM events WHERE log_id = ?", (log_id,)).fetchone()
    return int(last)


async def test_stored_first_client_receives_no_event_that_is_not_stored(tmp_path: Path, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"events": 300}, {"message_end": True}, *[{"text": "x"}, {"delay": 0.005}] * 20])
    async with run_gateway(gateway_config(tmp_path, store={"durability": "stored-first"})) as portico:
        body = session_body("script", "go", options={"scenario": name}, stream="delta")
        async with portico.client.stream("PUT", "/session", json=body) as answer:
            assert answer.status_code == 200
            text = ""
            async for chunk in answer.aiter_text():
                text += chunk
                session = json.loads(text.split("data: ", 1)[1].split("\n", 1)[0])["sessionId"]
                if numbers := re.findall(r"\nid: (\d+)", text):
                    assert stored(tmp_path, session) >= int(numbers[-1])
        assert text.count("event: text_delta") == 320
        assert '"stopReason":"end_turn"' in text
        answer_text = (await portico.client.post(f"/session/{session}", json={"messages": [user_message("again")]})).text
        assert '"stopReason":"end_turn"' in answer_text
        assert (await execute(portico.client, driver="echo"))[-1]["kind"] == "session_end"


@pytest.mark.parametrize("end", ["cancel", "timeout", "shutdown"])
async def test_stored_first_client_receives_an_end_that_is_not_stored_only_at_shutdown(
    tmp_path: Path, clock: ManualClock, write_scenario: WriteScenario, end: str
) -> None:
    last = [] if end == "timeout" else [{"hang": True}]
    name = write_scenario([{"text": "one"}], [{"text": "two"}, {"wait_for_file": "go"}, {"text": "three"}, *last])
    async with run_faulty_gateway(gateway_config(tmp_path, store={"durability": "stored-first"}), clock) as (portico, faults):
        session = (await create_session(portico.client, "script", "a", options={"scenario": name}))["sessionId"]
        received = ""

        async def read() -> None:
            nonlocal received
            body = {"messages": [user_message("b")], "stream": "delta"}
            async with portico.client.stream("POST", f"/session/{session}", json=body) as answer:
                async for chunk in answer.aiter_text():
                    received += chunk

        reading = asyncio.create_task(read())
        await wait_until(lambda: "two" in received)
        fault = faults.fail()
        (tmp_path / "scenes" / "go").touch()
        await fault.raised()
        if end == "shutdown":
            await clock.expire_until(portico.gateway.stop_runs(), STOP_TIMEOUT)
            await asyncio.wait_for(reading, 30)
            assert "three" in received and '"stopReason":"error"' in received
            return
        if end == "cancel":
            answer = await clock.expire_until(portico.client.post(f"/session/{session}/cancel"), STOP_TIMEOUT)
            assert answer.json() == {"sessionId": session, "cancelled": True, "state": "idle"}
        else:
            await clock.expire(STORE_TIMEOUT)
            # The end of the agent's process cannot be stored either, and is not waited for longer than LEDGER_SECONDS.
            await clock.expire_until(wait_until_idle(portico.client, session), RETRY)
        [*_, newest] = re.findall(r"\nid: (\d+)", received)
        assert "three" not in received and "turn_stop" not in received and int(newest) <= stored(tmp_path, session)
        assert not reading.done()
        faults.clear()
        await clock.expire_until(reading, RETRY)
        assert "three" in received and received.count("event: turn_stop") == 1
        [*_, newest] = re.findall(r"\nid: (\d+)", received)
        assert int(newest) == stored(tmp_path, session)


def test_unknown_durability_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"store\.durability: .*'sent-first' or 'stored-first'"):
        parse({"store": {"durability": "fsync"}})
