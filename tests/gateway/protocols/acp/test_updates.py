"""Events as session updates, and content of prompts and messages, without a gateway."""

from __future__ import annotations

import time
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
from drivers.contract.driver_info import Capabilities, DriverInfo
from drivers.contract.events import (
    AgentToken,
    FileChange,
    MessageEnd,
    OutputEvent,
    PlanEntry,
    SessionEnd,
    Thinking,
    ToolCall,
    ToolInput,
    ToolOutput,
    ToolResult,
)
from drivers.contract.events import Plan as PlanEvent
from drivers.contract.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
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
from gateway.protocols.acp.tool_calls import Plan, comments_of, diffs_of, locations_of, title_of
from gateway.protocols.acp.updates import Updates
from tests.support.acp_client import check

INFO = DriverInfo("t", "d", capabilities=Capabilities(image_data=True))
CLAUDE, CODEX, GEMINI, SCRIPT, ACP = (
    driver().info() for driver in (ClaudeDriver, CodexDriver, GeminiDriver, ScriptDriver, AcpDriver)
)


def updates_of(*events: OutputEvent, asks: bool = False) -> list[dict[str, Any]]:
    updates = Updates("m", "/work", CLAUDE, lambda name: asks)
    found = [as_json(update) for event in events for update in updates.of_event(event)]
    for update in found:
        check("SessionUpdate", update)
    return found


def test_tool_kind_of_each_driver() -> None:
    for info, name, kind in (
        (CLAUDE, "Bash", "execute"),
        (CLAUDE, "Read", "read"),
        (CLAUDE, "Task", "think"),
        (CODEX, "apply_patch", "edit"),
        (CODEX, "update_plan", "think"),
        (GEMINI, "google_web_search", "fetch"),
        (SCRIPT, "lookup", "search"),
        (ACP, "delete", "delete"),
        (INFO, "delete", "delete"),
        (INFO, "x", "other"),
        (CODEX, "Bash", "other"),
    ):
        assert info.tool_kind(name) == kind, (info, name)


