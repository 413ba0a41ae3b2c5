"""What the gateway has beyond AAP is the same under the session's path of each version."""

from __future__ import annotations

import pytest

from tests.daemon import Running
from tests.gateway.follow import numbered, replay
from tests.gateway.talk import create, user

KEYED = {"Idempotency-Key": "job-1"}


@pytest.mark.parametrize("path", ["/aap/v1/session", "/aap/v2/session", "/aap/v3/sessions"])
async def test_each_version_follows_and_cancels(portico: Running, path: str) -> None:
    session = (await create(portico.client, "echo", "hi"))["sessionId"]
    answer = await portico.client.get(f"{path}/{session}/events", params={"after": "0", "until": "turn_stop"})
    assert numbered(answer.text) == await replay(portico.client, session)
    assert (await portico.client.post(f"{path}/{session}/cancel")).json()["cancelled"] is False
    assert (await portico.client.post(f"{path}/none/cancel")).status_code == 404


async def test_version_3_under_a_key(portico: Running) -> None:
    body = {"agent": {"name": "echo"}, "messages": []}
    made = [await portico.client.post("/aap/v3/sessions", json=body, headers=KEYED) for _ in range(2)]
    assert [answer.status_code for answer in made] == [201, 201]
    assert made[0].json() == made[1].json()
    session = made[0].json()["sessionId"]
    received_text = {"messages": [user("once")], "stream": "delta"}
    turns = [await portico.client.post(f"/aap/v3/sessions/{session}/turns", json=received_text, headers=KEYED) for _ in range(2)]
    assert turns[0].text == turns[1].text
    assert [event[1] for event in numbered(turns[0].text)] == ["turn_start", "text_delta", "turn_stop"]
    assert (await portico.client.post("/aap/v3/sessions", json=body | {"messages": [user()]}, headers=KEYED)).status_code == 409
