"""Failures of the model reach the client within seconds as a stop reason and a text, and the session continues."""

from __future__ import annotations

import time

import pytest

from tests.real.aap_client import create_session, joined, text_of
from tests.real.conftest import Home
from tests.real.models import Model, message_texts
from tests.real.processes import cli_of
from tests.support.daemon import RunningGateway

TIME_LIMIT = 20.0


@pytest.mark.parametrize(
    ("scenario", "reported"),
    [
        ("e400", "bad request"),
        ("e401", "Invalid API key"),
        ("e429", "slow down"),
        ("e500", "500"),
    ],
)
async def test_an_error_of_the_model_ends_the_turn_and_not_the_session(
    portico: RunningGateway, home: Home, model: Model, scenario: str, reported: str
) -> None:
    aap = await create_session(portico.client, "[[plain]] before")
    process, started = cli_of(home.path), time.monotonic()
    frames = await aap.stream_turn(f"[[{scenario}]] now")
    assert time.monotonic() - started < TIME_LIMIT
    name, data = frames[-1]
    assert (name, data["stopReason"]) == ("turn_stop", "error")
    assert data["x-portico"]["error"].startswith("claude: ") and reported in data["x-portico"]["error"]
    assert joined(frames, "text_delta", "delta") == data["x-portico"]["error"]
    assert model.request_count(scenario) <= 3
    assert (await aap.send_turn("[[recall]] after")).startswith("I see")
    assert cli_of(home.path) == process
    history = await aap.history()
    assert [message["role"] for message in history] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert history[3] == {"role": "assistant", "content": data["x-portico"]["error"], "x-portico": {"error": True}}


async def test_an_error_of_the_first_turn_leaves_a_session_that_can_be_used(home: Home, model: Model) -> None:
    home.env["CLAUDE_CODE_MAX_RETRIES"] = "0"
    async with home.gateway() as portico:
        aap = await create_session(portico.client, "[[e401]] first", stop="error")
        reason = aap.first["x-portico"]["error"]
        assert "Invalid API key" in reason and [message["content"] for message in aap.first["messages"]] == [reason]
        assert model.request_count("e401") == 1, "the agent's environment sets the retries"
        await aap.send_turn("[[plain]] after")


async def test_max_tokens_is_a_stop_reason(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[plain]] before")
    assert (await aap.send_turn("[[maxtok]] now", stop="max_tokens")).startswith("This answer is cut off in the mid")
    assert (await aap.info())["stopReason"] == "max_tokens"
    await aap.send_turn("[[plain]] after")


async def test_refusal_is_a_stop_reason(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[plain]] before")
    assert (await aap.send_turn("[[refusal]] now", stop="refusal")).startswith("I can not help")
    assert (await aap.info())["stopReason"] == "refusal"
    await aap.send_turn("[[plain]] after")


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


async def test_a_delta_stream_ends_with_the_whole_text_when_the_model_broke_off(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[plain]] before")
    frames = await aap.stream_turn("[[cutonce]] now")
    # Deltas before the break are already sent; the complete answer follows.
    assert joined(frames, "text_delta", "delta").endswith("Whole on the second try.")
    assert text_of((await aap.history())[-1:]) == "Whole on the second try."


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