TITLES: list[Any] = [
    (CLAUDE, "Bash", {"command": "ls -l\n| head"}, None, "ls -l …"),
    (CLAUDE, "Bash", {"command": "ls", "description": "List the files"}, "List the files", "ls"),
    (CLAUDE, "Bash", {"command": " \n"}, None, "Bash"),
    (CLAUDE, "Bash", {"command": "x" * 300}, None, "x" * 199 + "…"),
    (CLAUDE, "Bash", {"command": "make", "run_in_background": True}, None, "make (in the background)"),
    (CLAUDE, "Bash", {"command": "x" * 300, "run_in_background": True}, None, "x" * 179 + "…" + " (in the background)"),
    (CLAUDE, "TaskOutput", {"task_id": "b1"}, None, "TaskOutput b1"),
    (CLAUDE, "Grep", {"pattern": "retry", "path": "/work/src"}, None, "Grep retry in src"),
    (CLAUDE, "Glob", {"pattern": "**/*.py"}, None, "Glob **/*.py"),
    (CLAUDE, "Glob", {"pattern": "*.py", "path": "/work"}, None, "Glob *.py"),
    (CLAUDE, "Read", {"file_path": "/a"}, None, "Read /a"),
    (CLAUDE, "Read", {"file_path": "/work/src/a.py"}, "/work/src/a.py", "Read src/a.py"),
    (CLAUDE, "Read", {"file_path": "/work/src/../../a.py"}, None, "Read /a.py"),
    (CLAUDE, "Read", {"file_path": "../a.py"}, None, "Read /a.py"),
    (CLAUDE, "Read", {"file_path": "/workshop/a.py"}, None, "Read /workshop/a.py"),
    (CLAUDE, "Read", {"file_path": "/work/a.py", "offset": 10, "limit": 20}, None, "Read a.py (10-29)"),
    (CLAUDE, "Read", {"file_path": "/work/a.py", "offset": 10}, None, "Read a.py (from line 10)"),
    (CLAUDE, "Write", {"file_path": "/work/a.py", "content": "x"}, None, "Write a.py"),
    (CLAUDE, "TaskCreate", {"subject": "one", "description": "long"}, "one", "Create task one"),
    (CLAUDE, "TaskUpdate", {"taskId": "3", "status": "completed"}, None, "Update task 3"),
    (CLAUDE, "TaskList", {}, None, "List tasks"),
    (CLAUDE, "WebFetch", {"url": "https://a.example", "prompt": "What?"}, None, "Fetch https://a.example"),
    (CLAUDE, "WebSearch", {"query": "towers"}, None, "Search the web towers"),
    (CLAUDE, "Skill", {"skill": "greet"}, None, "Load skill greet"),
    (CLAUDE, "NotebookEdit", {"notebook_path": "/work/a.ipynb", "new_source": "1"}, None, "Edit notebook a.ipynb"),
    (CLAUDE, "EnterPlanMode", {}, None, "Enter plan mode"),
    (CLAUDE, "ExitPlanMode", {"plan": "# Plan"}, None, "Approve plan"),
    (CLAUDE, "AskUserQuestion", {"questions": [{"question": "Which?"}]}, None, "Which?"),
    (CLAUDE, "AskUserQuestion", {"questions": [{"question": "A?"}, {"question": "B?"}]}, None, "A? (and 1 more)"),
    (CLAUDE, "AskUserQuestion", {"questions": [{}]}, None, "Question"),
    (CODEX, "request_user_input", {"questions": [{"question": "Which?"}]}, None, "Which?"),
    (CLAUDE, "Agent", {"description": "find it", "prompt": "Find"}, "find it", "Agent find it"),
    (CLAUDE, "get_weather", {"city": "Rome"}, None, "get_weather"),
    (CLAUDE, "edit", {"title": "Edit a.py"}, "Edit a.py", "Edit a.py"),
    (CLAUDE, "odd", ["a list"], None, "odd"),
    (CODEX, "shell", {"command": "git status", "cwd": "/work"}, "git status", "git status"),
    (CODEX, "apply_patch", {"changes": [{"path": "/work/a"}, {"path": "/b"}]}, "/work/a, /b", "Edit files a, /b"),
    (CODEX, "view_image", {"path": "/work/a.png"}, "/work/a.png", "View image a.png"),
    (GEMINI, "run_shell_command", {"command": "ls"}, "ls", "ls"),
    (GEMINI, "write_file", {"file_path": "/work/a.py", "content": "x"}, "Writing to a.py", "write_file a.py"),
    (GEMINI, "read_file", {"title": "a.py", "paths": ["/work/a.py"]}, "a.py", "read_file a.py"),
    (ACP, "execute", {"command": "ls /work"}, "Run `ls`", "Run `ls`"),
    (ACP, "execute", {"command": "ls /work"}, None, "ls /work"),
]


def test_title_of_a_tool_call() -> None:
    for info, name, value, detail, title in TITLES:
        assert title_of(info, name, value, detail, "/work") == title, (info, name)


COMMENTS: list[Any] = [
    (CLAUDE, "Bash", {"command": "ls", "description": "List the files"}, ["List the files"]),
    (CLAUDE, "Bash", {"command": "a\nb", "description": "Do it"}, ["```sh\na\nb\n```", "Do it"]),
    (CLAUDE, "Bash", {"command": "a\n```\nb"}, ["````sh\na\n```\nb\n````"]),
    (CLAUDE, "Bash", {"command": "x" * 201}, ["```sh\n" + "x" * 201 + "\n```"]),
    (CLAUDE, "Bash", {"command": "x" * 100_001}, ["```sh\n" + "x" * 100_000 + "\n… (1 more characters)\n```"]),
    (CLAUDE, "Read", {"file_path": "/a", "description": "x"}, []),
    (CLAUDE, "create_issue", {"description": "x"}, []),
    (CODEX, "shell", {"command": "ls", "reason": "needs the network"}, ["needs the network"]),
    (CODEX, "apply_patch", {"changes": [], "reason": "no sandbox"}, ["no sandbox"]),
    (ACP, "execute", {"command": "a\nb"}, ["```sh\na\nb\n```"]),
]


def test_comments_of_a_tool_call() -> None:
    for info, name, value, texts in COMMENTS:
        assert comments_of(info, name, value) == texts, (info, name)


