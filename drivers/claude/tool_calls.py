"""The tool calls of one claude turn: who decides on each, what the CLI has requested, and when it needs the client to continue.

The CLI requests a decision before every call (a PreToolUse hook), but not on all calls of a message at once: a call that may not
run beside others is requested when those before it are done, and delays those after it. So the calls that need the client are
collected from the message, and the client's replies are kept until the CLI requests them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from drivers.claude.content import output_of
from drivers.claude.control_messages import call_result, hook_answer, mcp_result, permission_answer, success
from drivers.claude.tools import Toolset, Wants
from drivers.codecs.tool_calls import Call
from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.events import AwaitedCall, Awaiting, OutputEvent, Subagent
from drivers.contract.messages import text_of
from drivers.contract.tool_denials import NO_RESULT, NOT_ENABLED, denied

AGENT_TOOLS = frozenset({"Agent", "Task"})
"""The tools that start a sub-agent; `Task` is the older name."""
IDLE_PINGS = 50
"""Pings that the CLI answers, without a line about calls, after which the calls that it has not begun wait for others. A call
that begins does so a few milliseconds after its line, a ping takes about half of one; a call that begins later does no harm."""

Channel = Literal["hook", "permission", "mcp"]


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A control request of the CLI about a call. The response repeats `subject`: the input, or the JSON-RPC id."""

    channel: Channel
    request_id: str
    subject: Any


@dataclass(slots=True)
class TurnCall:
    """A call of the model or of a sub-agent.

    Attributes:
        name: The native name of the tool.
        parent: The id of the call that started the sub-agent; None for a call of the model itself.
        wants: What the call needs from the client.
        started: Whether the client has the event of its start.
        begun: Whether the CLI has begun with it, by a request.
        requests: The requests of the CLI that have no response yet.
        reply: The client's reply.
    """

    id: str
    name: str
    input: Any
    parent: str | None
    wants: Wants | None
    started: bool = False
    begun: bool = False
    requests: list[CallRequest] = field(default_factory=list)
    reply: Reply | None = None

    @property
    def needs_client(self) -> bool:
        return self.wants is not None and self.reply is None

    @property
    def denial(self) -> str | None:
        """The result of the call if the client's reply keeps the CLI from running it."""
        if isinstance(self.reply, PermissionReply) and not self.reply.granted:
            return denied(self.reply.reason)
        if isinstance(self.reply, ToolReply) and self.wants != "result":
            # The client has run the tool itself.
            return text_of(self.reply.content) or denied()
        return None


