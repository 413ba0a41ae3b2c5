"""claude's tools without claude: what it is started with, and its codec on questions in an order that no recording has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drivers.base import PermissionReply, Prompt, SessionSpec, ToolGrant, ToolReply, ToolSpec
from drivers.claude import ClaudeDriver
from drivers.claude_calls import SETTLED
from drivers.claude_codec import ClaudeCodec
from drivers.claude_control import call_result
from drivers.claude_tools import OWN_TOOLS, Toolset
from drivers.codec import Launch
from drivers.events import AwaitedCall, Awaiting, Error, Hook, OutputEvent, SessionEnd, ToolCall, ToolResult
from drivers.messages import AssistantMessage, ImageBlock, TextBlock, ToolMessage, ToolUseBlock, UserMessage

Json = dict[str, Any]

APP = (ToolSpec("weather", "The weather.", {"type": "object"}),)
GRANTS = (ToolGrant("Bash"), ToolGrant("Read", True), ToolGrant("Agent", True))


def launch(tmp_path: Path, **more: Any) -> Launch:
    return ClaudeDriver().session(SessionSpec("claude", tmp_path, {"HOME": str(tmp_path)}, **more))


def after(argv: tuple[str, ...], flag: str) -> str:
    assert argv.count(flag) == 1
    return argv[argv.index(flag) + 1]


# -- the command line -----------------------------------------------------------------------------------------------------


def test_a_session_without_tools_has_none(tmp_path: Path) -> None:
    argv = launch(tmp_path).command.argv
    assert after(argv, "--tools") == "" and "--strict-mcp-config" in argv
    assert "--settings" not in argv and "--mcp-config" not in argv


def test_exactly_the_listed_tools(tmp_path: Path) -> None:
    argv = launch(tmp_path, tools=GRANTS, app_tools=APP).command.argv
    assert after(argv, "--tools") == "Bash,Read,Agent"
    assert json.loads(after(argv, "--settings")) == {"permissions": {"ask": ["Bash"]}}
    assert after(argv, "--permission-mode") == "default"
    assert json.loads(after(argv, "--mcp-config")) == {"mcpServers": {"app": {"type": "sdk", "name": "app"}}}
    # Everybody can read the arguments, and what an application's tools are is nobody else's.
    assert "weather" not in str(argv)


def test_the_hook_is_asked_for_in_every_session(tmp_path: Path) -> None:
    request = json.loads(bytes(launch(tmp_path).codec.outbox))["request"]
    [hook] = request["hooks"]["PreToolUse"]
    assert hook["matcher"] is None and hook["timeout"] >= 3600


def test_a_seed_has_the_native_names(tmp_path: Path) -> None:
    call = ToolUseBlock(tool_call_id="c", name="weather", input={})
    history = (UserMessage(content="Hi"), AssistantMessage(content=(call,)), ToolMessage(tool_call_id="c", content="x"))
    [seed] = launch(tmp_path, app_tools=APP, history=history).command.files.values()
    assert json.loads(seed.splitlines()[1])["message"]["content"][0]["name"] == "mcp__app__weather"


def test_the_tools_of_info_can_be_shown() -> None:
    info = ClaudeDriver().info()
    assert info.app_tools and info.tools == OWN_TOOLS
    assert {"Bash", "Read", "Write", "Edit", "WebFetch", "Agent"} <= {tool.name for tool in info.tools}
    assert all(tool.description and tool.input_schema["type"] == "object" for tool in info.tools)


def test_names_that_a_model_cannot_have() -> None:
    specs = [ToolSpec(name, "", {}) for name in ("a.b", "a b", "x" * 70, "x" * 80)]
    tools = Toolset(app_tools=specs)
    names = [tool["name"] for tool in tools.mcp_list()]
    assert names[:2] == ["a_b", "a_b_2"] and len(set(names)) == 4 and max(map(len, names)) <= 54
    assert [tools.shown(f"mcp__app__{name}") for name in names] == [spec.name for spec in specs]
    assert tools.mcp_list()[0]["inputSchema"] == {"type": "object"}


def test_results_as_mcp_has_them() -> None:
    content = (
        TextBlock(text="a"),
        TextBlock(text=""),
        ImageBlock(url="data:image/png;base64,AAAA"),
        ImageBlock(url="https://x.org/a.png"),
    )
    assert call_result(content)["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "text", "text": "[image: https://x.org/a.png]"},
    ]
    assert call_result("")["content"] == [] and "isError" not in call_result("x")


# -- the codec ------------------------------------------------------------------------------------------------------------


class Cli:
    """The CLI's side of a codec, in the words of a test."""

    def __init__(self) -> None:
        self.codec = ClaudeCodec(tools=Toolset(GRANTS, APP))
        self.take({"type": "control_response", "response": {"subtype": "success", "request_id": "init", "response": {}}})
        self.codec.prompt(Prompt("go"))
        self.codec.outbox.clear()

    def take(self, *lines: Json) -> list[OutputEvent]:
        return [event for line in lines for event in self.codec.receive(json.dumps(line).encode())]

    def written(self) -> list[Json]:
        lines = [json.loads(line) for line in bytes(self.codec.outbox).splitlines()]
        self.codec.outbox.clear()
        return lines

    def answers(self) -> dict[str, Json]:
        """What was answered to the CLI's questions since the last look."""
        lines = [line["response"] for line in self.written() if line["type"] == "control_response"]
        return {line["request_id"]: line.get("response", line) for line in lines}

    def message(self, *calls: tuple[str, str]) -> list[OutputEvent]:
        """A message of the model with calls (id, name)."""
        blocks = [{"type": "tool_use", "id": call_id, "name": name, "input": {"n": call_id}} for call_id, name in calls]
        events = self.take(stream("message_start", message={"id": "m"}))
        for block in blocks:
            events += self.take({"type": "assistant", "message": {"id": "m", "content": [block]}})
        return events + self.take(stream("message_delta", delta={"stop_reason": "tool_use"}), stream("message_stop"))

    def settle(self) -> list[OutputEvent]:
        """Answer the codec's signs of life until it sends no more."""
        events: list[OutputEvent] = []
        for n in range(2 * SETTLED):
            if not any(line.get("request", {}).get("subtype") == "mcp_status" for line in self.written()):
                assert n <= SETTLED
                return events
            events += self.take({"type": "control_response", "response": {"subtype": "success", "request_id": "ping"}})
        raise AssertionError("it never stops")