def test_approval_shows_the_whole_command_and_its_description() -> None:
    updates = Updates("m", "/work", CLAUDE, lambda name: True)
    value = {"command": "cd src\nrm -r old", "description": "Remove the old files"}
    (started,) = updates.of_event(ToolCall(id="1", name="Bash", status="started", input=value))
    asked = as_json(updates.permission_details("1"))
    for shown in (as_json(started), asked):
        assert (shown["title"], shown["rawInput"]) == ("cd src …", value)
        texts = [part["content"]["text"] for part in shown["content"]]
        assert texts == ["```sh\ncd src\nrm -r old\n```", "Remove the old files"]
    # Approval shows the input of a tool that is not known.
    for name, value, text in (
        ("mcp__github__close", {"issue": 7}, '```json\n{\n  "issue": 7\n}\n```'),
        ("mcp__github__list", {}, None),
        ("other", {"title": "Close it"}, None),
        ("Read", {"file_path": "/a"}, None),
    ):
        updates = Updates("m", "/work", CLAUDE, lambda name: True)
        (started,) = updates.of_event(ToolCall(id="1", name=name, status="started", input=value))
        asked = as_json(updates.permission_details("1"))
        assert "content" not in as_json(started), (name, value)
        assert [part["content"]["text"] for part in asked.get("content", [])] == ([] if text is None else [text]), (name, value)


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
    assert [(at.path, at.line) for at in locations_of(CLAUDE, {"path": "/x", "offset": 3}, "/work", "search")] == [("/x", None)]
    # Each hunk of a patch is a diff with its line.
    diff = "@@ -1,2 +1,3 @@\n a\n+b\n--- c\n+++ d\n@@ -9 +10,0 @@ def f():\n-gone\n\\ No newline at end of file\n@@\n x\n"
    value = {"changes": [{"path": "a.py", "kind": "update", "diff": diff}, {"path": "b.py", "kind": "add", "diff": "n\n"}]}
    assert [(found.path, found.old_text, found.new_text) for found in diffs_of(CODEX, value, "/work")] == [
        ("/work/a.py", "a\n-- c", "a\nb\n++ d"), ("/work/a.py", "gone", ""),
        ("/work/a.py", "x", "x"), ("/work/b.py", None, "n\n"),
    ]  # fmt: skip
    found = [(location.path, location.line) for location in locations_of(CODEX, value, "/work", "edit")]
    assert found == [("/work/a.py", 1), ("/work/a.py", 10), ("/work/b.py", None)]
    # Patch of a written file is shown instead of its text.
    value = {"file_path": "/work/a", "content": "one\nTWO\n", "diff": "--- a\n+++ a\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO"}
    [diff] = diffs_of(GEMINI, value, "/work")
    assert (diff.old_text, diff.new_text) == ("one\ntwo", "one\nTWO")
    # Reported hunks replace the texts of an edit.
    value = {"file_path": "/work/a", "old_string": "x", "new_string": "y"}
    hunks = (FileChange(path="/work/a", old_text="1\nx", new_text="1\ny", line=7), FileChange(path="b", new_text="z"))
    _, ended = updates_of(
        ToolCall(id="1", name="Edit", status="started", input=value), ToolResult(tool_call_id="1", output="ok", changes=hunks)
    )
    assert [(part["path"], part.get("oldText"), part["newText"]) for part in ended["content"]] == [
        ("/work/a", "1\nx", "1\ny"), ("/work/b", None, "z"),
    ]  # fmt: skip
    assert ended["locations"] == [{"path": "/work/a", "line": 7}, {"path": "/work/b"}]
    assert ended["rawOutput"] == {"output": "ok"}
    # Diff of a call is not replaced by its result.
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


