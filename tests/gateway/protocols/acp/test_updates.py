"""Events as session updates, and content of prompts and messages, without a gateway."""

from __future__ import annotations

from typing import Any

import pytest
from acp.schema import (
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

from drivers.acp.driver import AcpDriver
from drivers.claude.driver import ClaudeDriver
from drivers.codecs.json_rpc import as_json
from drivers.codex.driver import CodexDriver
from drivers.contract.driver_info import DriverInfo
from drivers.contract.events import AgentToken, MessageEnd, OutputEvent, PlanEntry, Thinking, ToolCall, ToolResult
from drivers.contract.events import Plan as PlanEvent
from drivers.contract.messages import (
    AssistantMessage,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
)
from drivers.gemini.driver import GeminiDriver
from drivers.script.driver import ScriptDriver
from gateway.errors import BadRequest
from gateway.protocols.acp.content import content_blocks, user_message
from gateway.protocols.acp.tool_calls import Plan, diffs_of, locations_of, title_of
from gateway.protocols.acp.updates import Updates
from tests.gateway.protocols.acp.client import check

INFO = DriverInfo("t", "d", image_data=True)
CLAUDE, CODEX, GEMINI, SCRIPT, ACP = (
    driver().info() for driver in (ClaudeDriver, CodexDriver, GeminiDriver, ScriptDriver, AcpDriver)
)


def updates_of(*events: OutputEvent, asks: bool = False) -> list[dict[str, Any]]:
    updates = Updates("m", "/work", CLAUDE, lambda name: asks)
    found = [as_json(update) for event in events for update in updates.of_event(event)]
    for update in found:
        check("SessionUpdate", update)
    return found


@pytest.mark.parametrize(
    ("info", "name", "kind"),
    [
        (CLAUDE, "Bash", "execute"),
        (CLAUDE, "Read", "read"),
        (CLAUDE, "MultiEdit", "edit"),
        (CODEX, "apply_patch", "edit"),
        (CODEX, "update_plan", "think"),
        (GEMINI, "google_web_search", "fetch"),
        (SCRIPT, "lookup", "search"),
        (ACP, "delete", "delete"),
        (INFO, "delete", "delete"),
        (INFO, "x", "other"),
        (CODEX, "Bash", "other"),
    ],
)
def test_tool_kind_of_each_driver(info: DriverInfo, name: str, kind: str) -> None:
    assert info.tool_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "value", "detail", "title"),
    [
        ("Bash", {"command": "ls -l\n| head"}, None, "ls -l | head"),
        ("Bash", {"command": "ls"}, "List the files", "List the files"),
        ("Read", {"file_path": "/a"}, None, "Read /a"),
        ("get_weather", {"city": "Rome"}, None, "get_weather"),
        ("edit", {"title": "Edit a.py"}, "Edit a.py", "Edit a.py"),
        ("Bash", {"command": "x" * 300}, None, "x" * 199 + "…"),
        ("odd", ["a list"], None, "odd"),
    ],
)
def test_title_of_a_tool_call(name: str, value: Any, detail: str | None, title: str) -> None:
    assert title_of(CLAUDE, name, value, detail) == title


def test_locations_and_diffs_of_tool_inputs() -> None:
    def locations(value: Any) -> list[tuple[str, int | None]]:
        return [(location.path, location.line) for location in locations_of(CLAUDE, value, "/work")]

    def diffs(value: Any) -> list[tuple[str, str | None, str]]:
        return [(diff.path, diff.old_text, diff.new_text) for diff in diffs_of(CLAUDE, value, "/work")]

    assert locations({"file_path": "a.py", "offset": 12}) == [("/work/a.py", 12)]
    assert locations({"changes": [{"path": "/x/a"}, {"path": "b"}]}) == [("/x/a", None), ("/work/b", None)]
    assert locations("text") == locations({"file_path": 7, "offset": True}) == []
    assert diffs({"file_path": "/a", "old_string": "one", "new_string": "two"}) == [("/a", "one", "two")]
    assert diffs({"file_path": "/a", "content": "all"}) == [("/a", None, "all")]
    edits = [{"old_string": "1", "new_string": "2"}, {"old_string": "3", "new_string": "4"}]
    assert diffs({"file_path": "/a", "edits": edits}) == [("/a", "1", "2"), ("/a", "3", "4")]
    patch = {"path": "b", "kind": "update", "diff": "@@ -1,2 +1,2 @@\n same\n-old\n+new\n"}
    assert diffs({"changes": [patch, {"path": "c", "kind": "add", "diff": "fresh\n"}]}) == [
        ("/work/b", "same\nold", "same\nnew"), ("/work/c", None, "fresh\n"),
    ]  # fmt: skip
    assert diffs({"file_path": "/a", "new_string": 7}) == diffs(None) == []


