"""The application-side tool calls of one ACP run: matches a call's MCP request with the agent's own reports of it. No I/O.

An agent calls these tools over MCP, and reports the same calls with `tool_call` updates. The protocol does not link the two, so
they are matched by the agent's call id if the MCP request has it, else by the tool's name and the input, else by name and order.
The client is sent each call once, under the id that the agent reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from drivers.acp.content import tool_output
from drivers.acp.mcp_servers import SERVER
from drivers.acp.tool_calls import ToolCallState
from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.events import OutputEvent, ToolCall, ToolResult
from drivers.contract.tool_denials import CANCELLED, NO_RESULT, denied
from drivers.contract.tool_server import ToolRequest, ToolResponse

MATCHED_DELAY, UNMATCHED_DELAY, UNREPORTED_DELAY = 0.05, 1.0, 0.1
"""Seconds without output after which the client is asked for the results: when the agent has reported every call, when it has not
yet, and when it is an agent that does not report its MCP calls."""
NAMES = ("mcp__{}__{}", "mcp_{}.{}", "{}_{}", "{}-{}")
"""What agents call a tool of an MCP server: claude-agent-acp 0.101, qwen 0.24.4 and kimi 2.1.0; vibe 3.0.2; opencode 1.18.33;
copilot 1.0.102."""


def names_of(app_tools: Sequence[str]) -> dict[str, str]:
    """Returns the application-side tools by the names that agents give them."""
    return {form.format(SERVER, named(tool)): tool for named in (_safe, str) for tool in app_tools for form in NAMES}


def _safe(name: str) -> str:
    """The name with the characters that the APIs of models accept."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name)


@dataclass
class AppToolCall:
    """One call. `native_id` is the agent's id of it, `request_id` that of its MCP request; `input` is None until it is known.

    `sent`: the client has its start. `announced`: the client was asked for its result. `finished`: it has a result or was
    cancelled.
    """

    id: str
    name: str
    input: Any = None
    native_id: str | None = None
    request_id: str | None = None
    reply: Reply | None = None
    sent: bool = False
    announced: bool = False
    finished: bool = False