def stream(kind: str, **fields: Any) -> Json:
    return {"type": "stream_event", "event": {"type": kind, **fields}}


def hook(call_id: str, name: str, request: str = "", *, inner: bool = False) -> Json:
    given = {"tool_name": name, "tool_input": {"n": call_id}, "tool_use_id": call_id, **({"agent_id": "x"} if inner else {})}
    return control(request or f"hook-{call_id}", subtype="hook_callback", callback_id="tool", input=given)


def permission(call_id: str, name: str) -> Json:
    return control(f"may-{call_id}", subtype="can_use_tool", tool_name=name, input={"n": call_id}, tool_use_id=call_id)


def call(call_id: str, name: str) -> Json:
    params = {"name": name, "arguments": {"n": call_id}, "_meta": {"claudecode/toolUseId": call_id}}
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    return control(f"call-{call_id}", subtype="mcp_message", server_name="app", message=message)


def control(request_id: str, **request: Any) -> Json:
    return {"type": "control_request", "request_id": request_id, "request": request}


def result_line(call_id: str, content: Any = "ok", *, failed: bool = False, parent: str | None = None) -> Json:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": failed}
    return {"type": "user", "message": {"content": [block]}, "parent_tool_use_id": parent}


RESULT: Json = {"type": "result", "subtype": "success", "is_error": False, "stop_reason": "end_turn"}
ABORTED: Json = {"type": "result", "subtype": "error_during_execution", "is_error": True, "terminal_reason": "aborted_tools"}


def awaiting(*calls: AwaitedCall) -> Awaiting:
    return Awaiting(calls=calls)


def decision(answer: Json) -> str:
    return str(answer["hookSpecificOutput"]["permissionDecision"])


def test_an_answer_before_the_question_is_kept() -> None:
    cli = Cli()
    cli.message(("a", "Bash"), ("b", "Bash"), ("c", "mcp__app__weather"))
    [handed] = cli.take(hook("a", "Bash"))
    wanted = [("a", "permission"), ("b", "permission"), ("c", "result")]
    assert handed == awaiting(*(AwaitedCall(id=i, wants=w) for i, w in wanted)) and cli.codec.phase == "waiting"  # type: ignore[arg-type]
    cli.codec.reply(ToolReply("c", "rain"))
    cli.codec.reply(PermissionReply("b", False, "no"))
    assert cli.answers() == {} and cli.codec.phase == "waiting"
    cli.codec.reply(PermissionReply("a", True))
    assert decision(cli.answers()["hook-a"]) == "allow" and cli.codec.phase == "running"
    cli.take(result_line("a"), hook("b", "Bash"))
    denied = cli.answers()["hook-b"]["hookSpecificOutput"]
    assert denied["permissionDecision"] == "deny" and denied["permissionDecisionReason"] == "Tool call denied: no"
    cli.take(hook("c", "mcp__app__weather"), call("c", "weather"))
    answers = cli.answers()
    assert decision(answers["hook-c"]) == "allow"
    assert answers["call-c"]["mcp_response"] == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {"content": [{"type": "text", "text": "rain"}]},
    }


