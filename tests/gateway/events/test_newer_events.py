"""Events of kinds that only a newer version of the gateway knows: an older one goes on with their logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.events.log_entries import UnknownEvent, decode
from gateway.runs.recovery import WHY
from gateway.sessions.settings import SessionSettings
from gateway.store import EventRow, RunRecord, SessionRecord, Store
from gateway.store.sqlite import sqlite_url
from tests.daemon import gateway_config, run_gateway
from tests.store_template import create_database

EVENTS = (
    b'{"kind":"turn_start","messages":[{"role":"user","content":"hello"}],"from":"a newer version"}',
    b'{"kind":"mood","level":3}',
    b'{"kind":"agent_token","text":"hel","shade":1}',
    b'{"kind":"mood","level":4}',
    b'{"kind":"agent_token","text":"lo"}',
)


def test_only_events_of_unknown_kinds_are_unknown() -> None:
    assert decode(b'{"kind":"mood","level":3}') == UnknownEvent(kind="mood")
    for wrong in (b'{"kind":"agent_token"}', b'{"level":3}', b'{"kind":3}', b"[]", b"{", b""):
        with pytest.raises(ValidationError):
            decode(wrong)


async def test_a_run_with_unknown_events_is_recovered_followed_and_continued(tmp_path: Path) -> None:
    config = gateway_config(tmp_path)
    await create_database(tmp_path / "data")
    store = await Store.open(sqlite_url(tmp_path / "data"))
    await store.sessions.create(SessionRecord("s", "echo", {"options": {}}), [], RunRecord("r", "s", "running", None, 1))
    await store.events.append(EventRow("s", 1, len(EVENTS), b"\n".join(EVENTS)))
    await store.close()
    async with run_gateway(config) as running:
        page = (await running.client.get("/aap/v3/sessions/s/log", params={"after": 0})).json()
        kinds = [event["event"]["kind"] for event in page["events"]]
        assert kinds[:5] == ["turn_start", "mood", "agent_token", "mood", "agent_token"] and kinds[-1] == "session_end"
        answer = await running.client.get("/session/s/events", params={"after": "0", "until": "turn_stop"})
        assert answer.status_code == 200 and WHY in answer.text
        history = (await running.client.get("/session/s")).json()["history"]["full"]
        assert "hello" in str(history[-1])
        again = await running.client.post("/session/s", json={"messages": [{"role": "user", "content": "again"}]})
        assert again.status_code == 200 and "again" in again.text


def test_settings_that_only_a_newer_version_knows_are_kept() -> None:
    stored = {"options": {"model": "x"}, "tools": None, "app_tools": None, "budget": {"usd": 3}}
    assert SessionSettings.from_json(stored, {}).to_json() == stored