class AppToolCalls:
    """The calls of one run. Appends the answers of MCP requests to `answers`.

    `reported` is False for an agent that has left an earlier call unreported.
    """

    def __init__(self, answers: list[ToolResponse], reported: bool = True) -> None:
        self._answers = answers
        self._calls: list[AppToolCall] = []
        self.reported = reported

    def requested(self, request: ToolRequest) -> list[OutputEvent]:
        """The agent has called a tool over MCP."""
        given = dict(request.input)
        unmatched = [call for call in self._calls if call.request_id is None and call.name == request.name and not call.finished]
        call = (
            _first(unmatched, lambda call: request.call_id is not None and call.native_id == request.call_id)
            or _first(unmatched, lambda call: call.input == given)
            or _first(unmatched, lambda call: call.input is None)
        )
        if call is None:
            call = AppToolCall(request.call_id or request.id, request.name, native_id=request.call_id)
            self._calls.append(call)
        call.request_id = request.id
        call.input = given if call.input is None else call.input
        events = self._start(call) if call.native_id is not None else []
        return [*events, *self._resolve(call)]

    def request_cancelled(self, request_id: str) -> list[OutputEvent]:
        """The agent has cancelled a call's MCP request. The client is sent the call's end, unless it was asked for the result."""
        call = _first(self._calls, lambda call: call.request_id == request_id)
        if call is None or call.finished:
            return []
        call.finished = True
        return [] if call.announced or not call.sent else self._fail(call, CANCELLED)

    def tool_of(self, native_id: str) -> str | None:
        """The application-side tool of a call that the agent has reported as such, or has requested with this id."""
        call = _first(self._calls, lambda call: call.native_id == native_id)
        return None if call is None else call.name

    def report(self, native: ToolCallState, name: str) -> list[OutputEvent]:
        """The agent has reported a call: before, while or after it makes the MCP request."""
        # Only this class sends the call's events: a call that has started is not started again at the end of the run.
        native.started = True
        given = _input(native)
        call = _first(self._calls, lambda call: call.native_id == native.id)
        if call is None:
            unreported = [call for call in self._calls if call.native_id is None and call.name == name]
            call = _first(unreported, lambda call: given in (None, call.input)) or AppToolCall(native.id, name)
            if call not in self._calls:
                self._calls.append(call)
            call.native_id, call.id = native.id, call.id if call.sent else native.id
            self.reported = True
        call.input = given if call.input is None else call.input
        if native.status in ("completed", "failed"):
            # A call with an MCP request ends when that is answered. Without one the agent has ended the call itself.
            return self._fail(call, tool_output(native.content, {})) if not call.finished and call.request_id is None else []
        return self._start(call) if call.input is not None else []

    def reply(self, reply: Reply) -> list[OutputEvent]:
        """The client has answered a call; the answer is kept until the agent makes the MCP request."""
        call = _first(self._calls, lambda call: call.id == reply.call_id)
        if call is None or call.reply is not None:
            return []
        call.reply = reply
        return self._resolve(call)

    def cancel_all(self) -> list[OutputEvent]:
        """The run has ended or is interrupted: answers and ends every unfinished call."""
        events: list[OutputEvent] = []
        for call in self._calls:
            if not call.finished:
                if call.request_id is not None:
                    self._answers.append(ToolResponse(call.request_id, CANCELLED, is_error=True))
                events += self._fail(call, CANCELLED) if call.sent else []
                call.finished = True
        return events

    def announce_after(self) -> float | None:
        """Seconds without output after which `announce` is due; None while no call waits for the client."""
        new = [call for call in self._calls if call.request_id and not call.finished and not call.announced]
        if not new:
            return None
        if all(call.native_id is not None for call in new):
            return MATCHED_DELAY
        return UNMATCHED_DELAY if self.reported else UNREPORTED_DELAY

    def announce(self) -> tuple[list[OutputEvent], list[str]]:
        """The start events that the client does not have yet, and the ids of the calls whose results it is asked for."""
        self.reported = self.reported and all(call.native_id is not None for call in self._calls)
        known = [call for call in self._calls if call.request_id is not None or call.sent]
        events = [event for call in known for event in self._start(call)]
        unanswered = [call for call in known if not call.finished and call.reply is None]
        for call in unanswered:
            call.announced = True
        return events, [call.id for call in unanswered]

    def _start(self, call: AppToolCall) -> list[OutputEvent]:
        if call.sent or call.finished:
            return []
        call.sent = True
        return [ToolCall(id=call.id, name=call.name, status="started", input=call.input or {})]

    def _resolve(self, call: AppToolCall) -> list[OutputEvent]:
        """Answer the MCP request with the client's reply, once there are both."""
        if call.reply is None or call.request_id is None or call.finished:
            return []
        call.finished = True
        answer = _answer(call.request_id, call.reply)
        self._answers.append(answer)
        end: list[OutputEvent] = [ToolCall(id=call.id, name=call.name, status="failed" if answer.is_error else "completed")]
        if not answer.is_error:
            return end
        return [ToolResult(tool_call_id=call.id, output=answer.content, is_error=True), *end]

    def _fail(self, call: AppToolCall, output: Any) -> list[OutputEvent]:
        """End a call that gets no result of the client's."""
        started = self._start(call)
        call.finished = True
        failed = ToolResult(tool_call_id=call.id, output=output, is_error=True)
        return [*started, failed, ToolCall(id=call.id, name=call.name, status="failed")]


def _first(calls: Iterable[AppToolCall], matches: Callable[[AppToolCall], bool]) -> AppToolCall | None:
    return next((call for call in calls if matches(call)), None)


def _answer(request_id: str, reply: Reply) -> ToolResponse:
    if isinstance(reply, ToolReply):
        return ToolResponse(request_id, reply.content)
    assert isinstance(reply, PermissionReply)
    return ToolResponse(request_id, NO_RESULT if reply.allowed else denied(reply.reason), is_error=True)


def _input(native: ToolCallState) -> dict[str, Any] | None:
    """The call's input, if the agent reports it; it may be beside the names of server and tool."""
    given = native.raw_input
    if not isinstance(given, dict) or not given:
        return None
    # codex-acp 2.6.0.
    arguments = given.get("arguments")
    return arguments if given.keys() == {"server", "tool", "arguments"} and isinstance(arguments, dict) else given
