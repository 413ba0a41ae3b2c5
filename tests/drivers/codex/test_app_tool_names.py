"""Application-side tools with the names of codex's own tools: the CLI gets other names, and the client its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.codex import CodexDriver
from drivers.codex.app_server import CodexAppCodec
from drivers.codex.app_tools import OWN_NAMES, VALID, names_for_cli
from drivers.codex.content import seed_items
from drivers.codex.grants import Grants
from drivers.codex.handshake import SessionRequest
from drivers.contract.agent import Prompt, ToolReply
from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.events import AwaitedCall, Awaiting, ToolCall
from drivers.contract.messages import AssistantMessage, ToolUseBlock
from tests.drivers.codecs.test_protocol_errors import feed

OWN = sorted(OWN_NAMES | {tool.name for tool in CodexDriver().info().tools})
SCHEMA = {"type": "object"}


def running(*names: str) -> tuple[CodexAppCodec, dict[str, str]]:
    """A codec in a run with these application-side tools, and the names that the CLI has got, by the application's."""
    grants = Grants.of((ToolGrant("apply_patch", True),), "", ("/work",))
    tools = tuple(ToolSpec(name, f"The tool {name}.", SCHEMA) for name in names)
    codec = CodexAppCodec(SessionRequest(grants, {"cwd": "/work", "config": {}}, tools))
    feed(codec, {"id": 1, "result": {}}, {"id": 2, "result": {"config": {}}})
    sent = [json.loads(line) for line in bytes(codec.outbox).splitlines()]
    offered = next(message["params"]["dynamicTools"] for message in sent if message.get("method") == "thread/start")
    feed(codec, {"id": 3, "result": {"thread": {"id": "t"}}})
    codec.prompt(Prompt("go"))
    feed(codec, {"id": 4, "result": {"turn": {"id": "u"}}})
    feed(codec, {"method": "turn/started", "params": {"threadId": "t", "turn": {"id": "u"}}})
    return codec, {tool["description"].removeprefix("The tool ").removesuffix("."): tool["name"] for tool in offered}


def called(codec: CodexAppCodec, name: str, call_id: str = "c1") -> list[Any]:
    params = {"threadId": "t", "turnId": "u", "callId": call_id, "tool": name, "arguments": {"a": 1}}
    return [*feed(codec, {"id": 90, "method": "item/tool/call", "params": params}), *codec.debounced_events()]


@pytest.mark.parametrize("name", [*OWN, "mcp__x__y", "functions", "a b", "größe", "x" * 100])
def test_a_name_of_the_cli_itself_is_another_one_for_it_and_the_same_for_the_client(name: str) -> None:
    codec, offered = running(name)
    assert offered[name] not in OWN_NAMES and VALID.fullmatch(offered[name])
    started, awaiting = called(codec, offered[name])
    assert (started.name, started.input) == (name, {"a": 1})
    assert awaiting == Awaiting(calls=(AwaitedCall(id="c1", wants="result"),))
    item = {"type": "dynamicToolCall", "id": "c1", "tool": offered[name], "arguments": {"a": 1}, "success": True}
    codec.reply(ToolReply("c1", "done"))
    ended = feed(codec, {"method": "item/completed", "params": {"threadId": "t", "turnId": "u", "item": item}})
    assert [event.name for event in ended if isinstance(event, ToolCall)] == [name]


def test_names_that_are_free_stay() -> None:
    assert names_for_cli(["get_weather", "Read", "time-of-day"]) == {
        name: name for name in ("get_weather", "Read", "time-of-day")
    }


def test_each_tool_has_a_name_of_its_own() -> None:
    given = ["shell", "app_shell", "app_shell_2", "a b", "a.b", "a_b", "app_a_b", "x" * 65, "x" * 66]
    names = names_for_cli(given)
    assert sorted(names.values()) == sorted(given) and all(VALID.fullmatch(name) for name in names)


def test_the_order_of_the_tools_changes_no_name_that_is_free() -> None:
    assert names_for_cli(["shell", "app_shell"])["app_shell"] == names_for_cli(["app_shell", "shell"])["app_shell"] == "app_shell"


def test_a_patch_of_the_cli_beside_a_tool_of_that_name_is_its_own() -> None:
    codec, offered = running("apply_patch")
    change = {"path": "/work/a", "kind": {"type": "add"}, "diff": "x"}
    item = {"type": "fileChange", "id": "p1", "changes": [change], "status": "inProgress"}
    [started] = feed(codec, {"method": "item/started", "params": {"threadId": "t", "turnId": "u", "item": item}})
    assert (started.id, started.name, codec.debounced_events()) == ("p1", "apply_patch", [])
    started, awaiting = called(codec, offered["apply_patch"])
    assert [call.id for call in awaiting.calls] == ["c1"]


def test_a_history_has_the_names_of_the_cli() -> None:
    history = [AssistantMessage(content=(ToolUseBlock(tool_call_id="c", name="apply_patch", input={}),))]
    names = {name: for_cli for for_cli, name in names_for_cli(["apply_patch"]).items()}
    assert [item["name"] for item in seed_items(history, names)] == ["app_apply_patch"]
