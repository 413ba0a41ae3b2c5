"""The output of the claude codec, and turns that no transcript covers."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from drivers.claude.codec import ClaudeCodec, context_size
from drivers.claude.control_messages import HOOKS
from drivers.claude.tools import Toolset
from drivers.contract.agent import Prompt
from drivers.contract.errors import ResumeFailed
from drivers.contract.events import (
    AgentToken,
    ContextUse,
    Error,
    Hook,
    MessageEnd,
    NativeSession,
    OutputEvent,
    SessionEnd,
    ToolCall,
    ToolResult,
    Usage,
)
from drivers.contract.messages import Content, ImageBlock, TextBlock
from tests.drivers.claude.cli import Cli, control, decision

INIT = {"type": "system", "subtype": "init", "session_id": "s-1", "model": "m"}


def ready(**how: Any) -> ClaudeCodec:
    codec = ClaudeCodec(**how)
    feed(codec, {"type": "control_response", "response": {"subtype": "success", "request_id": "init"}})
    codec.outbox.clear()
    return codec


def feed(codec: ClaudeCodec, native: dict[str, Any]) -> list[OutputEvent]:
    return codec.receive(json.dumps(native).encode())


def written(codec: ClaudeCodec) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in bytes(codec.outbox).splitlines()]
    codec.outbox.clear()
    return lines


def test_a_session_begins_with_initialize() -> None:
    codec = ClaudeCodec({"appendSystemPrompt": "Be kind."})
    assert codec.phase == "starting"
    request = {"subtype": "initialize", "hooks": HOOKS, "appendSystemPrompt": "Be kind."}
    assert written(codec) == [{"type": "control_request", "request_id": "init", "request": request}]
    feed(codec, {"type": "control_response", "response": {"subtype": "success", "request_id": "init"}})
    assert codec.phase == "ready"


def model_message(tokens: int) -> list[dict[str, Any]]:
    start = {"type": "message_start", "message": {"id": "msg", "usage": {"input_tokens": tokens}}}
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
    return [{"type": "stream_event", "event": event} for event in (start, delta, {"type": "message_stop"})]


def test_the_use_of_the_context_is_reported_after_each_message_once_its_size_is_known() -> None:
    sizes: dict[str, int] = {}
    result = {"type": "result", "is_error": False, "modelUsage": {"m": {"contextWindow": 1000}}}

    def turn(codec: ClaudeCodec) -> list[ContextUse]:
        codec.prompt(Prompt("hi"))
        events = [event for line in (INIT, *model_message(10), *model_message(20), result) for event in feed(codec, line)]
        return [event for event in events if isinstance(event, ContextUse)]

    assert turn(ready(context_sizes=sizes)) == [ContextUse(used=22, size=1000)]
    # Another session of the driver.
    assert turn(ready(context_sizes=sizes)) == [ContextUse(used=12, size=1000), ContextUse(used=22, size=1000)]


def test_the_size_of_a_context_is_that_of_the_only_model_whatever_its_name() -> None:
    windows = {name: {"contextWindow": 1000} for name in ("m-20260101", "small")}
    assert context_size({"modelUsage": {"m-20260101": windows["m-20260101"]}}, "m") == 1000
    assert context_size({"modelUsage": windows}, "m") is None


def test_each_message_of_a_session_has_its_usage_and_the_result_the_rest() -> None:
    models = {"m": {"inputTokens": 37, "outputTokens": 9, "thinkingTokens": 1, "costUSD": 0.5}}
    result = {"type": "result", "is_error": False, "model_usage_since_last_result": models}
    lines = (INIT, *model_message(10), *model_message(20), result)
    codec = ready()
    codec.prompt(Prompt("hi"))
    events = [event for line in lines for event in feed(codec, line)]
    assert [event for event in events if isinstance(event, Usage)] == [
        Usage(input_tokens=10, output_tokens=2),
        Usage(input_tokens=20, output_tokens=2),
        Usage(input_tokens=7, output_tokens=5, reasoning_tokens=1, cost_usd=0.5),
    ]
    task = ClaudeCodec(once=True)
    events = [event for line in lines for event in feed(task, line)]
    assert [event for event in events if isinstance(event, Usage)] == [
        Usage(input_tokens=37, output_tokens=9, reasoning_tokens=1, cost_usd=0.5)
    ]


def test_a_task_writes_nothing() -> None:
    codec = ClaudeCodec(once=True)
    assert (codec.phase, written(codec)) == ("running", [])


IMAGE = ImageBlock(url="https://x/y.png")
NATIVE_IMAGE = {"type": "image", "source": {"type": "url", "url": IMAGE.url}}
BASE64 = {"type": "base64", "media_type": "image/png", "data": "AA"}


@pytest.mark.parametrize(
    ("content", "native"),
    [
        ("hello", "hello"),
        ("/clear", "\n/clear"),
        ("/", "\n/"),
        (" /clear", " /clear"),
        ("a /clear", "a /clear"),
        ((TextBlock(text="/clear"), IMAGE), [{"type": "text", "text": "\n/clear"}, NATIVE_IMAGE]),
        ((TextBlock(text="hi"), TextBlock(text="/x")), [{"type": "text", "text": "hi"}, {"type": "text", "text": "\n/x"}]),
    ],
)  # fmt: skip
def test_prompts_are_kept_literal(content: Content, native: Any) -> None:
    codec = ready()
    codec.prompt(Prompt(content))
    message = {"role": "user", "content": native}
    (line,) = written(codec)
    assert uuid.UUID(line.pop("uuid"))
    assert line == {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": ""}
    assert codec.phase == "running"


def test_a_slash_command_runs_if_slash_commands_are_on() -> None:
    codec = ready(is_command=lambda name: True)
    codec.prompt(Prompt("/clear"))
    assert written(codec)[0]["message"]["content"] == "/clear"


@pytest.mark.parametrize("texts", [("/fix it", "a file"), ("a file", "/fix it")])
def test_a_slash_command_with_an_attached_file_is_the_last_block(texts: tuple[str, str]) -> None:
    codec = ready(is_command=lambda name: True)
    codec.prompt(Prompt(tuple(TextBlock(text=text) for text in texts)))
    text = written(codec)[0]["message"]["content"]
    assert [block["text"] for block in text] == ["a file", "/fix it"]


def test_the_native_session_is_reported_once_and_when_it_changes() -> None:
    codec = ready()
    codec.prompt(Prompt("x"))
    assert feed(codec, INIT) == [NativeSession(native_id="s-1", model="m")]
    assert codec.native_id == "s-1"
    assert feed(codec, INIT) == []
    assert feed(codec, INIT | {"session_id": "s-2"}) == [NativeSession(native_id="s-2", model="m")]


RESULT = {"type": "result", "subtype": "success", "result": "x", "usage": {}}


def sent(codec: ClaudeCodec) -> dict[str, Any]:
    """The user's message that the codec has written since the last look."""
    (message,) = [line for line in written(codec) if line["type"] == "user"]
    return message


