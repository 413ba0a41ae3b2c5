"""The tool calls of one claude turn: who must act on each, what the CLI has asked, and when it can do nothing more without
the client. Pure; what it answers goes through `write`.

The CLI asks before every call (a PreToolUse hook), but not about all calls of a message at once: a call that may not run
beside others is asked about when those before it are done, and holds up those after it. So the calls that need the client
are gathered from the message, and the client's answers wait here until they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from drivers.claude.content import output_of
from drivers.claude.control_channel import call_result, hook_answer, mcp_result, permission_answer, success
from drivers.claude.tools import Toolset, Wants
from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.events import AwaitedCall, Awaiting, OutputEvent, Subagent, ToolCall, ToolResult
from drivers.contract.messages import text_of

AGENT_TOOLS = frozenset({"Agent", "Task"})
"""The tools that start a sub-agent; `Task` is the older name."""
NOT_ENABLED = "This tool is not enabled in this session."
DENIED = "Tool call denied"
NO_RESULT = "The application allowed this call, but gave no result."
SETTLED = 50
"""Round trips without news after which the calls that the CLI has not begun wait for others. A call that begins does so a few
milliseconds after its line, a round trip takes about half of one; nothing breaks if one begins later."""

Channel = Literal["hook", "permission", "mcp"]


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A control request about a call. `subject` is what the answer repeats: the input, or the JSON-RPC id."""

    channel: Channel
    request_id: str
    subject: Any


@dataclass(slots=True)
class Call:
    """A call of the model's, or of a sub-agent's (`parent`). `shown`: the client has seen it start."""

    id: str
    name: str
    given: Any
    parent: str | None
    wants: Wants | None
    shown: bool = False
    begun: bool = False
    asks: list[IdempotencyKey] = field(default_factory=list)
    reply: Reply | None = None

    @property
    def needs_client(self) -> bool:
        return self.wants is not None and self.reply is None

    @property
    def refusal(self) -> str | None:
        """Why the client will not have it run."""
        if isinstance(self.reply, PermissionReply) and not self.reply.granted:
            return f"{DENIED}: {self.reply.reason}" if self.reply.reason else DENIED
        if isinstance(self.reply, ToolReply) and self.wants != "result":
            # The client has done it in its own way.
            return text_of(self.reply.content) or DENIED
        return None