class TurnCalls:
    """The calls of one turn.

    Parameters:
        tools: The tools of the session.
        write: Writes a line to the CLI.
        ping: Sends the CLI a request that it answers at once; `ping_answered` is called then, or else `ping_unanswered`.

    Attributes:
        ping_pending: Whether a ping has no answer yet.
    """

    def __init__(
        self,
        tools: Toolset | None = None,
        write: Callable[[dict[str, Any]], None] = lambda line: None,
        ping: Callable[[], None] = lambda: None,
    ) -> None:
        self._tools = tools or Toolset()
        self._write, self._ping = write, ping
        self._calls: dict[str, TurnCall] = {}
        self._cancelled = False
        self._idle_pings = 0
        self.ping_pending = False

    # -- messages -------------------------------------------------------------------------------------------------------

    def start(self, block: dict[str, Any], parent: str | None) -> list[OutputEvent]:
        """The events of a `tool_use` block."""
        call = self._known(block["id"], block["name"], block["input"], parent)
        if call.started or (parent is not None and call.wants):
            # A sub-agent's call that needs the client starts when the client is asked, as a call of its own.
            return []
        call.started = True
        events: list[OutputEvent] = [self._event_call(call, parent).started()]
        if call.name in AGENT_TOOLS and parent is None:
            events.append(Subagent(id=call.id, status="started", label=_label(call.input)))
        return events

    def end(self, block: dict[str, Any], parent: str | None) -> list[OutputEvent]:
        """The events of a `tool_result` block."""
        call = self._calls.pop(block["tool_use_id"], None) or TurnCall(block["tool_use_id"], "", None, parent, None, started=True)
        self._idle_pings = 0
        failed = bool(block.get("is_error"))
        events: list[OutputEvent] = []
        if not call.started:
            events.append(self._event_call(call, parent).started())
        elif call.wants:
            parent = None
        event_call = self._event_call(call, parent)
        if not self._client_has_result(call):
            events.append(event_call.result(call.denial or output_of(block.get("content", "")), failed=failed))
        events.append(event_call.finished(failed=failed))
        if call.name in AGENT_TOOLS and parent is None:
            events.append(Subagent(id=call.id, status="failed" if failed else "completed", label=_label(call.input)))
        return events

    def _client_has_result(self, call: TurnCall) -> bool:
        """Whether the result is the client's own, or there is none: the call was cancelled while it waited."""
        return isinstance(call.reply, ToolReply) or (self._cancelled and call.started and call.needs_client)

    # -- requests of the CLI --------------------------------------------------------------------------------------------

    def requested(self, call_id: str, name: str, given: Any, request: CallRequest, *, inner: bool = False) -> None:
        """The CLI requests a decision on a call, or its result. `inner`: it is a sub-agent's call."""
        call = self._calls.get(call_id) or self._known(call_id, name, given, "" if inner else None)
        call.begun = True
        call.requests.append(request)
        self._idle_pings = 0
        self._respond(call)

    def request_cancelled(self, request_id: str) -> None:
        """The CLI has cancelled a control request."""
        for call in self._calls.values():
            call.requests = [request for request in call.requests if request.request_id != request_id]

    def mcp_call_cancelled(self, rpc_id: Any) -> None:
        """The CLI has cancelled an MCP call, by its JSON-RPC id."""
        for call in self._calls.values():
            call.requests = [request for request in call.requests if (request.channel, request.subject) != ("mcp", rpc_id)]

    def ping_answered(self) -> None:
        self.ping_pending = False
        self._idle_pings += 1

    def ping_unanswered(self) -> None:
        """The CLI is silent and has not answered a ping: it begins no more calls."""
        self.ping_pending = False
        self._idle_pings = IDLE_PINGS

    # -- replies of the client ------------------------------------------------------------------------------------------

    def reply(self, reply: Reply) -> None:
        """The client's reply: passed on at once if the CLI has requested it, else kept."""
        call = self._calls.get(reply.call_id)
        if call is not None and call.reply is None:
            call.reply = reply
            self._respond(call)

    def cancel(self) -> None:
        """The turn is interrupted: the calls that wait for the client get no reply any more."""
        self._cancelled = True

    def awaiting(self) -> list[OutputEvent]:
        """The events that ask the client, once the CLI can do nothing more without it; else nothing.

        To be called between messages only, when all calls of a message are known.
        """
        if self._cancelled or not any(call.requests for call in self._calls.values()):
            return []
        own = [call for call in self._calls.values() if call.parent is None]
        if not any(call.needs_client for call in own):
            return self._awaiting_inner()
        free = [call for call in own if call.wants is None]
        if any(call.begun and not self._is_blocked(call) for call in free):
            return []
        if not all(call.begun for call in free) and not self._is_idle():
            return []
        return [_awaiting([call for call in own if call.reply is None])]

    def _awaiting_inner(self) -> list[OutputEvent]:
        """The client is asked about sub-agents' calls apart from the model's own."""
        pending = [call for call in self._calls.values() if call.parent is not None and call.needs_client]
        if not pending or not self._is_idle():
            return []
        for call in pending:
            call.started = True
        return [*(self._event_call(call, None).started() for call in pending), _awaiting(pending)]

    def _is_blocked(self, call: TurnCall) -> bool:
        """Whether the call is a sub-agent that waits for the client itself."""
        return call.name in AGENT_TOOLS and any(other.parent is not None and other.requests for other in self._calls.values())

    def _is_idle(self) -> bool:
        """Whether the CLI begins no more calls. Sends a ping to find out."""
        if self._idle_pings >= IDLE_PINGS:
            return True
        if not self.ping_pending:
            self.ping_pending = True
            self._ping()
        return False

    # -------------------------------------------------------------------------------------------------------------------

    def _known(self, call_id: str, name: str, given: Any, parent: str | None) -> TurnCall:
        """The call of this id, which is new if its id is."""
        call = self._calls.get(call_id)
        if call is None:
            call = self._calls[call_id] = TurnCall(call_id, name, given, parent, self._tools.wants(name))
            self._idle_pings = 0
        return call

    def _event_call(self, call: TurnCall, parent: str | None) -> Call:
        given = call.input
        detail = given.get("description") or given.get("command") or given.get("file_path") if isinstance(given, dict) else None
        return Call(call.id, self._tools.client_name(call.name), given, detail, parent)

    def _respond(self, call: TurnCall) -> None:
        """Respond to the requests about a call whose response is known now."""
        unanswered: list[CallRequest] = []
        for request in call.requests:
            response = self._mcp(call, request) if request.channel == "mcp" else self._permission(call, request)
            if response is None:
                unanswered.append(request)
            else:
                self._write(success(request.request_id, response))
        call.requests = unanswered

    def _permission(self, call: TurnCall, request: CallRequest) -> dict[str, Any] | None:
        denial = None
        if not self._tools.listed(call.name):
            denial = denied(NOT_ENABLED)
        elif call.wants != "result":
            if call.needs_client:
                return None
            denial = call.denial
        return hook_answer(denial) if request.channel == "hook" else permission_answer(denial, request.subject)

    def _mcp(self, call: TurnCall, request: CallRequest) -> dict[str, Any] | None:
        if call.reply is None:
            return None
        if isinstance(call.reply, ToolReply):
            return mcp_result(request.subject, call_result(call.reply.content))
        return mcp_result(request.subject, call_result(call.denial or NO_RESULT, is_error=True))


def _awaiting(calls: list[TurnCall]) -> Awaiting:
    return Awaiting(calls=tuple(AwaitedCall(id=c.id, wants=c.wants or "permission", optional=c.wants is None) for c in calls))


def _label(given: Any) -> str:
    return str(given.get("description") or given.get("subagent_type") or "") if isinstance(given, dict) else ""
