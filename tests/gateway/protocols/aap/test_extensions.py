"""Extensions of AAP (events, cancel, idempotency keys) under the session path of each version."""

from __future__ import annotations

import pytest

from tests.support.daemon import RunningGateway
from tests.support.event_streams import replay_events
from tests.support.requests import create_session, user_message
from tests.support.sse import parse_events

KEYED = {"Idempotency-Key": "job-1"}


@pytest.mark.parametrize("path", ["/aap/v1/session", "/aap/v2/session", "/aap/v3/sessions"])
async def test_events_and_cancel_work_in_each_version(portico: RunningGateway, path: str) -> None:
    session = (await create_session(portico.client, "echo", "hi"))["sessionId"]
    answer = await portico.client.get(f"{path}/{session}/events", params={"after": "0", "until": "turn_stop"})
    assert parse_events(answer.text) == await replay_events(portico.client, session)
    assert (await portico.client.post(f"{path}/{session}/cancel")).json()["cancelled"] is False
    assert (await portico.client.post(f"{path}/none/cancel")).status_code == 404


async def test_idempotency_key_works_in_version_3(portico: RunningGateway) -> None:
    body = {"agent": {"name": "echo"}, "messages": []}
    creations = [await portico.client.post("/aap/v3/sessions", json=body, headers=KEYED) for _ in range(2)]
    assert [answer.status_code for answer in creations] == [201, 201]
    assert creations[0].json() == creations[1].json()
    session = creations[0].json()["sessionId"]
    turn = {"messages": [user_message("once")], "stream": "delta"}
    turns = [await portico.client.post(f"/aap/v3/sessions/{session}/turns", json=turn, headers=KEYED) for _ in range(2)]
    assert turns[0].text == turns[1].text
    assert [event[1] for event in parse_events(turns[0].text)] == ["turn_start", "text_delta", "turn_stop"]
    assert (
        await portico.client.post("/aap/v3/sessions", json=body | {"messages": [user_message()]}, headers=KEYED)
    ).status_code == 409