class Calls:
    """One turn's. `ping` asks the CLI for a sign of life, which comes back as `ponged`."""

    def __init__(
        self,
        tools: Toolset | None = None,
        write: Callable[[dict[str, Any]], None] = lambda line: None,
        ping: Callable[[], None] = lambda: None,
    ) -> None:
        self._tools = tools or Toolset()
        self._write, self._ping = write, ping
        self._calls: dict[str, Call] = {}
        self._given_up = False
        self._quiet = 0
        self._pinging = False

    # -- what the stream tells ------------------------------------------------------------------------------------------

    def start(self, block: dict[str, Any], parent: str | None) -> list[OutputEvent]:
        """A call was read."""
        call = self._note(block["id"], block["name"], block["input"], parent)
        if call.shown or (parent is not None and call.wants):
            # A sub-agent's call that needs the client is shown when it is asked about, as a call of its own.
            return []
        call.shown = True
        events: list[OutputEvent] = [_started(call, self._tools, parent)]
        if call.name in AGENT_TOOLS and parent is None:
            events.append(Subagent(id=call.id, status="started", label=_label(call.given)))
        return events

    def end(self, block: dict[str, Any], parent: str | None) -> list[OutputEvent]:
        """A call's result was read."""
        call = self._calls.pop(block["tool_use_id"], None) or Call(block["tool_use_id"], "", None, parent, None, shown=True)
        self._quiet = 0
        events: list[OutputEvent] = []
        failed = bool(block.get("is_error"))
        status: Literal["completed", "failed"] = "failed" if failed else "completed"
        if not call.shown:
            events.append(_started(call, self._tools, parent))
        elif call.wants:
            parent = None
        if not self._is_clients(call):
            output = call.refusal or output_of(block.get("content", ""))
            events.append(ToolResult(tool_call_id=call.id, output=output, is_error=failed, parent_id=parent))
        events.append(ToolCall(id=call.id, name=self._tools.shown(call.name), status=status, parent_id=parent))
        if call.name in AGENT_TOOLS and parent is None:
            events.append(Subagent(id=call.id, status=status, label=_label(call.given)))
        return events

    def _is_clients(self, call: Call) -> bool:
        """Whether the result is the client's own, or none: the call was given up while it waited."""
        return isinstance(call.reply, ToolReply) or (self._given_up and call.shown and call.needs_client)

    # -- what the CLI asks ----------------------------------------------------------------------------------------------

    def asked(self, call_id: str, name: str, given: Any, ask: IdempotencyKey, *, inner: bool = False) -> None:
        """The CLI wants to know whether a call may run, or its result. `inner`: a sub-agent's."""
        call = self._calls.get(call_id) or self._note(call_id, name, given, "" if inner else None)
        call.begun = True
        call.asks.append(ask)
        self._quiet = 0
        self._answer(call)

    def withdrawn(self, request_id: str) -> None:
        """The CLI does not want to know any more."""
        for call in self._calls.values():
            call.asks = [ask for ask in call.asks if ask.request_id != request_id]

    def uncalled(self, rpc_id: Any) -> None:
        """The same, by the id of an MCP call."""
        for call in self._calls.values():
            call.asks = [ask for ask in call.asks if (ask.channel, ask.subject) != ("mcp", rpc_id)]

    def ponged(self) -> None:
        self._pinging = False
        self._quiet += 1

    # -- what the client says -------------------------------------------------------------------------------------------

    def reply(self, reply: Reply) -> None:
        """The client's answer; passed on at once if the CLI has asked, kept for later if not."""
        call = self._calls.get(reply.call_id)
        if call is not None and call.reply is None:
            call.reply = reply
            self._answer(call)

    def give_up(self) -> None:
        """The turn is stopped: the calls that wait for the client get no answer any more."""
        self._given_up = True

    # -- whose turn it is -----------------------------------------------------------------------------------------------

    def awaiting(self) -> list[OutputEvent]:
        """The events that hand over to the client, once the CLI can do nothing more without it; else nothing.

        To be asked between messages only: then all calls of a message are known.
        """
        if self._given_up or not any(call.asks for call in self._calls.values()):
            return []
        own = [call for call in self._calls.values() if call.parent is None]
        if not any(call.needs_client for call in own):
            return self._awaiting_inner()
        free = [call for call in own if call.wants is None]
        if any(call.begun and not self._is_held(call) for call in free) or not self._settled(all(call.begun for call in free)):
            return []
        return [_awaiting([call for call in own if call.reply is None])]

    def _awaiting_inner(self) -> list[OutputEvent]:
        """Sub-agents' calls are asked about by themselves: their own message is then the last one."""
        open_calls = [call for call in self._calls.values() if call.parent is not None and call.needs_client]
        if not open_calls or not self._settled(False):
            return []
        for call in open_calls:
            call.shown = True
        return [*(_started(call, self._tools, None) for call in open_calls), _awaiting(open_calls)]

    def _is_held(self, call: Call) -> bool:
        """Whether a sub-agent waits for the client itself."""
        return call.name in AGENT_TOOLS and any(other.parent is not None and other.asks for other in self._calls.values())

    def _settled(self, at_once: bool) -> bool:
        if at_once or self._quiet >= SETTLED:
            return True
        if not self._pinging:
            self._pinging = True
            self._ping()
        return False

    # -------------------------------------------------------------------------------------------------------------------

    def _note(self, call_id: str, name: str, given: Any, parent: str | None) -> Call:
        call = self._calls.get(call_id)
        if call is None:
            call = self._calls[call_id] = Call(call_id, name, given, parent, self._tools.wants(name))
            self._quiet = 0
        return call

    def _answer(self, call: Call) -> None:
        held: list[IdempotencyKey] = []
        for ask in call.asks:
            response = self._mcp(call, ask) if ask.channel == "mcp" else self._permission(call, ask)
            if response is None:
                held.append(ask)
            else:
                self._write(success(ask.request_id, response))
        call.asks = held

    def _permission(self, call: Call, ask: IdempotencyKey) -> dict[str, Any] | None:
        refusal = None
        if not self._tools.listed(call.name):
            refusal = NOT_ENABLED
        elif call.wants != "result":
            if call.needs_client:
                return None
            refusal = call.refusal
        return hook_answer(refusal) if ask.channel == "hook" else permission_answer(refusal, ask.subject)

    def _mcp(self, call: Call, ask: IdempotencyKey) -> dict[str, Any] | None:
        if call.reply is None:
            return None
        if isinstance(call.reply, ToolReply):
            return mcp_result(ask.subject, call_result(call.reply.content))
        return mcp_result(ask.subject, call_result(call.refusal or NO_RESULT, is_error=True))


def _started(call: Call, tools: Toolset, parent: str | None) -> ToolCall:
    given = call.given
    detail = given.get("description") or given.get("command") or given.get("file_path") if isinstance(given, dict) else None
    name = tools.shown(call.name)
    return ToolCall(id=call.id, name=name, status="started", input=given, detail=detail, parent_id=parent)


def _awaiting(calls: list[Call]) -> Awaiting:
    return Awaiting(calls=tuple(AwaitedCall(id=c.id, wants=c.wants or "permission", optional=c.wants is None) for c in calls))


def _label(given: Any) -> str:
    return str(given.get("description") or given.get("subagent_type") or "") if isinstance(given, dict) else ""
