"""The tool calls of one claude turn: who decides on each, what the CLI has requested, and when it needs the client to continue.

The CLI requests a decision before every call (a PreToolUse hook), but not on all calls of a message at once: a call that may not
run beside others is requested when those before it are done, and delays those after it. So the calls that need the client are
collected from the message, and the client's replies are kept until the CLI requests them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from drivers.claude.content import output_of
from drivers.claude.control_messages import (
    NO_DECISION,
    call_result,
    hook_answer,
    mcp_result,
    permission_answer,
    success,
)
from drivers.claude.permissions import KEEP_PLANNING, PLAN_TOOL, Suggestion, answered_input, is_same_input, updates_of
from drivers.claude.tool_results import changes_of, exit_code_of
from drivers.claude.tools import Toolset, Wants
from drivers.codecs.tool_calls import Call
from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.events import AwaitedCall, Awaiting, OutputEvent, Subagent, ToolInput
from drivers.contract.messages import text_of
from drivers.contract.tool_denials import NO_RESULT, NOT_ENABLED, denied

AGENT_TOOLS = frozenset({"Agent", "Task"})
"""The tools that start a sub-agent. The model may call the tool by its alias `Task`, which the CLI lists (2.1.148, 2.1.329)."""
QUIET_SECONDS = 0.2
"""Seconds of silence after which the calls that the CLI has not begun wait for others. Of 21 calls of application-side tools, 20
began within 0.19 s of the line before them, and one after 0.53 s (2.1.329, two cores with ten busy processes). A call that begins
later does no harm: the client is told that it needs no answer."""

CHANGED = "The input of this call was changed before it ran, such as by a hook of the settings. It continues as another call."
"""The result, for the client, of a call whose input is another one when the CLI asks about it."""

STILL_PLANNING = "the user wants to keep planning"
"""Why a plan is not approved."""

Channel = Literal["hook", "permission", "mcp"]


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A control request of the CLI about a call. The response repeats `subject`: the input, or the JSON-RPC id.

    `suggestions` are the choices of a permission request.
    """

    channel: Channel
    request_id: str
    subject: Any
    suggestions: Sequence[Suggestion] = ()


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
        by_rules: Whether only a rule of the gateway keeps the call from the CLI's own decision.
        suggestions: The choices of the CLI's permission request.
        changes: How often its input has changed. The client has each as a call of its own.
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
    by_rules: bool = False
    suggestions: Sequence[Suggestion] = ()
    changes: int = 0

    @property
    def client_id(self) -> str:
        """The id of the call for the client."""
        return f"{self.id}-{self.changes + 1}" if self.changes else self.id

    @property
    def needs_client(self) -> bool:
        return self.wants is not None and self.reply is None

    @property
    def denial(self) -> str | None:
        """The result of the call if the client's reply keeps the CLI from running it."""
        if isinstance(self.reply, PermissionReply) and not self.reply.allowed:
            return denied(self.reply.reason or (STILL_PLANNING if self.reply.choice == KEEP_PLANNING else None))
        if isinstance(self.reply, ToolReply) and self.wants == "permission":
            # The client has run the tool itself.
            return text_of(self.reply.content) or denied()
        return None


