"""The client's end of the Agent Client Protocol, version 1: one codec per agent process, one session per codec.

Every request of the agent gets a response; an agent waits for it without a time limit.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from acp.schema import (
    PromptRequest,
    PromptResponse,
    RequestPermissionRequest,
    SessionNotification,
    TerminalToolCallContent,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
)
from acp.schema import ToolCall as NativeCall

from drivers.acp.agent_profile import AgentProfile
from drivers.acp.app_tool_calls import AppToolCalls
from drivers.acp.content import has_image
from drivers.acp.handshake import Handshake, SessionRequest
from drivers.acp.permissions import (
    CANCELLED_OUTCOME,
    CLIENT_METHODS,
    DENIED,
    NOT_ENABLED,
    RUN_CANCELLED,
    Grants,
    PendingApproval,
    permission_request,
    permission_response,
    service_output,
)
from drivers.acp.questions import CANCELLED, DECLINED, QUESTION_TOOL, FormField, fields_of, questions_of, response_of
from drivers.acp.tool_calls import ToolCalls, ToolCallState
from drivers.acp.updates import IGNORED_UPDATES, SESSION_UPDATES, RunUpdates, SessionCost, SessionUpdates, notice_of
from drivers.codecs.asking_codec import AskingCodec
from drivers.codecs.deduplication import Deduplicator
from drivers.codecs.json_rpc import JsonRpcPeer, RpcError, is_response
from drivers.codecs.tool_calls import Call
from drivers.contract.agent import PermissionReply, Prompt, Reply
from drivers.contract.capabilities import (
    SupportsClientRequests,
    SupportsClosing,
    SupportsMcpTools,
    SupportsModes,
)
from drivers.contract.client_services import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    READ,
    RESOURCE_NOT_FOUND,
    TERMINAL_METHODS,
    WRITE,
    ClientRequest,
    ClientResponse,
)
from drivers.contract.errors import DriverError
from drivers.contract.events import (
    AgentToken,
    AwaitedCall,
    Awaiting,
    Error,
    ModeChanged,
    NativeSession,
    OutputEvent,
    SessionEnd,
    Thinking,
    ToolCall,
    Usage,
)
from drivers.contract.messages import text_of
from drivers.contract.tool_denials import NO_RUN, denied
from drivers.contract.tool_server import ToolRequest, ToolResponse

STREAMED_INPUT_DELAY = 0.5
"""Seconds without output after which a pending call is reported; until then the agent may be streaming its input."""

ELICITATION = "elicitation/create"
"""The request by which the agent asks its user."""

RUN_RESULTS = {
    "end_turn": SessionEnd(exit_code=0),
    "max_tokens": SessionEnd(exit_code=1, stop_reason="max_tokens"),
    "refusal": SessionEnd(exit_code=1, stop_reason="refusal"),
    "cancelled": SessionEnd(exit_code=130, stop_reason="cancelled"),
}
"""The run's result by the protocol's stop reason."""


class AcpCodec(AskingCodec, SupportsClientRequests, SupportsMcpTools, SupportsModes, SupportsClosing):
    """Translates one session.

    Parameters:
        request: The session to open.
        grants: The tools of the session.
        profile: What is known about the agent; by default nothing.
        task: A prompt to send as soon as the session is open. The codec then runs this task only.
        costs: What the agent has reported of the costs of sessions, by their ids, which all codecs of a driver share.
        changes_modes: Whether the agent's mode, `request.mode` at first, can be changed, and a change by itself is reported.
    """

    def __init__(
        self,
        request: SessionRequest,
        grants: Grants,
        profile: AgentProfile | None = None,
        task: Prompt | None = None,
        *,
        changes_modes: bool = False,
        costs: MutableMapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self._changes_modes, self._mode = changes_modes, request.mode
        self._profile = profile or AgentProfile()
        self.title = self._profile.title
        self._grants, self._task = grants, task
        self._cwd = request.cwd
        self._methods = _declared_methods(request)
        self._calls = self._new_calls()
        self._app_calls = AppToolCalls(self.tool_responses)
        self._approvals: list[PendingApproval] = []
        self._streaming: ToolCallState | None = None
        self._released: list[OutputEvent] = []
        self._service_calls = 0
        self._approved_services: dict[int | str, ToolCallState] = {}
        self._questions: dict[str, tuple[int | str, list[FormField]]] = {}
        self._asked: list[str] = []
        self._question_calls = 0
        self._interrupted = self._task_done = False
        self._held_end: tuple[dict[str, Any] | None, RpcError | None] | None = None
        self._run_updates = RunUpdates()
        self._deduplicator = Deduplicator()
        self._rpc = JsonRpcPeer(self.outbox)
        handshake = Handshake(self._rpc, request, self._session_ready, self._session_failed)
        self.session, self.drain, self._replay = handshake.session, handshake.drain, handshake.replay
        self._cost = SessionCost({} if costs is None else costs, request.resume)
        self._session_updates = SessionUpdates(self.session, self._profile)

    delta_text = dict.fromkeys((AgentToken, Thinking), ("params", "update", "content", "text"))

    # -- from the gateway ---------------------------------------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        self.phase = "running"
        self._calls, self._run_updates, self._interrupted = self._new_calls(), RunUpdates(), False
        self._app_calls = AppToolCalls(self.tool_responses, self._app_calls.reported)
        self._approved_services.clear()
        self._questions.clear()
        self._asked.clear()
        self._streaming = self._held_end = None
        self.pending += self._deduplicator.changed(NativeSession(native_id=self.native_id, model=self.session.model))
        if has_image(prompt.content) and not self.session.images:
            self.phase, self._task_done = "ready", self._task is not None
            self.pending += [Error(message=f"{self.title} takes no images"), SessionEnd(exit_code=1, stop_reason="error")]
            return
        request = PromptRequest(session_id=self.native_id or "", prompt=self._profile.prompt(prompt))
        self._rpc.request("session/prompt", request, self._prompt_ended)

    def reply(self, reply: Reply) -> None:
        if reply.call_id not in self._unanswered:
            return
        if (question := self._questions.pop(reply.call_id, None)) is not None:
            self.pending += self._question_answered(reply, *question)
        elif self._approvals and self._approvals[0].call.id == reply.call_id:
            granted = isinstance(reply, PermissionReply) and reply.allowed
            reason = reply.reason if isinstance(reply, PermissionReply) else text_of(reply.content)
            self.pending += self._answered(self._approvals.pop(0), granted, reason or DENIED)
        else:
            self.pending += self._app_calls.reply(reply)
        self.answered(reply.call_id, [])
        if self.phase == "running" and self._held_end is not None:
            self.pending += self._prompt_ended(*self._held_end)

    def tool_requested(self, request: ToolRequest) -> None:
        if self.phase not in ("running", "waiting") or self._interrupted:
            reason = RUN_CANCELLED if self._interrupted else denied(NO_RUN)
            self.tool_responses.append(ToolResponse(request.id, reason, is_error=True))
            if not self._interrupted:
                self.pending += Call(request.call_id or request.id, request.name, dict(request.input)).denied(reason)
            return
        self._released += self._release_streamed()
        if self._calls.has_started(request.call_id) and self._app_calls.tool_of(str(request.call_id)) is None:
            # The client was sent that call as one of the agent's own.
            request = replace(request, call_id=None)
        self.pending += self.deliver(self._app_calls.requested(request))

    def tool_cancelled(self, request_id: str) -> None:
        self.pending += self.deliver(self._app_calls.request_cancelled(request_id))

    def set_mode(self, mode: str) -> bool:
        if not self._changes_modes or mode not in self.session.modes or self.phase == "starting":
            return False
        before, self._mode = self._mode, mode
        params = {"sessionId": self.native_id or "", "modeId": mode}
        self._rpc.request("session/set_mode", params, lambda _, error: self._mode_set(before, error))
        return True

    def _mode_set(self, before: str, error: RpcError | None) -> list[OutputEvent]:
        if error is None:
            return []
        self._mode = before
        return [ModeChanged(mode=before)]

    def _mode_reported(self, mode: str) -> list[OutputEvent]:
        """The agent has changed its mode by itself, such as by an answer that allows all edits."""
        if not self._changes_modes or mode == self._mode or mode not in self.session.modes:
            return []
        self._mode = mode
        return [ModeChanged(mode=mode)]

    def silence(self) -> float | None:
        if self._interrupted:
            return None
        if self._approvals or self._questions.keys() - set(self._asked):
            # Others may follow, but it is not known how many: each is asked about in a turn of its own.
            return 0
        return STREAMED_INPUT_DELAY if self._streaming is not None else self._app_calls.announce_after()

    def question(self) -> list[OutputEvent]:
        if self._streaming is not None and not self._approvals:
            return self._release_streamed()
        return self._await_client()

    def interrupt(self) -> bool:
        self._interrupted = True
        for approval in self._approvals:
            if approval.request_id is None:
                continue
            if approval.service is None:
                self._rpc.respond(approval.request_id, CANCELLED_OUTCOME)
            else:
                self._rpc.respond_error(approval.request_id, INVALID_PARAMS, RUN_CANCELLED)
        self._approvals.clear()
        self.pending += self._cancel_questions()
        self._rpc.notify("session/cancel", {"sessionId": self.native_id or ""})
        self.stop_asking()
        self.pending += [*self.release(), *self._app_calls.cancel_all()]
        if self._held_end is not None:
            self.pending += self._prompt_ended(*self._held_end)
        return True

    def closing(self) -> None:
        can = self.session.capabilities
        if self.phase == "ready" and self.native_id and can and can.session_capabilities and can.session_capabilities.close:
            self._rpc.request("session/close", {"sessionId": self.native_id}, lambda _result, _error: [])

    def client_responded(self, request: ClientRequest, answer: ClientResponse) -> None:
        if self._profile.missing_file_is_empty and request.method == READ and answer.code == RESOURCE_NOT_FOUND:
            answer = ClientResponse({"content": ""})
        if answer.error is not None:
            self._rpc.respond_error(request.id, answer.code, answer.error)
        else:
            self._rpc.respond(request.id, dict(answer.result))
        if (call := self._approved_services.pop(request.id, None)) is not None:
            end = self._calls.finish(call, answer.error or service_output(answer), failed=answer.error is not None)
            if self.phase in ("running", "waiting"):
                self.pending += self.deliver(end)
        if request.method == "terminal/output" and answer.error is None:
            self._calls.terminals[request.params["terminalId"]] = str(answer.result.get("output", ""))

    # -- from the agent -----------------------------------------------------------------------------------------------

    def receive(self, line: bytes) -> list[OutputEvent]:
        return [] if self._task_done else super().receive(line)

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self._task_done:
            return []
        return [*self.release(), *self._release_streamed(), *super().exited(exit_code, stderr)]

    def required(self, message: dict[str, Any]) -> str | None:
        return "a malformed response" if self.phase != "ready" and is_response(message) else None

    def malformed(self, message: dict[str, Any]) -> None:
        if isinstance(message.get("method"), str) and isinstance(message.get("id"), int | str):
            self._rpc.respond_error(message["id"], INVALID_PARAMS, f"{message['method']}: bad parameters")

    def deliver(self, events: list[OutputEvent]) -> list[OutputEvent]:
        if self._released:
            events, self._released = [*self._released, *events], []
        return super().deliver(events)

    def dispatch(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        method = message.get("method")
        if self._streaming is not None and _call_id(message) != self._streaming.native_id:
            self._released += self._release_streamed()
        if method is None:
            return self._response(message)
        if "id" in message:
            return self._client_method(message["id"], method, message["params"])
        if method != "session/update":
            # Extension notifications begin with an underscore and may be ignored.
            return [] if str(method).startswith(("_", "$/")) else None
        return self._update(message["params"])

    def _response(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        events = self._rpc.receive_response(message)
        if events is None and not self._rpc.has_sent(message["id"]):
            raise ValueError("a response to no request")
        return events

    def _update(self, params: dict[str, Any]) -> list[OutputEvent] | None:
        update = params["update"]
        kind = update["sessionUpdate"]
        starting = self.phase == "starting"
        if kind in SESSION_UPDATES and (starting or params["sessionId"] == self.native_id):
            return self._session_updates.read(update)
        if starting or kind in IGNORED_UPDATES or params["sessionId"] != self.native_id:
            if starting:
                self._replay(update)
            if kind == "config_option_update":
                self.session.update(update)
            return self._mode_reported(str(update["currentModeId"])) if kind == "current_mode_update" and not starting else []
        if self.phase == "ready" and kind != "usage_update":
            return None
        if len(params) == 2 and (events := self._run_updates.read_text(update)) is not None:
            return events
        if kind == "notice":
            return [notice_of(update)]
        parsed = SessionNotification.model_validate(params).update
        if isinstance(parsed, ToolCallStart | ToolCallProgress):
            return self._tool_call(parsed)
        self._cost.report(parsed)
        return self._run_updates.read(parsed)

    def _tool_call(self, update: ToolCallStart | ToolCallProgress) -> list[OutputEvent]:
        call = self._updated(self._profile.call_update(update))
        self._streaming = None
        if call.granted and call.status not in ("completed", "failed") and self._calls.runs_something_else(call):
            # Not what the client has granted: it is asked again. The agent does not wait for the answer.
            call, events = self._calls.supersede(call)
            return [*events, *self._authorize(PendingApproval(call, None))]
        if call.status == "pending" and not call.started and call.raw_input not in (None, {}) and not _has_terminal(call):
            self._streaming = call
            return []
        return self._call_progress(call)

    def _updated(self, update: NativeCall | ToolCallUpdate) -> ToolCallState:
        """The call that an update belongs to, with the update applied."""
        call = self._calls.update(update)
        if (tool := self._profile.reported_tool(update)) is not None:
            call.tool = tool
        return call

    def _call_progress(self, call: ToolCallState) -> list[OutputEvent]:
        name = self._app_tool(call)
        return self._calls.progress(call) if name is None else self._app_calls.report(call, name)

    def _app_tool(self, call: ToolCallState) -> str | None:
        """The application-side tool that a call belongs to; None for a call of the agent's own."""
        known = self._app_calls.tool_of(call.id)
        return known if known or call.started else self._profile.app_tools.get(call.tool)

    def _release_streamed(self) -> list[OutputEvent]:
        """The start of the pending call whose input the agent might still have been streaming."""
        call, self._streaming = self._streaming, None
        return [] if call is None else self._call_progress(call)

    def _prompt_ended(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if error is None and not self._interrupted and not isinstance((result or {}).get("stopReason"), str):
            raise ValueError("an end of the turn without a stop reason")
        if any(approval.request_id is None for approval in self._approvals):
            # The client is asked about what the agent has run unasked: the run ends with its answer.
            self._held_end = (result, error)
            return []
        self._held_end = None
        self.phase, self._task_done = "ready", self._task is not None
        self._approvals.clear()
        events = [*self.release(), *self._cancel_questions(), *self._app_calls.cancel_all(), *self._calls.start_pending()]
        if error is not None:
            return [*events, *self._failure(f"{self.title}: {error.describe()}")]
        response = result or {}
        events += _with_cost(_usage(response), self._cost.take())
        reason = str(response.get("stopReason"))
        if (run_result := RUN_RESULTS.get(reason)) is not None:
            return [*events, run_result]
        if reason == "max_turn_requests":
            # The work is not done, and the gateway's protocols have no stop reason for it.
            message = f"{self.title} stopped at its limit of model requests in one turn"
            return [*events, Error(message=message), SessionEnd(exit_code=1, stop_reason="error")]
        return [*events, *self._failure(f"{self.title} stopped for a reason that is not known: {reason[:200]}")]

    def _failure(self, message: str) -> list[OutputEvent]:
        """The result of a run that failed. The error of an interrupted run is not reported."""
        if self._interrupted:
            return [SessionEnd(exit_code=130, stop_reason="cancelled")]
        return [Error(message=message), SessionEnd(exit_code=1, stop_reason="error")]

    # -- permissions and client methods -------------------------------------------------------------------------------

    def _client_method(self, request_id: int | str, method: str, params: dict[str, Any]) -> list[OutputEvent]:
        if method == "session/request_permission":
            return self._permission(request_id, permission_request(params))
        if method == ELICITATION:
            return self._question(request_id, params)
        if method.startswith(("fs/", "terminal/")):
            return self._service(ClientRequest(request_id, method, params))
        self._rpc.respond_error(request_id, METHOD_NOT_FOUND, f"{method}: not a method of this client")
        return []

    def _question(self, request_id: int | str, params: dict[str, Any]) -> list[OutputEvent]:
        """The agent asks its user, by a form."""
        if self.phase not in ("running", "waiting") or self._interrupted:
            self._rpc.respond(request_id, CANCELLED)
            return []
        if self._grants.verdict(QUESTION_TOOL) == "deny" or self._task is not None:
            self._rpc.respond(request_id, DECLINED)
            return []
        fields = fields_of(params)
        self._question_calls += 1
        call = Call(f"question_{self._question_calls}", QUESTION_TOOL, {"questions": questions_of(fields)})
        self._questions[call.id] = request_id, fields
        return [call.started()]

    def _question_answered(self, reply: Reply, request_id: int | str, fields: list[FormField]) -> list[OutputEvent]:
        call = Call(reply.call_id, QUESTION_TOOL, {})
        if isinstance(reply, PermissionReply):
            self._rpc.respond(request_id, DECLINED)
            return call.ended(denied(reply.reason), failed=True)
        self._rpc.respond(request_id, response_of(fields, reply.content))
        return [ToolCall(id=call.id, name=QUESTION_TOOL, status="completed")]

    def _cancel_questions(self) -> list[OutputEvent]:
        """The run ends or is interrupted: the open questions are not answered any more."""
        events: list[OutputEvent] = []
        for call_id, (request_id, _) in self._questions.items():
            self._rpc.respond(request_id, CANCELLED)
            events += Call(call_id, QUESTION_TOOL, {}).ended(RUN_CANCELLED, failed=True)
        self._questions.clear()
        return events

    def _permission(self, request_id: int | str, request: RequestPermissionRequest) -> list[OutputEvent]:
        tool_call = self._profile.call_update(request.tool_call)
        call = self._updated(tool_call)
        if self.phase not in ("running", "waiting"):
            self._rpc.respond(request_id, CANCELLED_OUTCOME)
            call, events = self._calls.asked(tool_call)
            return [*events, *self._denied(call)]
        if self._interrupted:
            self._rpc.respond(request_id, CANCELLED_OUTCOME)
            return []
        self._streaming = None
        name = self._app_tool(call)
        if name is not None and name == self._profile.app_tools.get(call.tool):
            # The client itself runs the call, so it needs no permission. The agent's program has named the tool, not its model.
            self._rpc.respond(request_id, permission_response(request.options, granted=True))
            return self._app_calls.report(call, name)
        if name is not None:
            # It may be any call of the agent's own.
            call = self._calls.successor(call)
        asked, changed = self._calls.asked(tool_call)
        if asked is not call:
            self._deny_obsolete(call)
        return [*changed, *self._authorize(PendingApproval(asked, request_id, tuple(request.options)))]

    def _deny_obsolete(self, call: ToolCallState) -> None:
        """Deny the requests about a call that has become another one, which the agent asks about too."""
        for approval in [approval for approval in self._approvals if approval.call is call]:
            self._approvals.remove(approval)
            if approval.request_id is not None:
                self._rpc.respond(approval.request_id, permission_response(approval.options, granted=False))

    def _service(self, request: ClientRequest) -> list[OutputEvent]:
        kind, kinds = CLIENT_METHODS.get(request.method, ("", frozenset()))
        declared = request.method in self._methods
        if not kind and not declared:
            self._rpc.respond_error(request.id, METHOD_NOT_FOUND, f"{request.method}: not a method of this client")
            return []
        if not kind or (declared and request.method == READ and self._grants.agent_asks):
            self.client_requests.append(request)
            return []
        if self.phase not in ("running", "waiting"):
            self._rpc.respond_error(request.id, INVALID_PARAMS, denied(NO_RUN))
            self._service_calls += 1
            return self._denied(self._calls.add(f"service_{self._service_calls}", kind, request))
        trusted = declared and self._grants.verdict(kind) == "allow"
        if declared and self._calls.covering(request, kinds, lambda call: trusted or self._is_permitted(call)) is not None:
            self.client_requests.append(request)
            return []
        # The request belongs to no permitted call: it is a call of its own.
        self._service_calls += 1
        call = self._calls.add(f"service_{self._service_calls}", kind, request)
        approval = PendingApproval(call, request.id, service=request, always_ask=self._grants.agent_asks)
        if not declared:
            return self._deny(approval, NOT_ENABLED)
        return self._authorize(approval)

    def _denied(self, call: ToolCallState) -> list[OutputEvent]:
        """The events of a call outside of a run, also of a trusted tool: no client sees it."""
        return [*self._calls.start(call), *self._calls.finish(call, denied(NO_RUN), failed=True, denied=True)]

    def _is_permitted(self, call: ToolCallState) -> bool:
        """Whether the client has granted the call, or the agent's own policy allows it. Other agents' reports permit nothing."""
        if call.granted or not self._grants.agent_asks or call.sent is None:
            return call.granted
        name = call.sent.name
        asked = any(approval.call is call for approval in self._approvals)
        return self._grants.verdict(name) == "allow" or (self._grants.left_to_agent(name) and not asked)

    def _authorize(self, approval: PendingApproval) -> list[OutputEvent]:
        """Allow or deny a call by the grants, or ask the client; one approval at a time."""
        verdict = self._grants.verdict(self._calls.name(approval.call))
        if self._interrupted or (verdict == "deny" and not approval.always_ask):
            return self._deny(approval, RUN_CANCELLED if self._interrupted else NOT_ENABLED)
        if verdict == "allow":
            return [*self._calls.start(approval.call), *self._resolve(approval, granted=True)]
        self._approvals.append(approval)
        return []

    def _deny(self, approval: PendingApproval, reason: str) -> list[OutputEvent]:
        """Deny a call about which the client is not asked."""
        return [*self._calls.start(approval.call), *self._resolve(approval, granted=False, reason=reason, asked=False)]

    def _answered(self, approval: PendingApproval, granted: bool, reason: str) -> list[OutputEvent]:
        """The client has answered. A call that the agent has changed meanwhile is asked about anew; one that it has ended is not
        permitted."""
        if granted and approval.service is None and approval.request_id is not None:
            granted = not approval.call.finished
            if granted and self._calls.is_changed(approval.call):
                call, events = self._calls.supersede(approval.call)
                return [*events, *self._authorize(replace(approval, call=call))]
        return self._resolve(approval, granted=granted, reason=reason)

    def _await_client(self) -> list[OutputEvent]:
        """Ask the client for the first pending approval and for the results of all pending application-side calls."""
        approvals = [approval.call for approval in self._approvals[:1]]
        started, results = self._app_calls.announce()
        self._asked = [*self._questions]
        calls = (*(AwaitedCall(id=call.id, wants="permission") for call in approvals),
                 *(AwaitedCall(id=call_id, wants="answer") for call_id in self._asked),
                 *(AwaitedCall(id=call_id, wants="result") for call_id in results))  # fmt: skip
        return [*(event for call in approvals for event in self._calls.start(call)), *started, Awaiting(calls=calls)]

    def _resolve(self, approval: PendingApproval, *, granted: bool, reason: str = "", asked: bool = True) -> list[OutputEvent]:
        """Respond to the agent. A denied call is finished here: many agents send no further update of it. `asked`: whether the
        client was."""
        approval.call.granted = granted
        if approval.request_id is None:
            if not granted:
                # The agent runs what was not granted, and there is no request to reject.
                self._rpc.notify("session/cancel", {"sessionId": self.native_id or ""})
                self._interrupted = True
        elif approval.service is None:
            response = permission_response(approval.options, granted=granted)
            self._rpc.respond(approval.request_id, response)
        elif granted:
            self._approved_services[approval.request_id] = approval.call
            self.client_requests.append(approval.service)
        else:
            self._rpc.respond_error(approval.request_id, INVALID_PARAMS, reason)
        if granted or approval.call.finished:
            return []
        return self._calls.finish(approval.call, reason, failed=True, denied=not asked)

    # -- the session --------------------------------------------------------------------------------------------------

    def _session_ready(self) -> None:
        self.native_id, self.resumable = self.session.id, self.session.resumable
        self._cost.opened(self.native_id)
        self.phase = "ready"
        if self._task is not None:
            self.prompt(self._task)

    def _session_failed(self, error: DriverError) -> None:
        self.start_error = type(error)(f"{self.title}: {error}")

    def _new_calls(self) -> ToolCalls:
        return ToolCalls(self._profile.tool_name, self._profile.tool_input, self._cwd, self._profile.inputs_vary)


def _declared_methods(request: SessionRequest) -> frozenset[str]:
    """The client methods that the agent may request, as `initialize` declares them."""
    files = [method for method, declared in ((READ, request.read_files), (WRITE, request.write_files)) if declared]
    return frozenset([*files, *(TERMINAL_METHODS if request.terminals else ())])


def _call_id(message: dict[str, Any]) -> Any:
    """The id of the tool call that a message is about."""
    params = message.get("params")
    about = params.get("toolCall") or params.get("update") if isinstance(params, dict) else None
    return about.get("toolCallId") if isinstance(about, dict) else None


def _has_terminal(call: ToolCallState) -> bool:
    return any(isinstance(item, TerminalToolCallContent) for item in call.content)


def _with_cost(usage: Sequence[Usage], cost: float | None) -> list[OutputEvent]:
    if cost is None:
        return [*usage]
    return [(usage[0] if usage else Usage()).model_copy(update={"cost_usd": round(cost, 9)})]


def _usage(result: dict[str, Any]) -> list[Usage]:
    """The run's tokens: from `usage`, or from `_meta.quota.token_count`, where gemini 0.61.0 reports them."""
    try:
        # Whatever the stop reason is.
        response = PromptResponse.model_validate({**result, "stopReason": "end_turn"})
    except ValueError:
        return []
    usage = response.usage
    if usage is not None:
        return [
            Usage(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read=usage.cached_read_tokens or 0,
                cache_write=usage.cached_write_tokens or 0,
                reasoning_tokens=usage.thought_tokens or 0,
            )
        ]
    quota = (response.field_meta or {}).get("quota")
    counts = quota.get("token_count") if isinstance(quota, dict) else None
    if not isinstance(counts, dict):
        return []
    tokens = [counts.get(name) for name in ("input_tokens", "output_tokens")]
    if not all(isinstance(count, int) for count in tokens) or not any(tokens):
        return []
    return [Usage(input_tokens=tokens[0] or 0, output_tokens=tokens[1] or 0)]
