"""The codec of `codex app-server`: one thread a process, kept between turns. Shapes as printed by codex 0.169.0.

Approvals and calls of application-side tools are requests of the CLI, which come while other calls run or the model still writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivers.codecs.asking_codec import AskingCodec
from drivers.codecs.deduplication import Deduplicator
from drivers.codecs.json_rpc import JsonRpcPeer, RpcError, is_response
from drivers.codecs.tool_calls import Call
from drivers.codex.app_tools import names_for_cli
from drivers.codex.commands import commands_of, is_compact, with_skill
from drivers.codex.content import user_input
from drivers.codex.grants import NOT_CONFINED
from drivers.codex.handshake import Handshake, SessionRequest
from drivers.codex.modes import (
    APPROVED,
    IMPLEMENT,
    PLAN,
    PLAN_TOOL,
    STILL_PLANNING,
    collaboration_mode,
    mode_after_plan,
    modes_after_plan,
    plan_choices,
)
from drivers.codex.turn import TurnRequests, TurnStream, call_requested, decline
from drivers.codex.turn_result import NO_TOKENS, RateLimits, context_of, failure, tokens, usage_of
from drivers.contract.agent import PermissionReply, Prompt, Reply
from drivers.contract.capabilities import SupportsClientRequests, SupportsModes, SupportsSteering
from drivers.contract.client_services import ClientRequest, ClientResponse
from drivers.contract.codec import IN_RUN
from drivers.contract.events import (
    AgentToken,
    AwaitedCall,
    Awaiting,
    Commands,
    Error,
    MessageEnd,
    ModeChanged,
    NativeSession,
    OutputEvent,
    SessionEnd,
    Title,
)
from drivers.contract.tool_denials import NO_RUN, denied

QUIET_SECONDS = 0.2
"""Seconds: requests of one message came up to 20 ms apart (measured, 2 cores), a sandboxed command beside them up to 150 ms."""
QUIET_SECONDS_RUNNING = 35.0
"""The same while a trusted command of the same message runs: its result belongs before the `awaiting`. After 30 s at most
the CLI leaves a command to the background."""
UNAUTHORIZED = frozenset({401, 403})
REDUNDANT = frozenset(
    {
        "account/updated", "configWarning", "item/commandExecution/terminalInteraction",
        "item/fileChange/outputDelta", "item/fileChange/patchUpdated", "item/mcpToolCall/progress",
        "mcpServer/startupStatus/updated", "rawResponse/completed",
        "remoteControl/status/changed", "serverRequest/resolved", "thread/compacted", "thread/goal/cleared",
        "thread/readState/changed", "thread/started", "thread/status/changed",
        "turn/diff/updated",
    }
)  # fmt: skip
"""Notifications whose content another notification has too, or that no event can express."""


class CodexAppCodec(AskingCodec, SupportsSteering, SupportsClientRequests, SupportsModes):
    """A live session."""

    title = "codex"
    # A command that is never silent must not hold the others back.
    max_held_seconds = QUIET_SECONDS_RUNNING

    def __init__(self, session: SessionRequest) -> None:
        super().__init__()
        # Whose approval policy and sandbox the thread has. Those of another mode go to it with the next turn.
        self._session = self._applied = session
        self._grants, self._app_tools = session.grants, names_for_cli(tool.name for tool in session.app_tools)
        self._rpc = JsonRpcPeer(self.outbox, version=None)
        self._thread = Handshake(self._rpc, session)
        self._slash_commands, self._cwd = session.slash_commands, session.thread["cwd"]
        self._effort = session.effort
        # Only where it is in plan mode, or may have been: the parameter replaces instructions of the thread.
        self._sets_mode = session.grants.mode == PLAN or (session.resume is not None and session.grants.mode is not None)
        self._output_schema: Mapping[str, Any] | None = None
        self._reported_commands = Deduplicator()
        self._session_reported = False
        self._rate_limits = RateLimits()
        self._new_turn()
        self._used = NO_TOKENS if session.resume is None else None
        self._reported = self._used
        self._update_phase()

    def _new_turn(self) -> None:
        reason = NOT_CONFINED if self._grants.asks_despite_trust else ""
        self._turn = TurnStream(self._thread.thread_id, self._cwd, self._app_tools, reason)
        self._requests = TurnRequests(self._rpc, self._grants, self._app_tools, self._turn, self.client_requests)
        self._turn_started = self._interrupted = self._completed = False
        self._steers_unanswered = 0
        self._rejected_input: list[dict[str, Any]] = []
        self._unauthorized: dict[str, Any] | None = None
        self._plan_call: str | None = None

    def _update_phase(self) -> None:
        self.start_error = self._thread.error
        if self._thread.ready and self.phase == "starting":
            self.native_id, self.phase = self._thread.native_id, "ready"
            self._list_commands()

    def _list_commands(self) -> None:
        if self._slash_commands:
            self._rpc.request("skills/list", {"cwds": [self._cwd]}, self._skills_listed)

    def _skills_listed(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        return self._reported_commands.changed(Commands(commands=commands_of(result)))

    # -- to the CLI -----------------------------------------------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        self.phase = "running"
        self._new_turn()
        self._reported = self._used
        if self._slash_commands and not prompt.go_on and is_compact(prompt.content):
            self._rpc.request("thread/compact/start", {"threadId": self._thread.thread_id}, self._compaction_accepted)
            return
        content = with_skill(prompt.content) if self._slash_commands else prompt.content
        # An empty input asks the model again, without a message of the user in between.
        self._output_schema = prompt.output_schema
        self._start_turn([] if prompt.go_on else user_input(content))

    def _start_turn(self, content: list[dict[str, Any]]) -> None:
        mode = collaboration_mode(self._grants.mode, self._thread.model, self._effort) if self._sets_mode else {}
        before, self._applied = self._applied, self._session
        settings = self._session.turn_settings(self._thread.config) if before is not self._session else {}
        schema = {} if self._output_schema is None else {"outputSchema": self._output_schema}
        params = {"threadId": self._thread.thread_id, "input": content, **settings, **mode, **schema}
        self._rpc.request("turn/start", params, lambda result, error: self._turn_accepted(result, error, before))

    def set_mode(self, mode: str) -> bool:
        changed = self._session.in_mode(mode)
        if changed is None:
            return False
        self._sets_mode = self._sets_mode or PLAN in (self._grants.mode, mode)
        self._session, self._grants = changed, changed.grants
        return True

    def steer(self, prompt: Prompt) -> bool:
        if not self._turn_started or self._completed or self._interrupted:
            return False
        content = user_input(prompt.content)
        params = {"threadId": self._thread.thread_id, "expectedTurnId": self._turn.turn_id, "input": content}
        self._steers_unanswered += 1
        self._rpc.request("turn/steer", params, lambda result, error: self._steered(content, error))
        return True

    def reply(self, reply: Reply) -> None:
        if self._plan_call is not None and reply.call_id == self._plan_call:
            self.phase = "running"
            self.answered(reply.call_id, self._plan_answered(reply))
            return
        self._requests.reply(reply, self._thread.thread_id)
        events, self._requests.events = self._requests.events, []
        self.answered(reply.call_id, events)

    def client_responded(self, request: ClientRequest, response: ClientResponse) -> None:
        self._requests.paths_checked(request, inside=response.error is None)

    def interrupt(self) -> bool:
        self._interrupted = True
        if self._plan_call is not None:
            # The turn of a plan is over: the CLI has nothing to interrupt.
            end = SessionEnd(exit_code=130, stop_reason="cancelled")
            self.pending += [*self.release(), *self._finish([], end, stopped=True)]
            return True
        # The CLI itself rejects what is pending when its turn is interrupted.
        self._requests.clear()
        self.stop_asking()
        self._send_interrupt()
        return True

    def _send_interrupt(self) -> None:
        # Before the turn's `turn/started` the CLI refuses it: "no active turn to interrupt".
        if self._turn_started:
            params = {"threadId": self._thread.thread_id, "turnId": self._turn.turn_id}
            self._rpc.request("turn/interrupt", params, lambda result, error: [])

    # -- from the CLI ---------------------------------------------------------------------------------------------------

    def silence(self) -> float | None:
        if self._plan_call is not None:
            return 0
        if not self._requests.unanswered:
            return None
        return QUIET_SECONDS_RUNNING if self._turn.calls.running.keys() - self._requests.pending.keys() else QUIET_SECONDS

    def question(self) -> list[OutputEvent]:
        if self._plan_call is not None:
            choices = plan_choices(self._session.modes)
            return [Awaiting(calls=(AwaitedCall(id=self._plan_call, wants="permission", choices=choices),))]
        events = self._requests.start_early()
        return [*events, self._requests.question()] if self._requests.pending else events

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        held, running = self.release(), self.phase in IN_RUN
        events = super().exited(exit_code, stderr)
        return [*held, *self._turn.end(stopped=True), *events] if running else events

    def required(self, message: dict[str, Any]) -> str | None:
        if self.phase != "ready" and is_response(message):
            return "a malformed response"
        return "a malformed end of its turn" if self.phase in IN_RUN and message.get("method") == "turn/completed" else None

    def dispatch(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        method = message.get("method")
        if method is None:
            return self._response(message)
        if "id" in message:
            return self._request(message["id"], method, message["params"])
        if method in REDUNDANT:
            return []
        handler = self.handlers.get(method)
        if handler is not None:
            return handler(self, message["params"])
        if self.phase not in IN_RUN:
            return []
        events = self._turn.read(method, message["params"])
        return events if events is None or method != "item/started" else [*events, *self._requests.item_started()]

    def _response(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        events = self._rpc.receive_response(message)
        if events is None and not self._rpc.has_sent(message["id"]):
            raise ValueError("a response to no request")
        self._update_phase()
        return events

    def _request(self, request_id: Any, method: str, params: dict[str, Any]) -> list[OutputEvent] | None:
        if self.phase not in IN_RUN or self._interrupted:
            decline(self._rpc, request_id, method)
            call = call_requested(method, params) if self.phase not in IN_RUN else None
            return call.denied(denied(NO_RUN)) if call is not None else []
        return self._requests.receive(request_id, method, params)

    def _turn_accepted(
        self, result: dict[str, Any] | None, error: RpcError | None, before: SessionRequest | None = None
    ) -> list[OutputEvent]:
        if error is not None:
            self._applied = before or self._applied
            return self._finish([Error(message=f"codex: {error.message}")], SessionEnd(exit_code=1, stop_reason="error"))
        self._turn.turn_id = (result or {})["turn"]["id"]
        return []

    def _compaction_accepted(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        # The response has no turn: `turn/started` has the id.
        return self._turn_accepted(None, error) if error is not None else []

    def _steered(self, content: list[dict[str, Any]], error: RpcError | None) -> list[OutputEvent]:
        self._steers_unanswered -= 1
        if error is not None:
            # The turn was over already: the message becomes the input of another turn of the same run.
            self._rejected_input += content
        return self._turn_over() if self._completed and not self._steers_unanswered else []

    def _turn_over(self) -> list[OutputEvent]:
        if not self._rejected_input or self._interrupted:
            plans = self._grants.mode == PLAN and PLAN_TOOL in self._grants.trust and modes_after_plan(self._session.modes)
            if plans and self._turn.plan and not self._interrupted:
                return self._ask_about_plan(self._turn.plan)
            if (refusal := self._turn.refusal) is not None:
                end = SessionEnd(exit_code=1, stop_reason="refusal", prompt_kept=False)
                return self._finish([AgentToken(text=refusal), MessageEnd()], end)
            return self._finish([], SessionEnd(exit_code=0))
        events, content = self._turn.end(stopped=False), self._rejected_input
        self._new_turn()
        self._start_turn(content)
        return events

    def _ask_about_plan(self, plan: str) -> list[OutputEvent]:
        """The turn has ended with a plan: the run goes on when the client has approved it or rejected it with a reason."""
        self._plan_call = f"plan-{self._turn.turn_id}"
        call = Call(self._plan_call, PLAN_TOOL, {"plan": plan})
        return [*self._turn.end(stopped=False), *self._turn.start_requested(call)]

    def _plan_answered(self, reply: Reply) -> list[OutputEvent]:
        granted = isinstance(reply, PermissionReply) and reply.allowed
        reason = reply.reason if isinstance(reply, PermissionReply) else None
        call_id, self._plan_call = reply.call_id, None
        output = APPROVED if granted else denied(reason or STILL_PLANNING)
        events = self._turn.calls.end(call_id, output, failed=not granted)
        if isinstance(reply, PermissionReply) and granted:
            mode = mode_after_plan(reply.choice, self._session.modes)
            self.set_mode(mode)
            return [*events, ModeChanged(mode=mode), *self._next_turn(IMPLEMENT)]
        if reason:
            return [*events, *self._next_turn(f"The plan is not approved: {reason}")]
        return [*events, *self._finish([], SessionEnd(exit_code=0))]

    def _next_turn(self, text: str) -> list[OutputEvent]:
        """Begin another turn of the same run, with a message of its own."""
        self._new_turn()
        self._start_turn(user_input(text))
        return []

    def _on_turn_started(self, params: dict[str, Any]) -> list[OutputEvent]:
        turn_id = params["turn"]["id"]
        if params["threadId"] == self._thread.thread_id and self.phase == "ready":
            # A turn of the CLI's own: it may run trusted commands without asking, which no client would see.
            self._rpc.request("turn/interrupt", {"threadId": self._thread.thread_id, "turnId": turn_id}, lambda result, error: [])
        if self.phase != "running" or self._turn_started or params["threadId"] != self._thread.thread_id:
            return []
        if self._turn.turn_id not in (None, turn_id):
            return []
        self._turn.turn_id = turn_id
        self._turn_started = True
        if self._interrupted:
            self._send_interrupt()
        if self._session_reported:
            return []
        self._session_reported = True
        return [NativeSession(native_id=self.native_id, model=self._thread.model)]

    def _on_turn_completed(self, params: dict[str, Any]) -> list[OutputEvent] | None:
        turn = params["turn"]
        if self.phase not in IN_RUN or params["threadId"] != self._thread.thread_id or turn["id"] != self._turn.turn_id:
            return []
        status = turn["status"]
        if status == "completed":
            self._completed = True
            return [] if self._steers_unanswered else self._turn_over()
        if status == "failed":
            return self._finish(*self._rate_limits.failure(turn.get("error")))
        if status != "interrupted":
            message = f"codex: the turn ended with the status {status!r}, which is not known"
            return self._finish([Error(message=message)], SessionEnd(exit_code=1, stop_reason="error"))
        # An interrupt leaves running commands in the background: they are ended before the run is over.
        self.stop_asking()
        self._requests.clear()
        self._rpc.request("thread/backgroundTerminals/clean", {"threadId": self._thread.thread_id}, self._background_ended)
        return []

    def _background_ended(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if self.phase != "running":
            return []
        if self._unauthorized is not None and not self._interrupted:
            return self._finish(*failure(self._unauthorized), stopped=True)
        return self._finish([], SessionEnd(exit_code=130, stop_reason="cancelled"), stopped=True)

    def _finish(self, last: list[OutputEvent], end: SessionEnd, *, stopped: bool = False) -> list[OutputEvent]:
        events = [*self._turn.end(stopped=stopped or bool(end.exit_code)), *self._unreported_usage()]
        self.phase, self._plan_call = "ready", None
        self._requests.clear()
        return [*events, *last, end]

    def _on_token_usage(self, params: dict[str, Any]) -> list[OutputEvent]:
        if params["threadId"] != self._thread.thread_id:
            return []
        usage = params["tokenUsage"]
        now, last = tokens(usage["total"], camel=True), tokens(usage["last"], camel=True)
        self._used = now
        if params["turnId"] != self._turn.turn_id:
            # Sent after a resume: the state of the thread's counters.
            self._reported = now
            return []
        self._reported = self._reported or {name: now[name] - last[name] for name in now}
        # It comes when a response and its calls are over, and when they are interrupted.
        over = self.phase == "running" and not self._requests.pending and not self._interrupted
        reported = [*self._unreported_usage(), *context_of(usage)] if self.phase in IN_RUN else []
        return [*(self._turn.response_over() if over else []), *reported]

    def _unreported_usage(self) -> list[OutputEvent]:
        """What the thread's counters have more than at the last event of the usage."""
        before, self._reported = self._reported, self._used
        return [usage_of(self._used, before)] if self._used is not None and self._used != before else []

    def _on_rate_limits(self, params: dict[str, Any]) -> list[OutputEvent]:
        return self._rate_limits.read(params["rateLimits"])

    def _on_name(self, params: dict[str, Any]) -> list[OutputEvent]:
        return [Title(text=params.get("threadName"))] if params["threadId"] == self._thread.thread_id else []

    def _on_settings(self, params: dict[str, Any]) -> list[OutputEvent]:
        settings = params["threadSettings"]
        if params["threadId"] != self._thread.thread_id:
            return []
        if refusal := self._applied.refusal(settings["approvalPolicy"], settings["sandboxPolicy"]):
            # A fresh process would be refused when it resumes the thread.
            self.protocol_error = f"codex cannot be used in this mode: {refusal}. Its requirements.toml may forbid that"
        return []

    def _on_skills_changed(self, params: dict[str, Any]) -> list[OutputEvent]:
        if self._thread.ready:
            self._list_commands()
        return []

    def _on_error(self, params: dict[str, Any]) -> list[OutputEvent]:
        if params["threadId"] != self._thread.thread_id or self.phase not in IN_RUN or not params.get("willRetry"):
            return []
        if self._turn.is_of_another(params):
            return []
        error = params["error"]
        if self._unauthorized is None and _is_unauthorized(error):
            # A wrong key stays wrong: by default the CLI tries 6 times, which takes 7 s.
            self._unauthorized = {**error, "message": error.get("additionalDetails") or error.get("message")}
            self._send_interrupt()
        return self._turn.retried()

    handlers = {
        "turn/started": _on_turn_started,
        "turn/completed": _on_turn_completed,
        "thread/tokenUsage/updated": _on_token_usage,
        "thread/name/updated": _on_name,
        "account/rateLimits/updated": _on_rate_limits,
        "skills/changed": _on_skills_changed,
        "thread/settings/updated": _on_settings,
        "error": _on_error,
    }


def _is_unauthorized(error: dict[str, Any]) -> bool:
    details = str(error.get("additionalDetails"))
    info = error.get("codexErrorInfo")
    codes = [part.get("httpStatusCode") for part in info.values() if isinstance(part, dict)] if isinstance(info, dict) else []
    # Where a web socket is refused, the CLI continues over HTTP.
    return any(code in UNAUTHORIZED for code in codes) and "url: ws" not in details