def test_plans() -> None:
    # Failed call of a planning tool does not change the plan.
    def called(call_id: str, text: str, *, failed: bool, parent: str | None = None) -> list[OutputEvent]:
        given = {"todos": [{"content": text, "status": "pending"}]}
        start = ToolCall(id=call_id, name="TodoWrite", status="started", input=given, parent_id=parent)
        return [start, ToolResult(tool_call_id=call_id, output="x", is_error=failed, parent_id=parent)]

    events = [*called("1", "a", failed=False), *called("2", "b", failed=True), *called("3", "c", failed=False, parent="0")]
    found = [(update["sessionUpdate"], update.get("status")) for update in updates_of(*events)]
    assert found == [
        ("tool_call", "in_progress"), ("tool_call_update", "completed"), ("plan", None),
        ("tool_call", "in_progress"), ("tool_call_update", "failed"),
        ("tool_call", "in_progress"), ("tool_call_update", "completed"),
    ]  # fmt: skip

    # Failed call of the history does not change the plan.
    def call(call_id: str, text: str, result: str) -> list[Message]:
        given = {"todos": [{"content": text, "status": "pending"}]}
        use = ToolUseBlock(tool_call_id=call_id, name="TodoWrite", input=given)
        return [AssistantMessage(content=(use,)), ToolMessage(tool_call_id=call_id, content=result)]

    updates = Updates("m", "/work", CLAUDE, lambda name: False)
    failed = "<tool_use_error>InputValidationError: TodoWrite failed</tool_use_error>"
    history = [*call("1", "a", "Todos have been modified"), *call("2", "b", failed)]
    found = [as_json(update) for message in history for update in updates.of_message(message)]
    assert [update["entries"][0]["content"] for update in found if update["sessionUpdate"] == "plan"] == ["a"]
    assert [update["status"] for update in found if update["sessionUpdate"] == "tool_call_update"] == ["completed", "failed"]
    # Plan event becomes a plan update.
    entries = (PlanEntry(content="a", priority="high", status="completed"), PlanEntry(content="b"))
    (update,) = updates_of(PlanEvent(entries=entries))
    assert update == {"sessionUpdate": "plan", "entries": [
        {"content": "a", "priority": "high", "status": "completed"}, {"content": "b", "priority": "medium", "status": "pending"},
    ]}  # fmt: skip
    # Plan from tool calls.
    plan = Plan(CLAUDE.display.plan_tools)
    todos = [{"content": "a", "status": "in_progress"}, {"content": "b", "status": "pending"}]
    found = plan.called("TodoWrite", {"todos": todos}) or []
    assert [(step.content, step.status) for step in found] == [("a", "in_progress"), ("b", "pending")]
    found = Plan(CODEX.display.plan_tools).called("update_plan", {"items": [{"text": "c", "completed": True}]}) or []
    assert [(step.content, step.status) for step in found] == [("c", "completed")]
    steps = Plan(CLAUDE.display.plan_tools)
    steps.called("TaskCreate", {"subject": "one", "description": "long"})
    steps.called("TaskCreate", {"subject": "two"})
    found = steps.called("TaskUpdate", {"taskId": "1", "status": "completed"}) or []
    assert [(step.content, step.status) for step in found] == [("one", "completed"), ("two", "pending")]
    assert len(steps.called("TaskUpdate", {"taskId": "2", "status": "deleted"}) or []) == 1
    assert steps.called("TaskUpdate", {"taskId": "9"}) is None
    steps.called("TaskCreate", {"subject": "seven"}, "Task #7 created successfully: seven")
    found = steps.called("TaskUpdate", {"taskId": "7", "status": "in_progress"}) or []
    assert [(step.content, step.status) for step in found] == [("one", "completed"), ("seven", "in_progress")]
    assert steps.called("Bash", {"command": "ls"}) is None


def test_each_message_has_its_own_id() -> None:
    found = updates_of(
        Thinking(text="a"), AgentToken(text="b"), AgentToken(text="c"), MessageEnd(), AgentToken(text="d"),
        ToolCall(id="1", name="Bash", status="started"), AgentToken(text="e"),
    )  # fmt: skip
    ids = [update["messageId"] for update in found if "messageId" in update]
    assert ids == ["m-1", "m-2", "m-2", "m-3", "m-4"]


def test_results_of_calls() -> None:
    # Raw output is sent only for output that is not text.
    for output, text, raw in (
        ("ok", "ok", None),
        ("", "", None),
        ([{"type": "text", "text": "ok"}], "ok", None),
        ({"ok": True}, '{"ok":true}', {"ok": True}),
        (["ok"], '["ok"]', {"output": ["ok"]}),
        (3, "3", {"output": 3}),
    ):
        _, ended = updates_of(
            ToolCall(id="1", name="x", status="started", input={}), ToolResult(tool_call_id="1", output=output)
        )  # fmt: skip
        assert "".join(part["content"]["text"] for part in ended["content"]) == text, (output, text)
        assert ended.get("rawOutput") == raw, (output, text)
    # Failed call has its output as content.
    output = [{"type": "text", "text": "no"}, {"type": "image", "url": "data:image/png;base64,aGk="}]
    started, ended = updates_of(
        ToolCall(id="1", name="Edit", status="started", input={"file_path": "a", "content": "b"}),
        ToolResult(tool_call_id="1", output=output, is_error=True),
        ToolCall(id="1", name="Edit", status="failed"),
        asks=True,
    )
    assert (started["status"], ended["status"]) == ("pending", "failed")
    assert [item["content"]["type"] for item in ended["content"]] == ["text", "image"]
    # Call without a result is completed.
    found = updates_of(ToolCall(id="1", name="app", status="started"), ToolCall(id="1", name="app", status="completed"))
    assert [update["status"] for update in found] == ["in_progress", "completed"]
    # Call that the model does not complete fails.
    for last in (MessageEnd(discarded=True), SessionEnd(exit_code=130, stop_reason="cancelled")):
        _, ended, announced, started = updates_of(
            ToolInput(id="1", name="Bash"), last,
            ToolInput(id="2", name="Bash"), ToolCall(id="2", name="Bash", status="started", input={"command": "ls"}), last,
        )  # fmt: skip
        assert (ended["toolCallId"], ended["status"]) == ("1", "failed"), last
        assert "not completed" in ended["content"][0]["content"]["text"], last
        assert announced["toolCallId"] == started["toolCallId"] == "2", last


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