def test_nothing_is_asked_in_the_middle_of_a_message() -> None:
    cli = Cli()
    cli.take(stream("message_start", message={"id": "m"}))
    cli.take(
        {"type": "assistant", "message": {"id": "m", "content": [{"type": "tool_use", "id": "a", "name": "Bash", "input": {}}]}}
    )
    assert cli.take(hook("a", "Bash")) == [] and cli.codec.phase == "running"
    assert isinstance(cli.take(stream("message_stop"))[-1], Awaiting)


def test_a_running_trusted_call_is_waited_for() -> None:
    cli = Cli()
    cli.message(("a", "Read"), ("b", "Bash"))
    assert cli.take(hook("b", "Bash"), hook("a", "Read")) == []
    told = cli.take(result_line("a"))
    assert isinstance(told[0], ToolResult) and told[-1] == awaiting(AwaitedCall(id="b", wants="permission"))


def test_a_trusted_call_that_does_not_begin_is_not() -> None:
    cli = Cli()
    cli.message(("a", "Bash"), ("b", "Read"))
    assert cli.take(hook("a", "Bash")) == []
    optional = AwaitedCall(id="b", wants="permission", optional=True)
    assert cli.settle() == [awaiting(AwaitedCall(id="a", wants="permission"), optional)]


def test_a_permission_request_asks_where_the_hook_did_not() -> None:
    """The second wall: an ask rule, should the hook ever be left out."""
    cli = Cli()
    cli.message(("a", "Bash"))
    assert isinstance(cli.take(permission("a", "Bash"))[-1], Awaiting)
    cli.codec.reply(PermissionReply("a", False))
    assert cli.answers() == {"may-a": {"behavior": "deny", "message": "Tool call denied"}}


def test_a_grant_answers_both_questions() -> None:
    cli = Cli()
    cli.message(("a", "Bash"))
    cli.take(hook("a", "Bash"))
    cli.codec.reply(PermissionReply("a", True))
    cli.take(permission("a", "Bash"))
    assert cli.answers()["may-a"] == {"behavior": "allow", "updatedInput": {"n": "a"}}


@pytest.mark.parametrize("name", ["Write", "mcp__app__other", "mcp__other__tool", "ExitPlanMode"])
def test_what_is_not_listed_is_refused(name: str) -> None:
    cli = Cli()
    cli.message(("a", name))
    assert cli.take(hook("a", name), permission("a", name)) == []
    answers = cli.answers()
    assert decision(answers["hook-a"]) == "deny" and answers["may-a"]["behavior"] == "deny"


def test_the_clients_denial_is_told_in_its_own_words() -> None:
    cli = Cli()
    cli.message(("a", "Bash"))
    cli.take(hook("a", "Bash"))
    cli.codec.reply(PermissionReply("a", False, "no"))
    told = cli.take(result_line("a", "PreToolUse:Bash hook error: Tool call denied: no", failed=True))
    assert told[0] == ToolResult(tool_call_id="a", output="Tool call denied: no", is_error=True)


def test_an_application_side_call_has_no_result_of_ours() -> None:
    cli = Cli()
    cli.message(("a", "mcp__app__weather"))
    [handed] = cli.take(hook("a", "mcp__app__weather"), call("a", "weather"))
    assert isinstance(handed, Awaiting)
    cli.codec.reply(ToolReply("a", "rain"))
    assert cli.take(result_line("a", [{"type": "text", "text": "rain"}])) == [
        ToolCall(id="a", name="weather", status="completed")
    ]


def test_what_happens_while_it_waits_is_told_in_the_next_turn() -> None:
    cli = Cli()
    cli.message(("a", "Bash"), ("b", "mcp__app__weather"))
    cli.take(hook("a", "Bash"))
    assert cli.take(result_line("a", "timed out", failed=True), {"type": "unheard"}) == []
    cli.codec.reply(PermissionReply("a", True))
    cli.codec.reply(ToolReply("b", "rain"))
    kinds = [event.kind for event in cli.take(call("b", "weather"))]
    assert kinds == ["tool_result", "tool_call", "stdout"]


def test_a_turn_that_ends_by_itself_is_over() -> None:
    cli = Cli()
    cli.message(("a", "Bash"))
    cli.take(hook("a", "Bash"))
    told = cli.take(result_line("a", "gone", failed=True), RESULT)
    assert isinstance(told[-1], SessionEnd) and cli.codec.phase == "ready"
    cli.codec.reply(PermissionReply("a", True))
    assert cli.answers() == {}