def test_plan_event_becomes_a_plan_update() -> None:
    entries = (PlanEntry(content="a", priority="high", status="completed"), PlanEntry(content="b"))
    (update,) = updates_of(PlanEvent(entries=entries))
    assert update == {"sessionUpdate": "plan", "entries": [
        {"content": "a", "priority": "high", "status": "completed"}, {"content": "b", "priority": "medium", "status": "pending"},
    ]}  # fmt: skip


def test_plan_from_tool_calls() -> None:
    plan = Plan(CLAUDE.plan_tools)
    todos = [{"content": "a", "status": "in_progress"}, {"content": "b", "status": "pending"}]
    found = plan.called("TodoWrite", {"todos": todos}) or []
    assert [(step.content, step.status) for step in found] == [("a", "in_progress"), ("b", "pending")]
    found = Plan(CODEX.plan_tools).called("update_plan", {"items": [{"text": "c", "completed": True}]}) or []
    assert [(step.content, step.status) for step in found] == [("c", "completed")]
    steps = Plan(CLAUDE.plan_tools)
    steps.called("TaskCreate", {"subject": "one", "description": "long"})
    steps.called("TaskCreate", {"subject": "two"})
    found = steps.called("TaskUpdate", {"taskId": "1", "status": "completed"}) or []
    assert [(step.content, step.status) for step in found] == [("one", "completed"), ("two", "pending")]
    assert len(steps.called("TaskUpdate", {"taskId": "2", "status": "deleted"}) or []) == 1
    assert steps.called("TaskUpdate", {"taskId": "9"}) is None
    assert steps.called("Bash", {"command": "ls"}) is None


def test_each_message_has_its_own_id() -> None:
    found = updates_of(
        Thinking(text="a"), AgentToken(text="b"), AgentToken(text="c"), MessageEnd(), AgentToken(text="d"),
        ToolCall(id="1", name="Bash", status="started"), AgentToken(text="e"),
    )  # fmt: skip
    ids = [update["messageId"] for update in found if "messageId" in update]
    assert ids == ["m-1", "m-2", "m-2", "m-3", "m-4"]


def test_diff_of_a_call_is_not_replaced_by_its_result() -> None:
    value = {"file_path": "/work/a", "old_string": "x", "new_string": "y"}
    started, ended = updates_of(
        ToolCall(id="1", name="Edit", status="started", input=value, parent_id="0"),
        ToolResult(tool_call_id="1", output="ok"),
        ToolCall(id="1", name="Edit", status="completed"),
    )
    assert started["_meta"] == {"parentToolCallId": "0"}
    assert started["status"] == "in_progress"
    assert started["content"][0]["type"] == "diff"
    # The diff stays the content of the call.
    assert "content" not in ended
    assert (ended["status"], ended["rawOutput"]) == ("completed", {"output": "ok"})


