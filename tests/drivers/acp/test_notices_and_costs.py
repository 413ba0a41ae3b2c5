"""Notices of an ACP agent, and the costs of a session whose count goes on over restarts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.acp.codec import AcpCodec
from drivers.acp.handshake import SessionRequest
from drivers.acp.permissions import Grants
from drivers.contract.agent import Prompt
from drivers.contract.events import AgentToken, Notice, OutputEvent, Usage


def opened(resume: str | None = None, costs: dict[str, float] | None = None) -> AcpCodec:
    codec = AcpCodec(SessionRequest("/work", resume), Grants(), costs=costs)
    feed(codec, {"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": {"resume": {}}}}})
    feed(codec, {"id": 2, "result": {"sessionId": "s"}})
    return codec


def feed(codec: AcpCodec, *messages: dict[str, Any]) -> list[OutputEvent]:
    return [event for message in messages for event in codec.receive(json.dumps(message).encode())]


def update(**members: Any) -> dict[str, Any]:
    return {"method": "session/update", "params": {"sessionId": "s", "update": members}}


@pytest.mark.parametrize(
    ("members", "notice"),
    [
        (
            {"severity": "warning", "title": "A warning", "description": "the limit is near"},
            Notice(severity="warning", text="A warning\nthe limit is near"),
        ),
        ({"severity": "error", "title": "Failed"}, Notice(severity="error", text="Failed")),
        ({"severity": "loud", "description": "x"}, Notice(text="x")),
    ],
)
def test_a_notice_is_no_part_of_the_answer(members: dict[str, Any], notice: Notice) -> None:
    codec = opened()
    codec.prompt(Prompt("go"))
    answer = update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "42"})
    assert feed(codec, answer, update(sessionUpdate="notice", **members)) == [AgentToken(text="42"), notice]


def cost_of_run(codec: AcpCodec, amount: float, request_id: int = 3) -> float | None:
    codec.prompt(Prompt("go"))
    used = update(sessionUpdate="usage_update", used=1, size=10, cost={"amount": amount, "currency": "USD"})
    events = feed(codec, used, {"id": request_id, "result": {"stopReason": "end_turn"}})
    [usage] = [event for event in events if isinstance(event, Usage)]
    return usage.cost_usd


def test_a_count_that_goes_on_over_a_restart_has_the_cost_of_each_run() -> None:
    costs: dict[str, float] = {}
    codec = opened(costs=costs)
    assert [cost_of_run(codec, 0.25), cost_of_run(codec, 0.75, 4)] == [0.25, 0.5]
    resumed = opened("s", costs)
    assert [cost_of_run(resumed, 1.0), cost_of_run(resumed, 1.5, 4)] == [0.25, 0.5]


def test_a_count_that_begins_anew_has_the_cost_of_each_run() -> None:
    costs: dict[str, float] = {}
    cost_of_run(opened(costs=costs), 0.75)
    assert cost_of_run(opened("s", costs), 0.5) == 0.5


def test_the_first_count_of_a_session_that_is_not_known_is_of_no_run() -> None:
    resumed = opened("s", {})
    assert [cost_of_run(resumed, 1.0), cost_of_run(resumed, 1.5, 4)] == [0.0, 0.5]
