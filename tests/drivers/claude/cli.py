"""Simulates the claude CLI line by line, for requests in an order that no recording has."""

from __future__ import annotations

import json
from typing import Any

from drivers.claude.codec import ClaudeCodec
from drivers.claude.tool_calls import QUIET_SECONDS
from drivers.claude.tools import Toolset
from drivers.contract.agent import Prompt
from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.events import OutputEvent

Json = dict[str, Any]

APP = (ToolSpec("weather", "The weather.", {"type": "object"}),)
GRANTS = (ToolGrant("Bash"), ToolGrant("Read", True), ToolGrant("Agent", True))


class Cli:
    """The CLI's side of a codec; unless it is `prompted`, the session has no run yet. `options` are of the codec."""

    def __init__(self, tools: Toolset | None = None, *, prompted: bool = True, **options: Any) -> None:
        self.codec = ClaudeCodec(tools=tools or Toolset(GRANTS, APP), **options)
        self.take({"type": "control_response", "response": {"subtype": "success", "request_id": "init", "response": {}}})
        if prompted:
            self.codec.prompt(Prompt("go"))
        self.codec.outbox.clear()

    def take(self, *lines: Json) -> list[OutputEvent]:
        return [event for line in lines for event in self.codec.receive(json.dumps(line).encode())]

    def written(self) -> list[Json]:
        lines = [json.loads(line) for line in bytes(self.codec.outbox).splitlines()]
        self.codec.outbox.clear()
        return lines

    def answers(self) -> dict[str, Json]:
        """The responses to the CLI's requests since the last call, by request id."""
        lines = [line["response"] for line in self.written() if line["type"] == "control_response"]
        return {line["request_id"]: line.get("response", line) for line in lines}

    def message(self, *calls: tuple[str, str], given: Json | None = None) -> list[OutputEvent]:
        """A message of the model with calls (id, name), all with the input `given`, or each with its own."""
        blocks = [
            {"type": "tool_use", "id": call_id, "name": name, "input": {"n": call_id} if given is None else given}
            for call_id, name in calls
        ]
        events = self.take(stream("message_start", message={"id": "m"}))
        for block in blocks:
            events += self.take({"type": "assistant", "message": {"id": "m", "content": [block]}})
        return events + self.take(stream("message_delta", delta={"stop_reason": "tool_use"}), stream("message_stop"))

    def settle(self) -> list[OutputEvent]:
        """Return the events that are due when the CLI has been silent."""
        assert self.codec.debounce_seconds() == QUIET_SECONDS
        return self.codec.debounced_events()


def stream(kind: str, **fields: Any) -> Json:
    return {"type": "stream_event", "event": {"type": kind, **fields}}


def hook(call_id: str, name: str, request: str = "", *, inner: bool = False) -> Json:
    given = {"tool_name": name, "tool_input": {"n": call_id}, "tool_use_id": call_id, **({"agent_id": "x"} if inner else {})}
    return control(request or f"hook-{call_id}", subtype="hook_callback", callback_id="tool", input=given)


def permission(call_id: str, name: str, given: Json | None = None, **more: Any) -> Json:
    about = {"tool_name": name, "input": {"n": call_id} if given is None else given, "tool_use_id": call_id}
    return control(f"may-{call_id}", subtype="can_use_tool", **about, **more)


def control(request_id: str, **request: Any) -> Json:
    return {"type": "control_request", "request_id": request_id, "request": request}


RESULT: Json = {"type": "result", "subtype": "success", "is_error": False, "stop_reason": "end_turn"}


def decision(answer: Json) -> str:
    return str(answer["hookSpecificOutput"]["permissionDecision"])