def replayed(codec: ClaudeCodec, message: dict[str, Any]) -> list[OutputEvent]:
    """The CLI has read a message."""
    return feed(codec, {**message, "isReplay": True})


@pytest.mark.parametrize("text", ["y", "x", "/clear"])
def test_a_run_ends_after_the_answer_to_its_steered_message(text: str) -> None:
    codec = ready()
    codec.prompt(Prompt("x"))
    feed(codec, INIT)
    assert replayed(codec, sent(codec)) == []
    assert codec.steer(Prompt(text))
    steered = sent(codec)
    assert steered["message"]["content"].strip() == text
    assert [event.kind for event in feed(codec, RESULT)] == []
    assert codec.phase == "running"
    assert feed(codec, INIT) == [] and replayed(codec, steered) == []
    assert [event.kind for event in feed(codec, RESULT)] == ["session_end"]
    assert codec.phase == "ready"


def test_a_steered_message_in_the_current_turn_has_no_result_of_its_own() -> None:
    codec = ready()
    codec.prompt(Prompt("x"))
    feed(codec, INIT)
    replayed(codec, sent(codec))
    codec.steer(Prompt("y"))
    replayed(codec, sent(codec))
    assert [event.kind for event in feed(codec, RESULT)] == ["session_end"]


def test_an_interrupt_is_not_sent_with_an_unread_steered_message() -> None:
    """The CLI would answer that message in another turn after the interrupt, so the process is ended instead."""
    codec = ready()
    codec.prompt(Prompt("x"))
    feed(codec, INIT)
    replayed(codec, sent(codec))
    codec.steer(Prompt("y"))
    assert codec.interrupt() is False
    assert not ClaudeCodec(once=True).steer(Prompt("x"))