def test_deltas_at_once_are_the_updates_of_each() -> None:
    for kind in (AgentToken, Thinking):
        events = [kind(text=text) for text in ("a", "é", "")]
        expected = updates_of(AgentToken(text="before"), *events, AgentToken(text="after"))
        updates = Updates("m", "/work", CLAUDE, lambda name: False)
        updates.of_event(AgentToken(text="before"))
        assert updates.of_deltas(events) == expected[1:-1], kind
        assert [as_json(update) for update in updates.of_event(AgentToken(text="after"))] == expected[-1:], kind


def of_events(updates: Updates, *events: OutputEvent) -> list[dict[str, Any]]:
    found = [as_json(update) for event in events for update in updates.of_event(event)]
    for update in found:
        check("SessionUpdate", update)
    return found


def test_call_is_announced_while_its_input_is_written() -> None:
    for asks in (True, False):
        value = {"file_path": "/work/a.py", "content": "x = 1\n"}
        updates = Updates("m", "/work", CLAUDE, lambda name, asks=asks: asks)
        found = of_events(
            updates,
            AgentToken(text="I write."),
            ToolInput(id="1", name="Write"),
            ToolInput(id="1", name="Write", input={"file_path": "/work/a.py"}),
            ToolCall(id="1", name="Write", status="started", input=value),
            MessageEnd(),
        )
        assert [(update["sessionUpdate"], update.get("title"), update.get("status")) for update in found[1:]] == [
            ("tool_call", "Preparing Write …", "pending"),
            ("tool_call_update", "Write a.py", "pending"),
            ("tool_call_update", "Write a.py", "pending" if asks else "in_progress"),
        ], asks
        assert [update["rawInput"] for update in found[1:]] == [{}, {"file_path": "/work/a.py"}, value], asks
        # A text without its end would be shown as the whole.
        assert "content" not in found[2], asks
        assert found[3]["content"][0]["newText"] == "x = 1\n", asks
        assert as_json(updates.permission_details("1"))["content"] == found[3]["content"], asks


def terminal_updates(*events: OutputEvent, member: str = "terminal_output", info: DriverInfo = CODEX) -> list[dict[str, Any]]:
    return of_events(Updates("m", "/work", info, lambda name: False, output_member=member), *events)


COMMAND = ToolCall(id="1", name="shell", status="started", input={"command": "make", "cwd": "/work/src", "reason": "why"})