@pytest.mark.parametrize(
    ("output", "text", "raw"),
    [
        ("ok", "ok", None),
        ("", "", None),
        ([{"type": "text", "text": "ok"}], "ok", None),
        ({"ok": True}, '{"ok":true}', {"ok": True}),
        (["ok"], '["ok"]', {"output": ["ok"]}),
        (3, "3", {"output": 3}),
    ],
)
def test_raw_output_is_sent_only_for_output_that_is_not_text(output: Any, text: str, raw: Any) -> None:
    _, ended = updates_of(
        ToolCall(id="1", name="x", status="started", input={}), ToolResult(tool_call_id="1", output=output)
    )  # fmt: skip
    assert "".join(part["content"]["text"] for part in ended["content"]) == text
    assert ended.get("rawOutput") == raw


def test_failed_call_has_its_output_as_content() -> None:
    output = [{"type": "text", "text": "no"}, {"type": "image", "url": "data:image/png;base64,aGk="}]
    started, ended = updates_of(
        ToolCall(id="1", name="Edit", status="started", input={"file_path": "a", "content": "b"}),
        ToolResult(tool_call_id="1", output=output, is_error=True),
        ToolCall(id="1", name="Edit", status="failed"),
        asks=True,
    )
    assert (started["status"], ended["status"]) == ("pending", "failed")
    assert [item["content"]["type"] for item in ended["content"]] == ["text", "image"]


def test_call_without_a_result_is_completed() -> None:
    found = updates_of(ToolCall(id="1", name="app", status="started"), ToolCall(id="1", name="app", status="completed"))
    assert [update["status"] for update in found] == ["in_progress", "completed"]


def test_history_becomes_session_updates() -> None:
    updates = Updates("m", "/work", CLAUDE, lambda name: False)
    picture = ImageBlock(url="data:image/png;base64,aGk=")
    history = [
        UserMessage(content=(TextBlock(text="look"), picture, ImageBlock(url="https://x/y.png"))),
        AssistantMessage(
            content=(
                ThinkingBlock(thinking="hm"),
                TextBlock(text="so"),
                ToolUseBlock(tool_call_id="1", name="Bash", input={"command": "ls"}),
            )
        ),
        ToolMessage(tool_call_id="1", content="Tool call denied: no"),
    ]
    found = [as_json(update) for message in history for update in updates.of_message(message)]
    for update in found:
        check("SessionUpdate", update)
    assert [(update["sessionUpdate"], update.get("status")) for update in found] == [
        ("user_message_chunk", None), ("user_message_chunk", None), ("user_message_chunk", None),
        ("agent_thought_chunk", None), ("agent_message_chunk", None),
        ("tool_call", "in_progress"), ("tool_call_update", "failed"),
    ]  # fmt: skip
    assert found[2]["content"] == {"type": "resource_link", "name": "image", "uri": "https://x/y.png"}


def test_prompt_content_becomes_a_user_message() -> None:
    picture = ImageContentBlock(type="image", mime_type="image/png", data="aGk=")
    assert user_message([TextContentBlock(type="text", text="hi")], INFO).content == "hi"
    assert user_message([picture], INFO).content == (ImageBlock(url="data:image/png;base64,aGk="),)
    link = ResourceContentBlock(type="resource_link", name="b.py", uri="file:///a/b.py")
    assert user_message([link], INFO).content == "[@b.py](file:///a/b.py)"
    text = TextResourceContents(uri="file:///a/c.py", text="x = 1")
    whole = user_message([EmbeddedResourceContentBlock(type="resource", resource=text)], INFO).content
    assert whole == '[@c.py](file:///a/c.py)\n<context ref="file:///a/c.py">\nx = 1\n</context>'
    blob = BlobResourceContents(uri="file:///p.png", blob="aGk=", mime_type="image/png")
    assert user_message([EmbeddedResourceContentBlock(type="resource", resource=blob)], INFO).content == (
        ImageBlock(url="data:image/png;base64,aGk="),
    )
    with pytest.raises(BadRequest, match="does not support images"):
        user_message([picture], DriverInfo("t", "d"))
    with pytest.raises(BadRequest, match="is empty"):
        user_message([TextContentBlock(type="text", text=" ")], INFO)
    assert as_json(content_blocks("x")[0]) == {"type": "text", "text": "x"}
