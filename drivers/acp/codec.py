"""The Agent Client Protocol, seen from the client: one codec a process, one session. Version 1 of the protocol.

Requests of the agent's are always answered: one that is not would leave it waiting forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acp.schema import (
    Error,
    PromptRequest,
    PromptResponse,
    RequestPermissionRequest,
    SessionNotification,
    ToolCallProgress,
    ToolCallStart,
)

from drivers.acp.app_tool_calls import AppCalls
from drivers.acp.content import has_image
from drivers.acp.handshake import Opening, Wanted
from drivers.acp.permissions import CANCELLED, DENIED, SERVICES, UNLISTED, Grants, IdempotencyKey, outcome, output_of_service
from drivers.acp.profile import AgentProfile
from drivers.acp.result import failure, run_end
from drivers.acp.rpc import INVALID_PARAMS, METHOD_NOT_FOUND, Rpc, said
from drivers.acp.tool_calls import Call, Calls
from drivers.acp.updates import NOTICES, QUIET, Messages, Notices
from drivers.codecs.deduplication import Deduplicator
from drivers.contract.agent import PermissionReply, Prompt, Reply
from drivers.contract.capabilities import SupportsClientRequests, SupportsClosing, SupportsDebounce, SupportsMcpTools
from drivers.contract.client_services import READ, RESOURCE_NOT_FOUND, ClientRequest, ClientResponse
from drivers.contract.codec import Codec
from drivers.contract.errors import DriverError
from drivers.contract.events import AwaitedCall, Awaiting, NativeSession, OutputEvent, SessionEnd, Stdout
from drivers.contract.events import Error as Failure
from drivers.contract.lines import parse_object, text_line
from drivers.contract.messages import text_of
from drivers.contract.tool_server import ToolRequest, ToolResponse

NOT_NOW = "No run is under way; the application cannot be asked."


class AcpCodec(Codec, SupportsDebounce, SupportsClientRequests, SupportsMcpTools, SupportsClosing):
    """`task` is the one-shot form: it is prompted as soon as the session is open."""

    def __init__(self, wanted: Wanted, grants: Grants, profile: AgentProfile | None = None, task: Prompt | None = None) -> None:
        super().__init__()
        self._profile = profile or AgentProfile()
        self.title = self._profile.title
        self._grants, self._task = grants, task
        self._calls = self._fresh_calls()
        self._app = AppCalls(self.tool_responses)
        self._asks: list[IdempotencyKey] = []
        self._awaited: set[str] = set()
        self._held: list[OutputEvent] = []
        self._services = 0
        self._serving: dict[int | str, Call] = {}
        self._stopping = self._over = False
        self._messages = Messages(self._profile.silent)
        self._told = Deduplicator()
        self._rpc = Rpc(self.outbox)
        self._opening = Opening(self._rpc, wanted, self._opened, self._refused)
        self.offer, self.linger = self._opening.offer, self._opening.linger
        self._notices = Notices(self.offer, tells_commands=self._profile.slash_commands)

    # -- towards the agent --------------------------------------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        self.phase = "running"
        self._calls, self._messages, self._stopping = self._fresh_calls(), Messages(self._profile.silent), False
        self._app = AppCalls(self.tool_responses, self._app.tells)
        self._serving.clear()
        session = NativeSession(native_id=self.native_id, model=self.offer.model)
        self.pending += self._told.changed(session)
        if has_image(prompt.content) and not self.offer.images:
            self.phase, self._over = "ready", self._task is not None
            self.pending += [Failure(message=f"{self.title} takes no images"), SessionEnd(exit_code=1, stop_reason="error")]
            return
        request = PromptRequest(session_id=self.native_id or "", prompt=self._profile.prompt(prompt))
        self._rpc.request("session/prompt", request, self._prompted)

    def reply(self, reply: Reply) -> None:
        if reply.call_id not in self._awaited:
            return
        self._awaited.discard(reply.call_id)
        if self._asks and self._asks[0].call.id == reply.call_id:
            granted = isinstance(reply, PermissionReply) and reply.granted
            why = reply.reason if isinstance(reply, PermissionReply) else text_of(reply.content)
            self.pending += self._settle(self._asks.pop(0), granted=granted, why=why or DENIED)
        else:
            self.pending += self._app.reply(reply)
        if not self._awaited:
            self.phase = "running"
            held, self._held = self._held, []
            self.pending += held
            if self._asks:
                self.pending += self._hand_over()

    def tool_requested(self, request: ToolRequest) -> None:
        if self.phase not in ("running", "waiting") or self._stopping:
            self.tool_responses.append(ToolResponse(request.id, NOT_NOW, is_error=True))
        else:
            self.pending += self._keep(self._app.called(request))

    def tool_cancelled(self, request_id: str) -> None:
        self.pending += self._keep(self._app.withdrawn(request_id))

    def debounce_seconds(self) -> float | None:
        return self._app.debounce_seconds() if self.phase == "running" and not self._stopping else None

    def debounced_events(self) -> list[OutputEvent]:
        return self._hand_over()

    def interrupt(self) -> bool:
        self._stopping = True
        for ask in self._asks:
            if ask.service is None:
                self._rpc.reply(ask.request_id, CANCELLED)
            else:
                self._rpc.refuse(ask.request_id, INVALID_PARAMS, "the run was cancelled")
        self._asks.clear()
        self._rpc.notify("session/cancel", {"sessionId": self.native_id or ""})
        if self.phase == "waiting":
            self.phase = "running"
        held, self._held = self._held, []
        self.pending += [*held, *self._app.give_up()]
        return True

    def closing(self) -> None:
        can = self.offer.agent and self.offer.agent.agent_capabilities
        if self.phase == "ready" and self.native_id and can and can.session_capabilities and can.session_capabilities.close:
            self._rpc.request("session/close", {"sessionId": self.native_id}, lambda _result, _error: [])

    def client_responded(self, request: ClientRequest, answer: ClientResponse) -> None:
        if self._profile.missing_is_empty and request.method == READ and answer.code == RESOURCE_NOT_FOUND:
            answer = ClientResponse({"content": ""})
        if answer.error is not None:
            self._rpc.refuse(request.id, answer.code, answer.error)
        else:
            self._rpc.reply(request.id, dict(answer.result))
        if (call := self._serving.pop(request.id, None)) is not None and self.phase in ("running", "waiting"):
            done = answer.error or output_of_service(answer)
            self.pending += self._keep(self._calls.finish(call, done, failed=answer.error is not None))
        if request.method == "terminal/output" and answer.error is None:
            self._calls.terminals[request.params["terminalId"]] = str(answer.result.get("output", ""))

    # -- from the agent -----------------------------------------------------------------------------------------------

    def receive(self, line: bytes) -> list[OutputEvent]:
        if self._over:
            return []
        message = parse_object(line)
        if message is None:
            return self._keep([Stdout(line=text_line(line))] if line.strip() else [])
        try:
            events = self._read(message)
        except (KeyError, TypeError, ValueError, AttributeError):
            events = None
            if isinstance(message.get("method"), str) and isinstance(message.get("id"), int | str):
                self._rpc.refuse(message["id"], INVALID_PARAMS, f"{message['method']}: bad parameters")
        return self._keep([Stdout(line=text_line(line))] if events is None else events)

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self._over:
            return []
        held, self._held = self._held, []
        return [*held, *super().exited(exit_code, stderr)]

    def _keep(self, events: list[OutputEvent]) -> list[OutputEvent]:
        """While the client is waited for its turn is over: what comes meanwhile is told when it has answered."""
        if self.phase != "waiting" or any(isinstance(event, Awaiting | SessionEnd) for event in events):
            return events
        self._held += events
        return []

    def _read(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        method = message.get("method")
        if method is None:
            return self._rpc.answered(message)
        if "id" in message:
            return self._asked(message["id"], method, message["params"])
        if method != "session/update":
            # Notifications that begin with an underscore are an agent's own, and may be passed over.
            return [] if str(method).startswith(("_", "$/")) else None
        return self._update(message["params"])

    def _update(self, params: dict[str, Any]) -> list[OutputEvent] | None:
        update = params["update"]
        kind = update["sessionUpdate"]
        starting = self.phase == "starting"
        if kind in NOTICES and (starting or params["sessionId"] == self.native_id):
            return self._notices.read(update)
        if starting or kind in QUIET or params["sessionId"] != self.native_id:
            # Before the session is open this is the replay of one that is loaded: nothing of a run of ours.
            self._opening.take_options(update) if kind == "config_option_update" else None
            return []
        if self.phase == "ready":
            return [] if kind == "usage_update" else None
        known = SessionNotification.model_validate(params).update
        if isinstance(known, ToolCallStart | ToolCallProgress):
            return self._tool_call(self._calls.known(known))
        return self._messages.read(known)

    def _tool_call(self, call: Call) -> list[OutputEvent]:
        name = self._profile.app_tool(call)
        return self._calls.progress(call) if name is None else self._app.told(call, name)

    def _prompted(self, result: dict[str, Any] | None, error: Error | None) -> list[OutputEvent]:
        self.phase, self._over = "ready", self._task is not None
        self._asks.clear()
        held, self._held = self._held, []
        events = [*held, *self._app.give_up(), *self._calls.begun()]
        if error is not None:
            return [*events, *failure(f"{self.title}: {said(error)}", interrupted=self._stopping)]
        try:
            response = PromptResponse.model_validate(result)
        except ValueError:
            unknown = f"{self.title} stopped for a reason that is not known: {str(result)[:200]}"
            return [*events, *failure(unknown, interrupted=self._stopping)]
        return [*events, *run_end(response, self.title)]

    # -- what the agent asks ------------------------------------------------------------------------------------------

    def _asked(self, request_id: int | str, method: str, params: dict[str, Any]) -> list[OutputEvent] | None:
        if method == "session/request_permission":
            return self._permission(request_id, RequestPermissionRequest.model_validate(params))
        if method.startswith(("fs/", "terminal/")):
            return self._service(ClientRequest(request_id, method, params))
        self._rpc.refuse(request_id, METHOD_NOT_FOUND, f"{method}: not a method of this client")
        return []

    def _permission(self, request_id: int | str, request: RequestPermissionRequest) -> list[OutputEvent]:
        if self.phase not in ("running", "waiting"):
            self._rpc.reply(request_id, CANCELLED)
            return []
        call = self._calls.known(request.tool_call)
        if (name := self._profile.app_tool(call)) is not None:
            # The client itself runs it, or does not.
            self._rpc.reply(request_id, outcome(request.options, granted=True))
            return self._app.told(call, name)
        return self._weigh(IdempotencyKey(call, request_id, tuple(request.options)))

    def _service(self, request: ClientRequest) -> list[OutputEvent]:
        kind, part_of = SERVICES.get(request.method, ("", frozenset()))
        at_work = self.phase in ("running", "waiting")
        granted = at_work and self._calls.granted(part_of)
        if not kind or self._grants.services or granted or self._grants.verdict(kind) == "allow":
            self.client_requests.append(request)
            return []
        if not at_work:
            self._rpc.refuse(request.id, INVALID_PARAMS, NOT_NOW)
            return []
        # Asked for outside of any call that the client has granted: a call of its own, for which the client is asked.
        self._services += 1
        given = {name: value for name, value in request.params.items() if name != "sessionId"}
        call = self._calls.own(f"service_{self._services}", kind, given)
        return self._weigh(IdempotencyKey(call, request.id, service=request))

    def _weigh(self, ask: IdempotencyKey) -> list[OutputEvent]:
        """Allowed at once, or not at all, or when the client says so; one at a time."""
        verdict = self._grants.verdict(self._calls.name(ask.call))
        if self._stopping or verdict == "deny":
            return [*self._calls.start(ask.call), *self._settle(ask, granted=False, why=UNLISTED)]
        if verdict == "allow":
            return [*self._calls.start(ask.call), *self._settle(ask, granted=True)]
        self._asks.append(ask)
        return self._hand_over() if len(self._asks) == 1 and self.phase != "waiting" else []

    def _hand_over(self) -> list[OutputEvent]:
        """It is the client's turn: one permission at most, and every result that is wanted by now."""
        self.phase = "waiting"
        asks = [ask.call for ask in self._asks[:1]]
        started, results = self._app.announce()
        calls = (*(AwaitedCall(id=call.id, wants="permission") for call in asks),
                 *(AwaitedCall(id=call_id, wants="result") for call_id in results))  # fmt: skip
        self._awaited = {call.id for call in calls}
        return [*(event for call in asks for event in self._calls.start(call)), *started, Awaiting(calls=calls)]

    def _settle(self, ask: IdempotencyKey, *, granted: bool, why: str = "") -> list[OutputEvent]:
        """Tell the agent; a call that was denied ends here, since many agents say no more of it."""
        ask.call.granted = granted
        if ask.service is None:
            self._rpc.reply(ask.request_id, outcome(ask.options, granted=granted))
        elif granted:
            self._serving[ask.request_id] = ask.call
            self.client_requests.append(ask.service)
        else:
            self._rpc.refuse(ask.request_id, INVALID_PARAMS, why)
        return [] if granted else self._calls.finish(ask.call, why, failed=True)

    # -- the session --------------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        self.native_id = self.offer.session_id
        self.phase = "ready"
        if self._task is not None:
            self.prompt(self._task)

    def _refused(self, error: DriverError) -> None:
        self.start_error = type(error)(f"{self.title}: {error}")

    def _fresh_calls(self) -> Calls:
        return Calls(self._profile.name, self._profile.given)
