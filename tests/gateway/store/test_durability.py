"""`store.durability`: what clients have received when the daemon is killed."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.config import parse
from gateway.errors import ConfigError
from tests.daemon import gateway_config, run_gateway
from tests.gateway.requests import execute, session_body, user_message

WriteScenario = Callable[..., str]


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


def test_unknown_durability_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"store\.durability: .*'sent-first' or 'stored-first'"):
        parse({"store": {"durability": "fsync"}})