def test_a_task_has_no_interrupt() -> None:
    assert ClaudeCodec(once=True).interrupt() is False


def test_an_unknown_session_is_a_failed_resume() -> None:
    text = "No conversation found with session ID: x"
    for refuse in (
        lambda codec: feed(codec, {"type": "result", "is_error": True, "errors": [text]}),
        lambda codec: codec.exited(1, [text]),
    ):
        codec = ClaudeCodec()
        refuse(codec)
        assert isinstance(codec.start_error, ResumeFailed)


def test_another_start_error_is_reported_and_is_no_failed_resume() -> None:
    codec = ClaudeCodec()
    assert feed(codec, {"type": "result", "is_error": True, "errors": ["No disk", "left"]}) == [Error(message="No disk left")]
    assert codec.start_error is None
    assert codec.exited(1, []) == []


@pytest.mark.parametrize(("outcome", "status"), [("success", "completed"), ("error", "failed"), ("cancelled", "cancelled")])
def test_hooks(outcome: str, status: str) -> None:
    codec = ClaudeCodec(once=True)
    line = {"type": "system", "hook_event": "PostToolUse", "hook_id": "h", "hook_name": "lint"}
    assert feed(codec, line | {"subtype": "hook_started"}) == [Hook(id="h", name="lint", status="started")]
    assert feed(codec, line | {"subtype": "hook_response", "outcome": outcome}) == [Hook(id="h", name="lint", status=status)]
    for lifecycle in ("SessionStart", "Stop", "Notification"):
        assert feed(codec, line | {"subtype": "hook_started", "hook_event": lifecycle}) == []


MODELS = {"a": {"inputTokens": 5, "outputTokens": 6}, "b": {"inputTokens": 7, "cacheReadInputTokens": 1}}
TURN = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 4}


@pytest.mark.parametrize(
    ("result", "usage"),
    [
        ({"usage": TURN}, [Usage(input_tokens=1, output_tokens=2, cache_read=3, cache_write=4)]),
        ({"usage": {"input_tokens": 1}}, [Usage(input_tokens=1)]),
        # Includes the sub-agents, which `usage` does not count.
        ({"usage": TURN, "model_usage_since_last_result": MODELS}, [Usage(input_tokens=12, output_tokens=6, cache_read=1)]),
        (
            {"usage": TURN, "model_usage_since_last_result": {}},
            [Usage(input_tokens=1, output_tokens=2, cache_read=3, cache_write=4)],
        ),
        ({}, []),
    ],
)
def test_usage(result: dict[str, Any], usage: list[Usage]) -> None:
    assert feed(ClaudeCodec(once=True), {"type": "result", "is_error": False, **result}) == usage


