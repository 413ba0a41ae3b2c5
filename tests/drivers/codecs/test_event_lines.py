"""The codec of programs that speak event lines, both ways, without a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.codecs.output_event_lines import EventLineCodec, open_request
from drivers.contract.agent import PermissionReply, Prompt, ToolReply
from drivers.contract.agent_specs import SessionSeed, SessionSpec
from drivers.contract.client_services import ClientResponse
from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.events import AgentToken, Error, NativeSession, SessionEnd, Stderr, Stdout
from drivers.contract.messages import AssistantMessage, ImageBlock, TextBlock, ToolUseBlock, UserMessage

READY = b'{"kind":"native_session","native_id":"n"}'
END = b'{"kind":"session_end","exit_code":0}'
AWAITING = b'{"kind":"awaiting","calls":[{"id":"a","wants":"result"},{"id":"b","wants":"permission"}]}'


def written(codec: EventLineCodec) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in bytes(codec.outbox).splitlines()]
    codec.outbox.clear()
    return lines


def test_the_open_request_has_the_settings_of_the_session() -> None:
    spec = SessionSpec(
        "program",
        Path("/work"),
        {"KEY": "secret"},
        options={"scenario": "x.json"},
        tools=(ToolGrant("shell"), ToolGrant("lookup", trust=True)),
        app_tools=(ToolSpec("weather", "The weather.", {}),),
        additional_directories=(Path("/more"),),
        seed=SessionSeed(
            system="Be kind.",
            history=(
                UserMessage(content="hi"),
                AssistantMessage(content=(TextBlock(text="a"), ToolUseBlock(tool_call_id="t", name="n", input={}))),
            ),
        ),
    )
    codec = EventLineCodec(open_request(spec))
    assert written(codec) == [
        {
            "type": "open",
            "options": {"scenario": "x.json"},
            "system": "Be kind.",
            "tools": [{"name": "shell", "trust": False}, {"name": "lookup", "trust": True}],
            "app_tools": ["weather"],
            "additional_directories": ["/more"],
            "history": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "tool_use", "toolCallId": "t", "name": "n", "input": {}},
                    ],
                },
            ],
        }
    ]
    assert codec.phase == "starting"


def test_the_phases_of_a_session() -> None:
    codec = EventLineCodec()
    assert codec.receive(READY) == [NativeSession(native_id="n")]
    assert (codec.phase, codec.native_id) == ("ready", "n")
    codec.prompt(Prompt((TextBlock(text="a"), ImageBlock(url="https://x"))))
    assert codec.phase == "running"
    content = [{"type": "text", "text": "a"}, {"type": "image", "url": "https://x"}]
    assert written(codec) == [{"type": "prompt", "content": content}]
    codec.receive(AWAITING)
    assert codec.phase == "waiting"
    codec.reply(ToolReply("a", "18 C"))
    assert codec.phase == "waiting"
    codec.reply(PermissionReply("b", "allow"))
    assert codec.phase == "running"
    assert written(codec) == [
        {"type": "reply", "id": "a", "content": "18 C"},
        {"type": "reply", "id": "b", "granted": True, "reason": None},
    ]
    codec.reply(ToolReply("a", "too late"))
    assert written(codec) == []
    assert codec.interrupt() is True
    assert written(codec) == [{"type": "interrupt"}]
    assert codec.receive(END) == [SessionEnd(exit_code=0)]
    assert codec.phase == "ready"
    assert codec.exited(0, []) == []


def test_a_process_that_exits_while_the_run_waits_for_the_client() -> None:
    codec = EventLineCodec()
    codec.receive(READY)
    codec.prompt(Prompt("x"))
    codec.receive(AWAITING)
    assert [type(event) for event in codec.exited(7, ["oh"])] == [Stderr, Error, SessionEnd]


def test_a_task_ends_when_its_process_does() -> None:
    codec = EventLineCodec(once=True)
    assert codec.receive(b'{"kind":"agent_token","text":"a"}') == [AgentToken(text="a")]
    assert codec.receive(END) == []
    assert codec.interrupt() is False
    assert codec.exited(0, ["not shown"]) == [SessionEnd(exit_code=0)]


@given(st.binary())
def test_any_other_line_is_stdout(line: bytes) -> None:
    line = line.replace(b"\n", b"")
    shown = EventLineCodec(once=True).receive(line)
    assert shown == ([Stdout(line=line.decode("utf-8", "replace").rstrip("\r"))] if line.strip() else [])


def test_a_program_sends_a_client_request() -> None:
    codec = EventLineCodec()
    asked = {"kind": "client_request", "id": 7, "method": "fs/read_text_file", "params": {"path": "/a"}}
    assert codec.receive(json.dumps(asked).encode()) == []
    [request] = codec.client_requests
    assert (request.id, request.method, request.params, request.client_only) == (7, asked["method"], asked["params"], True)
    codec.client_responded(request, ClientResponse({"content": "A"}))
    codec.client_responded(request, ClientResponse(error="no such file", code=-32002))
    assert [json.loads(line) for line in codec.outbox.splitlines()] == [
        {"type": "answer", "id": 7, "result": {"content": "A"}},
        {"type": "answer", "id": 7, "error": "no such file", "code": -32002},
    ]


@pytest.mark.parametrize("wrong", [{"id": None}, {"method": 1}, {"params": []}])
def test_a_malformed_request_is_stdout(wrong: dict[str, Any]) -> None:
    codec = EventLineCodec()
    line = json.dumps({"kind": "client_request", "id": 7, "method": "fs/read_text_file", "params": {}, **wrong})
    assert codec.receive(line.encode()) == [Stdout(line=line)]
    assert not codec.client_requests
