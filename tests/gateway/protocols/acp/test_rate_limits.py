"""Usage limits: what clients get of them, and runs that go on when the limit resets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import Any

import pytest

from drivers.contract.messages import UserMessage
from drivers.runtime.cli_agent import CliAgent
from gateway.errors import Conflict
from gateway.runs.answer_format import FormattedAgent
from gateway.runs.run import LIMIT_MARGIN, MAX_LIMIT_WAIT
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Submission
from tests.gateway.protocols.acp.conftest import Scripted
from tests.support.acp_client import RpcFailed
from tests.support.daemon import RunningGateway
from tests.support.manual_clock import ManualClock

LIMITED = "out of tokens (the limit resets at 2100-01-01 00:00:00 UTC)"


def limited(resets_at: float) -> list[dict[str, Any]]:
    """The steps of a turn that a usage limit ends."""
    limit = {"kind": "rate_limit", "status": "rejected", "limit": "five_hour", "resets_at": resets_at}
    error = {"kind": "error", "message": "out of tokens", "resets_at": resets_at}
    return [{"line": json.dumps(limit)}, {"line": json.dumps(error)}, {"stop": {"reason": "error", "message": LIMITED}}]


def limits_of(client: Any) -> list[dict[str, Any]]:
    found = [
        update["_meta"]["portico/rateLimit"] for update in client.updates() if "portico/rateLimit" in update.get("_meta", {})
    ]
    return [{name: value for name, value in limit.items() if name != "resetsAt"} for limit in found]


@pytest.fixture
def waiting(portico: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script agent waits for limits."""
    settings = portico.gateway.agents.get("script").settings
    monkeypatch.setitem(settings.__dict__, "on_rate_limit", "wait")


async def test_runs_that_a_limit_fails(scripted: Scripted) -> None:
    # Run fails by default and names the time.
    client, session = await scripted(limited(time.time()))
    with pytest.raises(RpcFailed, match="resets at 2100-01-01"):
        await client.prompt(session)
    assert limits_of(client) == [{"status": "rejected", "limit": "five_hour"}]


@pytest.mark.usefixtures("waiting")
async def test_run_goes_on_when_the_limit_has_been_reset(scripted: Scripted, clock: ManualClock) -> None:
    for seconds in (-1, 3600):
        turns = [{"steps": limited(clock.time() + seconds)}, {"steps": [{"text": "Done."}]}]
        client, session = await scripted(*turns)
        prompting = asyncio.create_task(client.prompt(session))
        await clock.expire(max(seconds, 0) + LIMIT_MARGIN)
        assert (await prompting)["stopReason"] == "end_turn", seconds
        assert client.text() == "Done.", seconds
        assert limits_of(client) == [{"status": "rejected", "limit": "five_hour"}, {"status": "rejected", "waiting": True}], (
            seconds
        )


@pytest.mark.usefixtures("waiting")
async def test_run_waits_whether_or_not_the_error_and_the_end_of_the_turn_are_read_at_once(
    scripted: Scripted, clock: ManualClock
) -> None:
    rate_limit, error, stop = limited(clock.time() - 1)
    turns = [{"steps": [rate_limit, error, {"delay": 0.1}, stop]}, {"steps": [{"text": "Done."}]}]
    client, session = await scripted(*turns)
    prompting = asyncio.create_task(client.prompt(session))
    await clock.expire(LIMIT_MARGIN)
    assert (await prompting)["stopReason"] == "end_turn"
    assert client.text() == "Done."


@pytest.mark.usefixtures("waiting")
async def test_waiting_run_is_cancelled_and_its_agent_takes_the_next_prompt(scripted: Scripted, portico: RunningGateway) -> None:
    turns = [{"steps": limited(time.time() + 3600)}, {"steps": [{"text": "Next."}]}]
    client, session = await scripted(*turns)
    answer = await client.begin("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]})
    await client.until(lambda _: len(limits_of(client)) == 2)
    held = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    waiting = held.live
    await client.notify("session/cancel", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"
    assert (await client.prompt(session))["stopReason"] == "end_turn"
    assert waiting is not None and held.live is waiting
    assert client.text() == "Next."


@pytest.mark.usefixtures("waiting")
async def test_waiting_run_fails_at_once_when_its_agent_ends(scripted: Scripted, portico: RunningGateway) -> None:
    client, session = await scripted(limited(time.time() + 3600))
    answer = await client.begin("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]})
    await client.until(lambda _: len(limits_of(client)) == 2)
    run = (await portico.gateway.sessions.get(ADMINISTRATOR, session)).run
    assert run is not None and isinstance(run.agent, FormattedAgent) and isinstance(run.agent.agent, CliAgent)
    os.kill(run.agent.agent.pid, signal.SIGKILL)
    with pytest.raises(RpcFailed, match="the agent's process has ended"):
        await asyncio.wait_for(answer, 30)


@pytest.mark.usefixtures("waiting")
async def test_waiting_run_takes_no_messages(scripted: Scripted, portico: RunningGateway) -> None:
    client, session = await scripted(limited(time.time() + 3600))
    answer = await client.begin("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]})
    await client.until(lambda _: len(limits_of(client)) == 2)
    found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    assert not await found.steer(UserMessage(content="more"))
    with pytest.raises(Conflict, match="waits for a usage limit"):
        await found.submit(Submission(message=UserMessage(content="more"), when_busy="steer"))
    await client.notify("session/cancel", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"


@pytest.mark.usefixtures("waiting")
async def test_limit_that_resets_too_late_fails_the_run(scripted: Scripted) -> None:
    late = time.time() + MAX_LIMIT_WAIT + 60
    client, session = await scripted(limited(late))
    with pytest.raises(RpcFailed, match="resets at"):
        await client.prompt(session)