class TurnCalls:
    """The calls of one turn.

    Parameters:
        tools: The tools of the session.
        folder: The working folder of the session, as a real path.
        write: Writes a line to the CLI.
    """

    def __init__(
        self,
        tools: Toolset | None = None,
        folder: str = "",
        write: Callable[[dict[str, Any]], None] = lambda line: None,
    ) -> None:
        self._tools, self._folder, self._write = tools or Toolset(), folder, write
        self._calls: dict[str, TurnCall] = {}
        self._cancelled = False

    # -- messages -------------------------------------------------------------------------------------------------------

    def start(self, block: dict[str, Any], parent: str | None) -> list[OutputEvent]:
        """The events of a `tool_use` block."""
        call = self._known(block["id"], block["name"], block["input"], parent)
        if call.started or (parent is not None and call.wants) or self._starts_when_asked(call):
            # A sub-agent's call that needs the client starts when the client is asked, as a call of its own.
            return []
        call.started = True
        if self._tools.is_answer(call.name):
            return []
        events: list[OutputEvent] = [self._event_call(call, parent).started()]
        if call.name in AGENT_TOOLS and parent is None:
            events.append(Subagent(id=call.id, status="started", label=_label(call.input)))
        return events

    def written(self, call_id: str, name: str, given: dict[str, Any]) -> list[OutputEvent]:
        """The event of a call that the model is writing, with the members of its input that are complete."""
        if (name == PLAN_TOOL and self._tools.cli_decides(name)) or self._tools.is_answer(name):
            # The call of a plan starts when its message is over.
            return []
        return [ToolInput(id=call_id, name=self._tools.client_name(name), input=given)]

    def end(self, block: dict[str, Any], parent: str | None, report: Any = None) -> list[OutputEvent]:
        """The events of a `tool_result` block. `report` is the `tool_use_result` of its line, if it is about this call only."""
        call = self._calls.pop(block["tool_use_id"], None) or TurnCall(block["tool_use_id"], "", None, parent, None, started=True)
        if self._tools.is_answer(call.name):
            return []
        failed = bool(block.get("is_error"))
        events: list[OutputEvent] = []
        if not call.started:
            events.append(self._event_call(call, parent).started())
        elif call.wants:
            parent = None
        event_call = self._event_call(call, parent)
        if not self._client_has_result(call):
            output = output_of(block.get("content", ""))
            code = exit_code_of(output, report, failed=failed) if call.name == "Bash" else None
            changes = () if failed else changes_of(report)
            events.append(event_call.result(call.denial or output, failed=failed, changes=changes, exit_code=code))
        events.append(event_call.finished(failed=failed))
        if call.name in AGENT_TOOLS and parent is None:
            events.append(Subagent(id=call.id, status="failed" if failed else "completed", label=_label(call.input)))
        return events

    def _client_has_result(self, call: TurnCall) -> bool:
        """Whether the result is the client's own, or there is none: the call was cancelled while it waited."""
        return isinstance(call.reply, ToolReply) or (self._cancelled and call.started and call.needs_client)

    # -- requests of the CLI --------------------------------------------------------------------------------------------

    def requested(self, call_id: str, name: str, given: Any, request: CallRequest, *, inner: bool = False) -> list[OutputEvent]:
        """The CLI requests a decision on a call, or its result. `inner`: it is a sub-agent's call.

        Returns the events of a call that starts with this, or continues as another.
        """
        call = self._calls.get(call_id) or self._known(call_id, name, given, "" if inner else None)
        call.begun = True
        call.requests.append(request)
        events: list[OutputEvent] = []
        if request.channel == "permission" and self._tools.cli_decides(name):
            events = self._cli_asks(call, request)
        elif request.channel == "permission" and call.wants == "permission" and name != PLAN_TOOL:
            # The CLI adds the plan to the input of that tool.
            events = self._changed(call, request.subject)
        self._respond(call)
        return events

    def _cli_asks(self, call: TurnCall, request: CallRequest) -> list[OutputEvent]:
        """The CLI asks about a call that its own rules do not permit."""
        if isinstance(call.reply, PermissionReply) and call.reply.decision == "leave":
            call.reply = None
        call.wants, call.by_rules = call.wants or "permission", False
        call.suggestions = request.suggestions
        if self._starts_when_asked(call) and not call.started:
            call.started = True
            # The CLI adds the plan, which is in a file of its own, to the input; else the model's input may have it.
            call.input = {**(call.input if isinstance(call.input, dict) else {}), **request.subject}
            return [self._event_call(call, None).started()]
        return self._changed(call, request.subject)

    def _changed(self, call: TurnCall, given: Any) -> list[OutputEvent]:
        """The events of a call that the CLI asks about with the input `given`, which a hook may have changed."""
        before = call.input
        if call.started and is_same_input(before, given, self._folder):
            return []
        call.input = given
        if not call.started or call.denial is not None:
            return []
        # A question about another input than the client has displayed is one about another call, which needs its own reply.
        call.reply = None
        last = Call(call.client_id, self._tools.client_name(call.name), before).ended(CHANGED, failed=True)
        call.changes += 1
        return [*last, self._event_call(call, None).started()]

    def _starts_when_asked(self, call: TurnCall) -> bool:
        """Whether the client gets the call only with the CLI's question, which has the complete input: a plan to approve."""
        return call.name == PLAN_TOOL and self._tools.cli_decides(call.name) and not call.by_rules and call.parent is None

    def deny(
        self, call_id: str, name: str, given: Any, request: CallRequest, reason: str, *, inner: bool = False
    ) -> list[OutputEvent]:
        """Deny a call that the CLI requests a decision on, or its result, also where the tool is trusted.

        Returns the events of the call with its first request. `inner`: it is a sub-agent's call.
        """
        call = self._calls.get(call_id) or self._known(call_id, name, given, "" if inner else None)
        first = call.reply is None
        call.wants = call.wants or "permission"
        call.reply = PermissionReply(call.client_id, "deny", reason)
        call.requests.append(request)
        self._respond(call)
        return self._event_call(call, None).denied(denied(reason)) if first else []

    def request_cancelled(self, request_id: str) -> None:
        """The CLI has cancelled a control request."""
        for call in self._calls.values():
            call.requests = [request for request in call.requests if request.request_id != request_id]

    def mcp_call_cancelled(self, rpc_id: Any) -> None:
        """The CLI has cancelled an MCP call, by its JSON-RPC id."""
        for call in self._calls.values():
            call.requests = [request for request in call.requests if (request.channel, request.subject) != ("mcp", rpc_id)]

    # -- replies of the client ------------------------------------------------------------------------------------------

    def reply(self, reply: Reply) -> None:
        """The client's reply: passed on at once if the CLI has requested it, else kept."""
        call = next((call for call in self._calls.values() if call.client_id == reply.call_id), None)
        if call is not None and call.reply is None:
            call.reply = reply
            self._respond(call)

    def cancel(self) -> None:
        """The turn is interrupted: the calls that wait for the client get no reply any more."""
        self._cancelled = True

    def silence(self) -> float | None:
        """Seconds of silence after which the CLI can do nothing more without the client: 0 if that is certain, None if it needs
        nothing of the client, or is busy."""
        if self._cancelled or not any(call.requests for call in self._calls.values()):
            return None
        free = [call for call in self._own if call.wants is None]
        running = [call for call in free if self._is_running(call)]
        if not any(call.needs_client for call in self._own):
            return QUIET_SECONDS if self._inner else None
        # Where the CLI decides, a call that it has not asked about may still be asked about; and one may run for long.
        if not all(self._tools.cli_decides(call.name) for call in running):
            return None
        return QUIET_SECONDS if running or not all(call.begun for call in free) else 0

    def question(self) -> list[OutputEvent]:
        """The events that ask the client. It is asked about sub-agents' calls apart from the model's own."""
        if any(call.needs_client for call in self._own):
            return [_awaiting([call for call in self._own if call.reply is None and not self._is_running(call)])]
        for call in self._inner:
            call.started = True
        # Also one that has started already: the client gets it as a call of its own.
        return [*(self._event_call(call, None).started() for call in self._inner), _awaiting(self._inner)]

    @property
    def _own(self) -> list[TurnCall]:
        """The calls of the model itself."""
        return [call for call in self._calls.values() if call.parent is None and not self._tools.is_answer(call.name)]

    @property
    def _inner(self) -> list[TurnCall]:
        """The calls of sub-agents that need the client."""
        return [call for call in self._calls.values() if call.parent is not None and call.needs_client]

    def _is_running(self, call: TurnCall) -> bool:
        """Whether a call that needs no client has begun. A sub-agent that waits for the client itself does not run."""
        blocked = call.name in AGENT_TOOLS and any(other.parent is not None and other.requests for other in self._calls.values())
        return call.wants is None and call.begun and not blocked

    # -------------------------------------------------------------------------------------------------------------------

    def _known(self, call_id: str, name: str, given: Any, parent: str | None) -> TurnCall:
        """The call of this id, which is new if its id is."""
        call = self._calls.get(call_id)
        if call is None:
            wants = self._tools.wants(name)
            by_rules = wants == "permission" and self._tools.cli_decides(name)
            call = self._calls[call_id] = TurnCall(call_id, name, given, parent, wants, by_rules=by_rules)
        elif parent and not call.parent:
            # The request of a sub-agent's call came before its message.
            call.parent = parent
        return call

    def _event_call(self, call: TurnCall, parent: str | None) -> Call:
        given = call.input
        subagent = (call.parent or None) if parent is None else None
        return Call(call.client_id, self._tools.client_name(call.name), given, _detail(given), parent, subagent)

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
        elif request.channel == "hook" and (
            call.wants == "answer" or (call.wants is None and self._tools.cli_decides(call.name))
        ):
            return NO_DECISION
        elif call.wants != "result":
            if call.needs_client:
                return None
            denial = call.denial
        if request.channel == "hook":
            by_cli = isinstance(call.reply, PermissionReply) and call.reply.decision == "leave"
            return NO_DECISION if by_cli and denial is None else hook_answer(denial)
        if denial is None and call.wants == "answer" and call.reply is not None:
            return permission_answer(None, answered_input(request.subject, call.reply))
        return permission_answer(denial, request.subject, updates_of(request.suggestions, call.reply))

    def _mcp(self, call: TurnCall, request: CallRequest) -> dict[str, Any] | None:
        if call.reply is None:
            return None
        if isinstance(call.reply, ToolReply):
            return mcp_result(request.subject, call_result(call.reply.content))
        return mcp_result(request.subject, call_result(call.denial or NO_RESULT, is_error=True))


def _awaiting(calls: list[TurnCall]) -> Awaiting:
    return Awaiting(
        calls=tuple(
            AwaitedCall(
                id=call.client_id,
                wants=call.wants or "permission",
                optional=call.wants is None,
                decided_by="cli" if call.by_rules else "gateway",
                choices=tuple(suggestion.choice for suggestion in call.suggestions),
            )
            for call in calls
        )
    )


DETAIL_FIELDS = ("command", "pattern", "file_path", "notebook_path", "url", "query", "description")
"""Fields of an input in the order that states best what the call does; the model's description is the last."""


def _detail(given: Any) -> str | None:
    if not isinstance(given, dict):
        return None
    return next((text for field in DETAIL_FIELDS if isinstance(text := given.get(field), str) and text), None)


def _label(given: Any) -> str:
    return str(given.get("description") or given.get("subagent_type") or "") if isinstance(given, dict) else ""