def test_an_interrupt_gives_the_calls_up() -> None:
    cli = Cli()
    cli.take({"type": "system", "subtype": "init", "session_id": "s"})
    cli.message(("a", "Bash"), ("b", "mcp__app__weather"))
    cli.take(hook("a", "Bash"), call("b", "weather"))
    assert cli.codec.interrupt() and cli.codec.phase == "running"
    cancel = {"type": "control_cancel_request", "request_id": "hook-a"}
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    cancelled = control("c", subtype="mcp_message", server_name="app", message=note)
    told = cli.take(cancel, cancelled, result_line("a", "stop", failed=True), result_line("b", "stop", failed=True), ABORTED)
    assert not any(isinstance(event, ToolResult) for event in told)
    assert told[-1] == SessionEnd(exit_code=130, stop_reason="cancelled")


def test_a_process_that_ends_while_it_waits() -> None:
    cli = Cli()
    cli.message(("a", "Bash"))
    cli.take(hook("a", "Bash"))
    error, end = cli.codec.exited(137, [])
    assert isinstance(error, Error) and end == SessionEnd(exit_code=137, stop_reason="error")


def test_a_subagents_call_is_asked_about_by_itself() -> None:
    cli = Cli()
    cli.message(("a", "Agent"), ("b", "Bash"))
    cli.take(hook("a", "Agent"), hook("b", "Bash"))
    inner = {"id": "i", "content": [{"type": "tool_use", "id": "c", "name": "Bash", "input": {"n": "c"}}]}
    told = cli.take(hook("c", "Bash", inner=True), {"type": "assistant", "message": inner, "parent_tool_use_id": "a"})
    optional = AwaitedCall(id="a", wants="permission", optional=True)
    assert told == [awaiting(optional, AwaitedCall(id="b", wants="permission"))]
    cli.codec.reply(PermissionReply("b", True))
    started, handed = [*cli.take(result_line("b")), *cli.settle()][-2:]
    assert started == ToolCall(id="c", name="Bash", status="started", input={"n": "c"})
    assert handed == awaiting(AwaitedCall(id="c", wants="permission"))
    cli.codec.reply(PermissionReply("c", True))
    told = cli.take(result_line("c", parent="a"))
    assert [event.parent_id for event in told if isinstance(event, ToolCall | ToolResult)] == [None, None]


@pytest.mark.parametrize(
    "request_",
    [
        {"subtype": "hook_callback"},
        {"subtype": "hook_callback", "input": None},
        {"subtype": "can_use_tool", "tool_name": "Bash"},
        {"subtype": "mcp_message", "message": {"method": "tools/call", "id": 1}},
        {"subtype": "mcp_message"},
        {"subtype": "request_user_dialog"},
        {},
    ],
)
def test_no_question_stays_without_an_answer(request_: Json) -> None:
    cli = Cli()
    assert cli.take(control("r", **request_)) == []
    answer = cli.answers()["r"]
    if request_.get("subtype") == "hook_callback":
        assert decision(answer) == "deny"
    elif request_.get("subtype") == "can_use_tool":
        assert answer["behavior"] == "deny"
    else:
        assert answer["subtype"] == "error"


def test_mcp_messages() -> None:
    cli = Cli()

    def ask(**message: Any) -> Json:
        cli.take(control("r", subtype="mcp_message", server_name="app", message={"jsonrpc": "2.0", **message}))
        found: Json = cli.answers()["r"]["mcp_response"]
        return found

    opened = ask(method="initialize", id=0, params={"protocolVersion": "2025-11-25"})["result"]
    assert opened["protocolVersion"] == "2025-11-25" and "tools" in opened["capabilities"]
    [tool] = ask(method="tools/list", id=1)["result"]["tools"]
    assert tool["name"] == "weather" and tool["annotations"] == {"readOnlyHint": True}
    assert ask(method="ping", id=2)["result"] == {}
    assert ask(method="resources/list", id=3)["error"]["code"] == -32601
    assert "error" not in ask(method="notifications/initialized")


def test_hooks_of_the_users_are_still_told() -> None:
    cli = Cli()
    started = {
        "type": "system",
        "subtype": "hook_started",
        "hook_id": "h",
        "hook_name": "PreToolUse:Bash",
        "hook_event": "PreToolUse",
    }
    assert cli.take(started) == [Hook(id="h", name="PreToolUse:Bash", status="started")]


def test_going_on_is_nobodys_words() -> None:
    codec = ClaudeCodec()
    codec.outbox.clear()
    codec.prompt(Prompt("Continue", go_on=True))
    said = json.loads(bytes(codec.outbox))["message"]["content"]
    assert said.startswith("<system-reminder>") and said.endswith("</system-reminder>")