def test_output_of_a_command_is_that_of_a_terminal() -> None:
    # Output of a command is that of a terminal while it runs.
    for member in ("terminal_output", "terminal_output_delta"):
        started, first, second, ended = terminal_updates(
            COMMAND, ToolOutput(tool_call_id="1", text="a\n"), ToolOutput(tool_call_id="1", text="b\n"),
            ToolResult(tool_call_id="1", output="a\nb\n[exit code 3]", is_error=True, exit_code=3),
            ToolOutput(tool_call_id="1", text="too late"), ToolCall(id="1", name="shell", status="failed"),
            member=member,
        )  # fmt: skip
        assert started["_meta"] == {"terminal_info": {"terminal_id": "1", "cwd": "/work/src"}}, member
        assert [part["type"] for part in started["content"]] == ["content", "terminal"], member
        assert [update["_meta"] for update in (first, second)] == [
            {member: {"terminal_id": "1", "data": text}} for text in ("a\n", "b\n")
        ], member  # fmt: skip
        assert ended["_meta"] == {"terminal_exit": {"terminal_id": "1", "exit_code": 3, "signal": None}}, member
        assert (ended["status"], ended.keys() & {"content", "rawOutput"}) == ("failed", set()), member
    # Output that did not come in parts is sent at the end.
    _, output, ended = terminal_updates(COMMAND, ToolResult(tool_call_id="1", output="all\n", exit_code=0))
    assert output["_meta"] == {"terminal_output": {"terminal_id": "1", "data": "all\n"}}
    assert ended["_meta"]["terminal_exit"]["exit_code"] == 0
    part = ToolOutput(tool_call_id="1", text="most, ")
    _, _, output, _ = terminal_updates(COMMAND, part, ToolResult(tool_call_id="1", output="most, and the rest", exit_code=0))
    assert output["_meta"]["terminal_output"]["data"] == "and the rest"
    # Exit code and white space at the end are not output.
    for output, shown in (
        ("one\n[exit code 3]", "one"),
        ("[exit code -9]", None),
        ("[exit code 3] one", "[exit code 3] one"),
        (" \n", None),
    ):
        part = ToolOutput(tool_call_id="1", text="begin ")
        _, _, *outputs, _ = terminal_updates(COMMAND, part, ToolResult(tool_call_id="1", output="begin " + output, exit_code=3))
        assert [update["_meta"]["terminal_output"]["data"] for update in outputs] == ([] if shown is None else [shown]), (
            output,
            shown,
        )
    # Output of which a part was not reported replaces the terminal.
    *_, ended = terminal_updates(
        COMMAND, ToolOutput(tool_call_id="1", text="two\n"), ToolResult(tool_call_id="1", output="one\ntwo\n", exit_code=0)
    )
    assert ended["content"] == [{"type": "content", "content": {"type": "text", "text": "one\ntwo\n"}}]
    assert ended["_meta"]["terminal_exit"]["exit_code"] == 0
    # Command that did not run has the reason as its content.
    _, ended = terminal_updates(COMMAND, ToolResult(tool_call_id="1", output="Tool call denied", is_error=True))
    assert ended["content"][0]["content"]["text"] == "Tool call denied"
    assert ended["_meta"]["terminal_exit"]["exit_code"] is None
    _, ended = terminal_updates(COMMAND, ToolCall(id="1", name="shell", status="failed"))
    assert ended["_meta"]["terminal_exit"]["exit_code"] is None


def test_end_of_a_long_output_is_found_in_linear_time() -> None:
    before = time.thread_time()
    part = ToolOutput(tool_call_id="1", text="begin")
    result = ToolResult(tool_call_id="1", output="begin" + " " * 400_000 + "x", exit_code=0)
    _, _, output, _ = terminal_updates(COMMAND, part, result)
    assert len(output["_meta"]["terminal_output"]["data"]) == 400_001
    assert time.thread_time() - before < 1


def test_output_of_other_calls_and_for_other_clients() -> None:
    # Terminal is in the first update about a call.
    announced, started, _ = terminal_updates(
        ToolInput(id="1", name="Bash"),
        ToolCall(id="1", name="Bash", status="started", input={"command": "ls", "description": "List"}),
        ToolResult(tool_call_id="1", output="", exit_code=0),
        info=CLAUDE,
    )
    assert announced["_meta"] == {"terminal_info": {"terminal_id": "1", "cwd": "/work"}}
    assert [part["type"] for part in announced["content"]] == ["terminal"]
    assert "_meta" not in started
    assert [part["type"] for part in started["content"]] == ["content", "terminal"]
    # Other calls have no terminal.
    for info, name in ((CLAUDE, "Read"), (ACP, "execute")):
        call = ToolCall(id="1", name=name, status="started", input={"command": "ls"})
        started, ended = terminal_updates(
            call, ToolOutput(tool_call_id="1", text="a"), ToolResult(tool_call_id="1", output="a"), info=info
        )  # fmt: skip
        assert "_meta" not in started and "_meta" not in ended, (info, name)
        assert ended["content"][0]["content"]["text"] == "a", (info, name)
    # Output in parts is not sent to other clients.
    _, ended = updates_of(
        ToolCall(id="1", name="Bash", status="started", input={"command": "ls"}),
        ToolOutput(tool_call_id="1", text="a"),
        ToolResult(tool_call_id="1", output="a", exit_code=0),
    )
    assert ended["content"][0]["content"]["text"] == "a"
    assert "_meta" not in ended