@pytest.mark.parametrize(
    ("content", "output"),
    [
        ("text", "text"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([], ""),
        (
            [{"type": "text", "text": "a"}, {"type": "image", "source": BASE64}],
            [{"type": "text", "text": "a"}, {"type": "image", "url": "data:image/png;base64,AA"}],
        ),
        ([NATIVE_IMAGE], [{"type": "image", "url": IMAGE.url}]),
        ([{"type": "new", "x": 1}], [{"type": "text", "text": '{"type": "new", "x": 1}'}]),
        (["odd"], ["odd"]),
        (None, None),
    ],
)  # fmt: skip
def test_outputs_of_tools(content: Any, output: Any) -> None:
    block = {"type": "tool_result", "tool_use_id": "t", "content": content}
    (result, _) = feed(ClaudeCodec(once=True), {"type": "user", "message": {"content": [block]}})
    assert result == ToolResult(tool_call_id="t", output=output)


def test_half_a_surrogate_pair_does_not_lose_the_line() -> None:
    line = rb'{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"cut \ud83d"}}}'
    (event,) = ClaudeCodec(once=True).receive(line)
    assert json.loads(event.encode()) == {"kind": "agent_token", "text": "cut \ufffd"}


OUTPUT_CALL = {"type": "tool_use", "id": "t1", "name": "StructuredOutput", "input": {"n": 2}}


def play_structured_answer(codec: ClaudeCodec) -> list[OutputEvent]:
    """A turn as 2.1.332 writes it, with the codec's hook."""
    codec.prompt(Prompt("2?"))
    stream = [
        {"type": "message_start", "message": {"id": "m1", "usage": {}}},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Let me see."}},
        {"type": "content_block_start", "content_block": {**OUTPUT_CALL, "input": {}}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": '{"n":2,"m":"x",'}},
    ]
    events = [
        event for one in (INIT, *({"type": "stream_event", "event": event} for event in stream)) for event in feed(codec, one)
    ]
    hook = {"subtype": "hook_callback", "input": {"tool_use_id": "t1", "tool_name": "StructuredOutput", "tool_input": {"n": 2}}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "Structured output provided successfully"}
    for line in (
        {"type": "assistant", "message": {"id": "m1", "content": [OUTPUT_CALL]}},
        {"type": "stream_event", "event": {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}},
        {"type": "stream_event", "event": {"type": "message_stop"}},
        {"type": "control_request", "request_id": "h1", "request": hook},
        {"type": "user", "message": {"role": "user", "content": [result]}},
        {"type": "result", "subtype": "success", "structured_output": {"n": 2}, "result": '{"n":2}', "stop_reason": "tool_use"},
    ):
        events += feed(codec, line)
    return [event for event in events if not isinstance(event, NativeSession | Usage)]


@pytest.mark.parametrize("mode", [None, "default"])
def test_the_answer_by_a_call_is_text_and_no_call(mode: str | None) -> None:
    codec = ready(tools=Toolset(answers=True, mode=mode, ruled=lambda tool: True), mode=mode)
    assert play_structured_answer(codec) == [
        AgentToken(text="Let me see."), MessageEnd(), AgentToken(text='{"n":2}'), SessionEnd(exit_code=0),
    ]  # fmt: skip
    answers = [line["response"] for line in written(codec) if line["type"] == "control_response"]
    assert answers[-1]["response"]["hookSpecificOutput"]["permissionDecision"] == "allow"


def test_a_tool_of_that_name_is_a_call_in_other_sessions() -> None:
    events = play_structured_answer(ready())
    assert [event.name for event in events if isinstance(event, ToolCall) and event.status == "started"] == ["StructuredOutput"]


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
def test_every_request_is_answered(request_: dict[str, Any]) -> None:
    cli = Cli()
    assert cli.take(control("r", **request_)) == []
    answer = cli.answers()["r"]
    if request_.get("subtype") == "hook_callback":
        assert decision(answer) == "deny"
    elif request_.get("subtype") == "can_use_tool":
        assert answer["behavior"] == "deny"
    else:
        assert answer["subtype"] == "error"


def test_a_continued_turn_sends_a_system_reminder() -> None:
    codec = ClaudeCodec()
    codec.outbox.clear()
    codec.prompt(Prompt("Continue", go_on=True))
    text = json.loads(bytes(codec.outbox))["message"]["content"]
    assert text.startswith("<system-reminder>") and text.endswith("</system-reminder>")
