"""The application-side tool calls of one ACP run: matches a call's MCP request with the agent's own reports of it. No I/O.

An agent calls these tools over MCP, and reports the same calls with `tool_call` updates. The protocol does not link the two, so
they are matched by the agent's call id where the MCP request has it, else by name and input, else by name and order. The client
is sent each call once, under the id that the agent reports.

What an agent reports permits nothing: only a call whose MCP request is pending needs no permission of the client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from drivers.acp.call_scope import scope_of
from drivers.acp.content import tool_output
from drivers.acp.mcp_servers import SERVER
from drivers.acp.tool_calls import CHANGED, ToolCallState
from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.events import OutputEvent, ToolCall, ToolResult
from drivers.contract.tool_denials import CANCELLED, NO_RESULT, denied
from drivers.contract.tool_server import ToolRequest, ToolResponse

MATCHED_DELAY, UNMATCHED_DELAY, UNREPORTED_DELAY = 0.05, 1.0, 0.1
"""Seconds without output after which the client is asked for the results: when the agent has reported every call, when it has not
yet, and when it is an agent that does not report its MCP calls."""
AGENT_KINDS = frozenset({"edit", "delete", "move", "search", "execute", "fetch", "switch_mode"})
"""Kinds that an agent reports for its own tools only. It may take an application-side tool for `read`, because the MCP server
declares these as read-only (copilot 1.0.102, qwen 0.24.4)."""

AppToolName = Callable[[ToolCallState], str | None]
"""The application-side tool that a call belongs to; None for the agent's own calls."""


def no_app_tools(_: ToolCallState) -> None:
    """For sessions without application-side tools."""


def by_title(names: Iterable[str]) -> AppToolName:
    """Recognizes the calls of these tools by the names of server and tool, in the call's title or its input.

    The whole title must be these names. A title that merely contains them, such as a command's text, may be the model's words.
    Calls of AGENT_KINDS, and those that read a file, are never recognized, since the model may write anything into their titles
    and inputs. Where the agent's program reports the name of the tool, that name decides.
    """
    known = {_normalized(name): name for name in names}

    def app_tool(call: ToolCallState) -> str | None:
        if call.tool:
            return known.get(_tool_name(call.tool))
        given = call.raw_input
        if call.kind in AGENT_KINDS or (call.kind == "read" and (call.paths or scope_of(given or {}, "/").paths)):
            return None
        if isinstance(given, dict) and given.get("server") == SERVER and given.get("tool") in known.values():
            return str(given["tool"])
        return known.get(_tool_name(call.title))

    return app_tool


def _tool_name(title: str) -> str:
    """The normalized name of the tool in a title that is the names of server and tool; empty for any other."""
    found = re.fullmatch(rf"(?:tool_)?(?:mcp_)?{SERVER}_(.+)|(.+)_{SERVER}_mcp_server", _normalized(title))
    return (found[1] or found[2]) if found else ""


def _normalized(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


@dataclass
class AppToolCall:
    """One call. `native_id` is the agent's id of it, `request_id` that of its MCP request, which has the `request_input` and may
    have the `request_call_id`; `input` is None until it is known.

    `sent`: the client has its start. `announced`: the client was asked for its result. `finished`: it has a result or was
    cancelled.
    """

    id: str
    name: str
    input: Any = None
    native_id: str | None = None
    request_id: str | None = None
    request_input: dict[str, Any] | None = None
    request_call_id: str | None = None
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
        call.request_id, call.request_input, call.request_call_id = request.id, given, request.call_id
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

    def is_requested(self, native: ToolCallState, name: str) -> bool:
        """Whether the MCP request of a reported call is pending. It has the call's id, or the same input and no other call."""
        given = {} if native.raw_input == {} else _input(native)
        pending = [call for call in self._calls if call.request_id is not None and call.name == name and not call.finished]
        return any(
            call.request_call_id == native.id
            or (call.request_call_id is None and call.native_id in (None, native.id) and call.request_input == given)
            for call in pending
        )

    def is_reported(self, native_id: str) -> bool:
        """Whether the agent has reported this call as an application-side call."""
        return any(call.native_id == native_id for call in self._calls)

    def remove_report(self, native_id: str) -> tuple[list[OutputEvent], bool]:
        """A reported call is not an application-side call. Returns the events that end it, and whether the client was sent it."""
        call = _first(self._calls, lambda call: call.native_id == native_id)
        if call is None:
            return [], False
        if call.request_id is not None:
            # The MCP request is a call of its own.
            call.native_id, call.id = None, call.id if call.sent else call.request_id
            return [], call.sent
        self._calls.remove(call)
        return (self._fail(call, CHANGED) if call.sent and not call.finished else []), call.sent

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
    return ToolResponse(request_id, NO_RESULT if reply.granted else denied(reply.reason), is_error=True)


def _input(native: ToolCallState) -> dict[str, Any] | None:
    """The call's input, if the agent reports it; some agents nest it beside the names of server and tool."""
    given = native.raw_input
    if not isinstance(given, dict) or not given:
        return None
    if "tool" in given and given.keys() <= {"server", "tool", "arguments"} and isinstance(given.get("arguments"), dict):
        return dict(given["arguments"])
    return given
