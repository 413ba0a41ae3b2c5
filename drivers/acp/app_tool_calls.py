"""The application-side calls of an ACP run: what comes of them by MCP, and what the agent tells of the same calls; pure.

The protocol has no link between the two, so they are paired by the agent's own id where MCP has it, else by name and input,
else by name and order. A call is shown once, under the id that the agent tells; what comes over the agent's output before that
was said before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from drivers.acp.content import output_of
from drivers.acp.tool_calls import Call
from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.events import OutputEvent, ToolCall, ToolResult
from drivers.contract.tool_server import ToolRequest, ToolResponse

DENIED, CANCELLED = "Tool call denied", "Tool call cancelled"
NO_RESULT = "The application allowed this call, but gave no result."
PAIRED, UNPAIRED, UNTOLD = 0.05, 1.0, 0.1
"""Seconds of silence after which the calls that have come are all: once the agent has told of each, before, and of an agent that
tells nothing of calls by MCP."""

AppTool = Callable[[Call], str | None]
"""The name of the application's tool that a call is of; None for the agent's own calls."""


def of_none(_: Call) -> None:
    """For sessions without such tools."""


@dataclass
class AppCall:
    """One call. `native`: the agent's id of it; `request`: MCP's, while it waits; `input` is None until it is known."""

    id: str
    name: str
    input: Any = None
    native: str | None = None
    request: str | None = None
    reply: Reply | None = None
    shown: bool = False
    announced: bool = False
    over: bool = False


class AppCalls:
    """One run's. Answers go to `answers`."""

    def __init__(self, answers: list[ToolResponse], tells: bool = True) -> None:
        self._answers = answers
        self._calls: list[AppCall] = []
        self.tells = tells

    # -- what comes ---------------------------------------------------------------------------------------------------

    def called(self, request: ToolRequest) -> list[OutputEvent]:
        """The agent calls a tool by MCP."""
        given = dict(request.input)
        waiting = [call for call in self._calls if call.request is None and call.name == request.name and not call.over]
        call = (
            _first(waiting, lambda call: request.call_id is not None and call.native == request.call_id)
            or _first(waiting, lambda call: call.input == given)
            or _first(waiting, lambda call: call.input is None)
        )
        if call is None:
            call = AppCall(request.call_id or request.id, request.name, native=request.call_id)
            self._calls.append(call)
        call.request = request.id
        call.input = given if call.input is None else call.input
        events = self._show(call) if call.native is not None else []
        return [*events, *self._settle(call)]

    def withdrawn(self, request_id: str) -> list[OutputEvent]:
        """The agent waits for a call no more. The client is told at once, unless it is just asked for the result."""
        call = _first(self._calls, lambda call: call.request == request_id)
        if call is None or call.over:
            return []
        call.over = True
        return [] if call.announced or not call.shown else self._end(call, CANCELLED)

    def told(self, native: Call, name: str) -> list[OutputEvent]:
        """The agent tells of a call, whether it makes it now, has made it or will."""
        # It is told of here, and nowhere else.
        native.started = True
        given = _input(native)
        call = _first(self._calls, lambda call: call.native == native.id)
        if call is None:
            unpaired = [call for call in self._calls if call.native is None and call.name == name]
            call = _first(unpaired, lambda call: given in (None, call.input)) or AppCall(native.id, name)
            if call not in self._calls:
                self._calls.append(call)
            call.native, call.id = native.id, call.id if call.shown else native.id
            self.tells = True
        call.input = given if call.input is None else call.input
        if native.status in ("completed", "failed"):
            # One that was answered has ended with its answer; this one never came.
            return self._end(call, output_of(native.content, {})) if not call.over and call.request is None else []
        return self._show(call) if call.input is not None else []

    def reply(self, reply: Reply) -> list[OutputEvent]:
        """The client's answer; kept if the call has not come yet."""
        call = _first(self._calls, lambda call: call.id == reply.call_id)
        if call is None or call.reply is not None:
            return []
        call.reply = reply
        return self._settle(call)

    def give_up(self) -> list[OutputEvent]:
        """The run is over, or stopped: whatever waits is answered, and ends."""
        events: list[OutputEvent] = []
        for call in self._calls:
            if not call.over:
                if call.request is not None:
                    self._answers.append(ToolResponse(call.request, CANCELLED, is_error=True))
                events += self._end(call, CANCELLED) if call.shown else []
                call.over = True
        return events

    # -- whose turn it is ---------------------------------------------------------------------------------------------

    def debounce_seconds(self) -> float | None:
        """Seconds of silence until the client is to be asked; None if nothing waits for it."""
        new = [call for call in self._calls if call.request and not call.over and not call.announced]
        if not new:
            return None
        if all(call.native is not None for call in new):
            return PAIRED
        return UNPAIRED if self.tells else UNTOLD

    def announce(self) -> tuple[list[OutputEvent], list[str]]:
        """The starts that the client has not seen, and the ids of all calls that it is to answer."""
        self.tells = self.tells and all(call.native is not None for call in self._calls)
        came = [call for call in self._calls if call.request is not None or call.shown]
        events = [event for call in came for event in self._show(call)]
        wanted = [call for call in came if not call.over and call.reply is None]
        for call in wanted:
            call.announced = True
        return events, [call.id for call in wanted]

    # -----------------------------------------------------------------------------------------------------------------

    def _show(self, call: AppCall) -> list[OutputEvent]:
        if call.shown or call.over:
            return []
        call.shown = True
        return [ToolCall(id=call.id, name=call.name, status="started", input=call.input or {})]

    def _settle(self, call: AppCall) -> list[OutputEvent]:
        """Pass an answer on, once there is one and somebody waits for it."""
        if call.reply is None or call.request is None or call.over:
            return []
        call.over = True
        answer = _answer(call.request, call.reply)
        self._answers.append(answer)
        ended: list[OutputEvent] = [ToolCall(id=call.id, name=call.name, status="failed" if answer.is_error else "completed")]
        if not answer.is_error:
            return ended
        return [ToolResult(tool_call_id=call.id, output=answer.content, is_error=True), *ended]

    def _end(self, call: AppCall, said: Any) -> list[OutputEvent]:
        """A call that came to nothing; the agent says why."""
        started = self._show(call)
        call.over = True
        failed = ToolResult(tool_call_id=call.id, output=said, is_error=True)
        return [*started, failed, ToolCall(id=call.id, name=call.name, status="failed")]


def _first(calls: Iterable[AppCall], matches: Callable[[AppCall], bool]) -> AppCall | None:
    return next((call for call in calls if matches(call)), None)


def _answer(request_id: str, reply: Reply) -> ToolResponse:
    if isinstance(reply, ToolReply):
        return ToolResponse(request_id, reply.content)
    assert isinstance(reply, PermissionReply)
    why = f"{DENIED}: {reply.reason}" if reply.reason else DENIED
    return ToolResponse(request_id, NO_RESULT if reply.granted else why, is_error=True)


def _input(native: Call) -> dict[str, Any] | None:
    """What a call is given, if the agent tells it; some put it beside the names of server and tool."""
    given = native.raw_input
    if not isinstance(given, dict) or not given:
        return None
    if "tool" in given and isinstance(given.get("arguments"), dict):
        return dict(given["arguments"])
    return given
