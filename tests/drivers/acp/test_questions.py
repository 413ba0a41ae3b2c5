"""Questions of an ACP agent to its user, by forms: the client answers a tool call, and the agent gets the form's content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.acp.codec import AcpCodec
from drivers.acp.handshake import SessionRequest
from drivers.acp.permissions import Grants
from drivers.acp.questions import QUESTION_TOOL, fields_of, questions_of, response_of
from drivers.contract.agent import PermissionReply, Prompt, ToolReply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import AwaitedCall, Awaiting, OutputEvent, SessionEnd, ToolCall, ToolResult

Json = dict[str, Any]

COLOURS = [{"const": "red", "title": "Red", "description": "warm"}, {"const": "blue", "title": "Blue"}]
OF_CLAUDE: Json = {
    "mode": "form",
    "sessionId": "s",
    "toolCallId": "toolu_1",
    "message": "Which colours?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "question_0": {"type": "string", "title": "Wall", "description": "Which wall?", "oneOf": COLOURS},
            "question_0_custom": {"type": "string", "title": "Other"},
            "question_1": {"type": "array", "title": "Doors", "description": "Which doors?", "items": {"anyOf": COLOURS}},
            "question_1_custom": {"type": "string", "title": "Other"},
        },
    },
}
OF_A_SERVER: Json = {
    "mode": "form",
    "sessionId": "s",
    "message": "Your order",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Name"},
            "count": {"type": "integer", "description": "How many?"},
            "price": {"type": "number"},
            "gift": {"type": "boolean", "title": "As a gift?"},
            "size": {"type": "string", "enum": ["S", "M"], "title": "Size"},
        },
        "required": ["name"],
    },
}


class Agent:
    """An agent in a run of a session that lists the question tool, unless it is not `listed`."""

    def __init__(self, *, listed: bool = True) -> None:
        grants = Grants((ToolGrant(QUESTION_TOOL),) if listed else ())
        self.codec = AcpCodec(SessionRequest("/work", questions=True), grants)
        self.opened = self.written()
        self.send({"id": 1, "result": {"protocolVersion": 1}}, {"id": 2, "result": {"sessionId": "s"}})
        self.codec.prompt(Prompt("go"))
        self.codec.pending.clear()
        self.written()

    def send(self, *messages: Json) -> list[OutputEvent]:
        return [event for message in messages for event in self.codec.receive(json.dumps(message).encode())]

    def ask(self, params: Json, request_id: int = 9) -> list[OutputEvent]:
        return self.send({"id": request_id, "method": "elicitation/create", "params": params})

    def written(self) -> list[Json]:
        lines = [json.loads(line) for line in bytes(self.codec.outbox).splitlines()]
        self.codec.outbox.clear()
        return lines

    def result(self) -> Any:
        [response] = self.written()
        return response["result"]


def test_forms_and_notices_are_declared() -> None:
    [initialize] = Agent().opened
    capabilities = initialize["params"]["clientCapabilities"]
    assert (capabilities["elicitation"], capabilities["session"]["notices"]) == ({"form": {}}, {})


@pytest.mark.parametrize(
    ("params", "answers", "content"),
    [
        (
            OF_CLAUDE,
            {"Which wall?": "Blue", "Which doors?": ["Red", "green"]},
            {"question_0": "blue", "question_1": ["red"], "question_1_custom": "green"},
        ),
        (OF_CLAUDE, {"Which wall?": "lilac"}, {"question_0_custom": "lilac"}),
        (
            OF_A_SERVER,
            {"Name": "Ada", "How many?": "3", "price": "1.5", "As a gift?": "No", "Size": "M"},
            {"name": "Ada", "count": 3, "price": 1.5, "gift": False, "size": "M"},
        ),
        (OF_A_SERVER, {"Name": "Ada", "How many?": "three", "Size": "XL"}, {"name": "Ada", "count": "three"}),
    ],
)
def test_a_form_is_answered(params: Json, answers: Json, content: Json) -> None:
    agent = Agent()
    started, awaiting = agent.ask(params)
    assert isinstance(started, ToolCall) and (started.name, started.status) == (QUESTION_TOOL, "started")
    assert started.input == {"questions": questions_of(fields_of(params))}
    assert awaiting == Awaiting(calls=(AwaitedCall(id=started.id, wants="answer"),))
    agent.codec.reply(ToolReply(started.id, json.dumps({"answers": answers})))
    assert agent.result() == {"action": "accept", "content": content}
    assert agent.codec.pending == [ToolCall(id=started.id, name=QUESTION_TOOL, status="completed")]
    assert agent.send({"id": 3, "result": {"stopReason": "end_turn"}}) == [SessionEnd(exit_code=0)]


def test_the_questions_are_those_of_other_agents() -> None:
    wall, doors = questions_of(fields_of(OF_CLAUDE))
    options = [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": ""}]
    assert wall == {"question": "Which wall?", "header": "Wall", "options": options, "multiSelect": False}
    assert (doors["question"], doors["multiSelect"]) == ("Which doors?", True)
    assert [one["options"] for one in questions_of(fields_of(OF_A_SERVER))][3:] == [
        [{"label": "Yes", "description": ""}, {"label": "No", "description": ""}],
        [{"label": "S", "description": ""}, {"label": "M", "description": ""}],
    ]


def test_a_text_answers_the_only_question() -> None:
    params = {"message": "Name?", "requestedSchema": {"properties": {"name": {"type": "string"}}}}
    fields = fields_of(params)
    assert [one.text for one in fields] == ["Name?"]
    assert response_of(fields, "Ada") == {"action": "accept", "content": {"name": "Ada"}}
    assert response_of(fields, json.dumps({"answers": {}})) == {"action": "decline"}


def test_a_question_that_is_not_answered_is_declined() -> None:
    agent = Agent()
    started = agent.ask(OF_CLAUDE)[0]
    assert isinstance(started, ToolCall)
    agent.codec.reply(PermissionReply(started.id, "deny", "not now"))
    assert agent.result() == {"action": "decline"}
    result, end = agent.codec.pending
    assert isinstance(result, ToolResult) and "not now" in str(result.output) and isinstance(end, ToolCall)
    assert end.status == "failed"


@pytest.mark.parametrize("listed", [True, False])
def test_a_question_that_no_client_sees_is_answered_at_once(listed: bool) -> None:
    agent = Agent(listed=listed)
    if listed:
        agent.send({"id": 3, "result": {"stopReason": "end_turn"}})
    assert agent.ask(OF_CLAUDE) == []
    assert agent.result() == {"action": "cancel" if listed else "decline"}


@pytest.mark.parametrize("end", ["interrupt", "end of the turn"])
def test_a_question_is_cancelled_with_its_run(end: str) -> None:
    agent = Agent()
    started = agent.ask(OF_CLAUDE)[0]
    assert isinstance(started, ToolCall)
    if end == "interrupt":
        agent.codec.interrupt()
        events = agent.codec.pending
    else:
        events = agent.send({"id": 3, "result": {"stopReason": "end_turn"}})
    answered = agent.written()
    assert {"jsonrpc": "2.0", "id": 9, "result": {"action": "cancel"}} in answered
    assert [event.status for event in events if isinstance(event, ToolCall)] == ["failed"]


@pytest.mark.parametrize("params", [{"mode": "url", "url": "https://example.org"}, {"mode": "form"}, {"requestedSchema": {}}])
def test_a_request_that_is_no_form_gets_an_error(params: Json) -> None:
    agent = Agent()
    assert agent.ask({"sessionId": "s", "message": "x", **params})
    [response] = agent.written()
    assert response["error"]["code"] == -32602
