"""An agent that words the title of an edit anew when it asks is asked about once; one that changes the edit, again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.acp.codec import AcpCodec
from drivers.acp.handshake import SessionRequest
from drivers.acp.permissions import Grants
from drivers.contract.agent import PermissionReply, Prompt
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import Awaiting, OutputEvent, ToolCall

Json = dict[str, Any]
OPTIONS = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}, {"optionId": "n", "name": "No", "kind": "reject_once"}]


def running() -> AcpCodec:
    codec = AcpCodec(SessionRequest("/work"), Grants((ToolGrant("edit"),)))
    feed(codec, {"id": 1, "result": {"protocolVersion": 1}}, {"id": 2, "result": {"sessionId": "s"}})
    codec.prompt(Prompt("go"))
    return codec


def feed(codec: AcpCodec, *messages: Json) -> list[OutputEvent]:
    return [event for message in messages for event in codec.receive(json.dumps(message).encode())]


def diff(path: str = "/work/a", new: str = "text\n", old: str | None = None) -> Json:
    return {"type": "diff", "path": path, "oldText": old, "newText": new}


def reported(*content: Json, title: str = "Editing files") -> Json:
    call = {"toolCallId": "c", "kind": "edit", "title": title, "status": "in_progress", "content": list(content)}
    return {"method": "session/update", "params": {"sessionId": "s", "update": {"sessionUpdate": "tool_call", **call}}}


def asked(title: str = "Edit files", request_id: int = 7, **call: Any) -> Json:
    params = {"sessionId": "s", "options": OPTIONS, "toolCall": {"toolCallId": "c", "kind": "edit", "title": title, **call}}
    return {"id": request_id, "method": "session/request_permission", "params": params}


@pytest.mark.parametrize(
    ("content", "request_"),
    [
        ([diff()], {"locations": [{"path": "/work/a"}], "status": "pending"}),
        ([diff()], {"content": [diff()]}),
        ([diff(), diff("/work/b", "new", "old")], {"locations": [{"path": "/work/b"}]}),
        ([diff(old="x")], {"title": "Edit a"}),
    ],
)
def test_an_edit_with_another_title_is_the_same_call(content: list[Json], request_: Json) -> None:
    codec = running()
    events = feed(codec, reported(*content), asked(**request_))
    assert [event.id for event in events if isinstance(event, ToolCall)] == ["c"]
    assert isinstance(events[-1], Awaiting) and [call.id for call in events[-1].calls] == ["c"]
    codec.outbox.clear()
    codec.reply(PermissionReply("c", "allow"))
    assert json.loads(bytes(codec.outbox))["result"]["outcome"]["optionId"] == "y"


@pytest.mark.parametrize(
    "request_",
    [
        {"content": [diff(new="another text\n")]},
        {"content": [diff("/work/b")]},
        {"content": [diff(), diff("/work/b")]},
        {"locations": [{"path": "/work/a"}, {"path": "/etc/passwd"}]},
        {"rawInput": {"file_path": "/work/b"}},
    ],
)
def test_another_edit_is_another_call(request_: Json) -> None:
    codec = running()
    events = feed(codec, reported(diff()), asked(**request_))
    assert [(event.id, event.status) for event in events if isinstance(event, ToolCall)] == [
        ("c", "started"),
        ("c", "failed"),
        ("c_2", "started"),
    ]


def test_a_request_after_a_refused_change_of_a_granted_call_is_cancelled() -> None:
    codec = running()
    given = {"rawInput": {"command": "ls"}, "kind": "execute"}
    codec._grants = Grants((ToolGrant("execute"),))
    start = reported()
    start["params"]["update"] |= {**given, "status": "pending", "title": "ls"}
    events = feed(codec, start, asked("ls", **given))
    [first] = [call.id for event in events if isinstance(event, Awaiting) for call in event.calls]
    codec.reply(PermissionReply(first, "allow"))
    changed = reported(title="rm -r x")
    changed["params"]["update"] |= {"sessionUpdate": "tool_call_update", "rawInput": {"command": "rm -r x"}, "kind": "execute"}
    events = feed(codec, changed)
    [second] = [call.id for event in events if isinstance(event, Awaiting) for call in event.calls]
    codec.reply(PermissionReply(second, "deny"))
    codec.outbox.clear()
    more = asked("next", 8, kind="execute", rawInput={"command": "next"})
    more["params"]["toolCall"]["toolCallId"] = "d"
    assert not any(isinstance(event, Awaiting) for event in feed(codec, more))
    [answer] = [json.loads(line) for line in bytes(codec.outbox).splitlines()]
    assert (answer["id"], answer["result"]) == (8, {"outcome": {"outcome": "cancelled"}})
