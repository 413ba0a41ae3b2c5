"""OutputEvent as JSON: encoding and decoding, and the fields of the kinds in the original table (SEED)."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from drivers.contract.events import (
    EVENT,
    AgentToken,
    AwaitedCall,
    Awaiting,
    Commands,
    Compacted,
    ContextUse,
    Error,
    Event,
    FileChange,
    Hook,
    MessageEnd,
    ModeChanged,
    NativeSession,
    OutputEvent,
    PermissionChoice,
    Plan,
    PlanEntry,
    RateLimit,
    SessionEnd,
    SlashCommand,
    Stderr,
    Stdout,
    StructuredOutput,
    Subagent,
    Terminal,
    Thinking,
    Title,
    ToolCall,
    ToolInput,
    ToolOutput,
    ToolResult,
    Usage,
    decode,
)
from gateway.protocols.execute import event_json

# The fields of the seed's table, in its order; those with `?` there are optional here too.
SEED = {
    "agent_token": ["text"],
    "thinking": ["text"],
    "tool_call": ["id", "name", "status", "detail", "input"],
    "tool_result": ["tool_call_id", "output", "is_error"],
    "subagent": ["id", "status", "label"],
    "hook": ["id", "name", "status"],
    "usage": ["input_tokens", "output_tokens", "cache_read", "cache_write"],
    "stdout": ["line"],
    "stderr": ["line"],
    "session_end": ["exit_code", "duration_ms"],
    "error": ["message"],
}
ADDED_KINDS = {
    "native_session", "message_end", "awaiting", "compacted", "context_use", "plan", "commands", "title", "terminal",
    "mode", "output", "tool_input", "tool_output", "rate_limit", "notice",
}  # fmt: skip

text = st.text(st.characters(exclude_categories=["Cs"]))
number = st.integers(-(2**63), 2**63 - 1)
value = st.recursive(
    st.none() | st.booleans() | number | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
events = st.one_of(
    st.builds(AgentToken, text=text),
    st.builds(Thinking, text=text),
    st.builds(
        ToolCall,
        id=text,
        name=text,
        status=st.sampled_from(["started", "completed", "failed"]),
        detail=st.none() | text,
        input=value,
        parent_id=st.none() | text,
    ),
    st.builds(
        ToolResult,
        tool_call_id=text,
        output=value,
        is_error=st.booleans(),
        parent_id=st.none() | text,
        changes=st.lists(
            st.builds(FileChange, path=text, old_text=st.none() | text, new_text=text, line=st.none() | number), max_size=2
        ).map(tuple),
        exit_code=st.none() | number,
    ),
    st.builds(ToolInput, id=text, name=text, input=st.dictionaries(text, value, max_size=3)),
    st.builds(ToolOutput, tool_call_id=text, text=text),
    st.builds(Subagent, id=text, status=text, label=text),
    st.builds(Hook, id=text, name=text, status=text),
    st.builds(Usage, input_tokens=number, output_tokens=number, cache_read=number, cache_write=number),
    st.builds(Stdout, line=text),
    st.builds(Stderr, line=text),
    st.builds(
        SessionEnd,
        exit_code=number,
        duration_ms=number,
        stop_reason=st.sampled_from(["end_turn", "max_tokens", "refusal", "cancelled", "error"]),
    ),
    st.builds(Error, message=text),
    st.builds(NativeSession, native_id=st.none() | text, model=st.none() | text),
    st.builds(MessageEnd, discarded=st.booleans()),
    st.builds(
        Compacted,
        summary=st.none() | text,
        kept=st.integers(0, 2**31),
        trigger=st.none() | text,
        tokens_before=st.none() | number,
    ),
    st.builds(
        Plan,
        entries=st.lists(
            st.builds(
                PlanEntry,
                content=text,
                priority=st.sampled_from(["high", "medium", "low"]),
                status=st.sampled_from(["pending", "in_progress", "completed"]),
            ),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(
        Commands,
        commands=st.lists(
            st.builds(SlashCommand, name=text, description=text, hint=st.none() | text), max_size=3
        ).map(tuple),
    ),
    st.builds(Title, text=st.none() | text),
    st.builds(ModeChanged, mode=text),
    st.builds(StructuredOutput, value=value, error=st.none() | text),
    st.builds(RateLimit, status=st.sampled_from(["allowed", "warning", "rejected"]), resets_at=st.floats(0, 2**33)),
    st.builds(ContextUse, used=st.integers(0, 2**53), size=st.integers(1, 2**53)),
    st.builds(Terminal, tool_call_id=text, terminal_id=text),
    st.builds(
        Awaiting,
        calls=st.lists(
            st.builds(AwaitedCall, id=text, wants=st.sampled_from(["result", "permission"])), max_size=3
        ).map(tuple),
    ),
)  # fmt: skip


CHOICE = PermissionChoice(id="r", name="Always", kind="allow_always")


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (AwaitedCall(id="a", wants="result"), '{"id":"a","wants":"result"}'),
        (AwaitedCall(id="a", wants="permission", decided_by="client"), '{"id":"a","wants":"permission","client_decides":true}'),
        (
            AwaitedCall(id="a", wants="permission", optional=True, decided_by="cli", choices=(CHOICE,)),
            '{"id":"a","wants":"permission","optional":true,"cli_decides":true,'
            '"choices":[{"id":"r","name":"Always","kind":"allow_always"}]}',
        ),
    ],
)
def test_an_awaited_call_as_json(call: AwaitedCall, line: str) -> None:
    awaiting = Awaiting(calls=(call,))
    assert awaiting.encode().decode() == f'{{"kind":"awaiting","calls":[{line}]}}'
    assert decode(awaiting.encode()) == awaiting


@given(events)
def test_an_encoded_event_is_decoded_unchanged(event: OutputEvent) -> None:
    encoded = event.encode()
    assert decode(encoded) == event
    assert decode(encoded.decode()) == event
    assert b"\n" not in encoded
    assert next(iter(json.loads(encoded))) == "kind"


@given(events)
def test_a_seed_client_sees_the_fields_of_its_table(event: OutputEvent) -> None:
    seen = event_json(event, event.encode())
    if event.kind in ADDED_KINDS:
        own = event.kind in ("rate_limit", "notice")
        assert json.loads(seen or b"")["kind"] == f"x-portico.{event.kind}" if own else seen is None
        return
    assert seen is not None
    shown: dict[str, Any] = json.loads(seen)
    optional = {"detail", "input"} if event.kind == "tool_call" else set()
    absent = {name for name in optional if getattr(event, name) is None}
    assert list(shown) == ["kind", *(name for name in SEED[event.kind] if name not in absent)]
    assert shown.pop("kind") == event.kind
    assert shown == {name: json.loads(json.dumps(getattr(event, name))) for name in shown}


def test_every_kind_is_in_the_seeds_table_or_known_as_an_addition() -> None:
    classes = get_args(get_args(OutputEvent)[0])
    kinds = {cls.model_fields["kind"].default for cls in classes}
    assert kinds == set(SEED) | ADDED_KINDS
    assert all(issubclass(cls, Event) for cls in classes)


def test_absent_options_are_left_out_and_falsy_ones_are_not() -> None:
    assert ToolCall(id="1", name="n", status="started").encode() == b'{"kind":"tool_call","id":"1","name":"n","status":"started"}'
    shown = json.loads(ToolCall(id="1", name="n", status="started", detail="", input={}, parent_id="p").encode())
    assert (shown["detail"], shown["input"], shown["parent_id"]) == ("", {}, "p")
    assert json.loads(ToolCall(id="1", name="n", status="started", input=0).encode())["input"] == 0


def test_events_are_immutable() -> None:
    with pytest.raises(ValidationError):
        AgentToken(text="a").text = "b"  # type: ignore[misc]


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b'{"kind":"unknown_kind"}', b'{"kind":"agent_token"}', b'{"kind":', b"\xff"])
def test_anything_else_is_rejected(line: bytes) -> None:
    with pytest.raises(ValidationError):
        decode(line)


def test_unknown_fields_are_skipped() -> None:
    assert decode(b'{"kind":"agent_token","text":"a","new":1}') == AgentToken(text="a")


@given(value)
def test_values_that_json_lacks_still_give_json(given_value: object) -> None:
    for odd in (float("nan"), float("inf")):
        line = ToolResult(tool_call_id="1", output=[odd, given_value]).encode()
        EVENT.validate_json(line)
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_usage_adds_up_and_what_is_left_is_never_negative() -> None:
    first, second = Usage(input_tokens=1, cache_read=5, cost_usd=0.1), Usage(input_tokens=2, reasoning_tokens=3, cost_usd=0.2)
    assert first.plus(second) == Usage(input_tokens=3, cache_read=5, reasoning_tokens=3, cost_usd=0.3)
    assert Usage().plus(Usage(output_tokens=1)).cost_usd is None
    assert second.beyond(first) == Usage(input_tokens=1, reasoning_tokens=3, cost_usd=0.2)
