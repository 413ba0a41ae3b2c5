"""Failures of the model reach the client within seconds as a stop reason and a text, and the session continues."""

from __future__ import annotations

import time

import pytest

from tests.real.aap_client import create_session, text_of
from tests.real.conftest import Home
from tests.real.models import Model, message_texts
from tests.support.daemon import RunningGateway

TIME_LIMIT = 20.0


@pytest.mark.parametrize(
    ("scenario", "whole"),
    [
        ("cut", "this stream is cut after some deltas"),
        ("cutonce", "Whole on the second try."),
        ("malformed", "x"),
    ],
)
async def test_a_broken_stream_is_not_doubled_in_the_history(
    portico: RunningGateway, model: Model, scenario: str, whole: str
) -> None:
    aap = await create_session(portico.client, "[[plain]] before")
    frames = await aap.stream_turn(f"[[{scenario}]] now", "message")
    assert frames[:-1] == [("turn_start", {}), ("text", {"text": whole})]
    assert (frames[-1][0], frames[-1][1]["stopReason"]) == ("turn_stop", "end_turn")
    assert text_of((await aap.history())[-1:]) == whole
    assert len(await aap.history()) == 4
    await aap.send_turn("[[recall]] after")
    assert message_texts(model.last_request(), "assistant")[-1] == whole


async def test_an_unreachable_model_is_an_error_within_seconds(home: Home) -> None:
    home.env["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:9"
    async with home.gateway() as portico:
        started = time.monotonic()
        aap = await create_session(portico.client, "hello", stop="error")
        assert time.monotonic() - started < TIME_LIMIT
        assert aap.first["x-portico"]["error"].startswith("claude: API Error")


async def test_a_cli_that_rejects_its_arguments_is_an_error_with_its_output(home: Home) -> None:
    home.agent["args"] = ["--no-such-flag"]
    async with home.gateway() as portico:
        body = {"agent": {"name": "claude"}, "messages": [{"role": "user", "content": "hello"}]}
        answer = await portico.client.put("/session", json=body)
        assert answer.status_code == 503
        assert "--no-such-flag" in answer.json()["error"]
        assert (await portico.client.get("/sessions")).json()["sessions"] == []
