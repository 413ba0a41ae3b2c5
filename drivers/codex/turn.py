"""One turn of `codex app-server`: notifications become events; requests for permissions and for tool results are answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from drivers.codecs.json_lines import MALFORMED
from drivers.codecs.json_rpc import JsonRpcPeer
from drivers.codecs.tool_calls import Call, CallTracker
from drivers.codex.content import tool_output
from drivers.codex.grants import Grants, paths_of
from drivers.codex.items import SCRIPT_TOOL, call_of, exit_code_of, model_call, model_outcome, outcome_of, plain_command, snake
from drivers.codex.mcp_servers import ELICITATION, call_of_elicitation
from drivers.codex.modes import QUESTION_TOOL, answers_of, choices_of, question_texts, questions_of
from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.client_services import CHECK_PATHS, METHOD_NOT_FOUND, ClientRequest
from drivers.contract.events import (
    AgentToken,
    AwaitedCall,
    Awaiting,
    Compacted,
    Decider,
    Hook,
    MessageEnd,
    Notice,
    OutputEvent,
    PermissionChoice,
    Plan,
    PlanEntry,
    Thinking,
)
from drivers.contract.tool_denials import HOOK_REFUSED, NOT_ENABLED, denied

TokenKind = type[AgentToken] | type[Thinking]
LIFECYCLE_HOOKS = frozenset({"sessionStart", "sessionEnd", "stop"})
PATHS_CHANGED = "a path of the patch has led out of the folders of the session since the question"
STILL_RUNNING = "[still running in the background]"
MODEL_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
"""Types of items of the model's API that have the output of a call."""
SILENT = frozenset(
    {
        "user_message", "hook_prompt", "context_compaction", "sub_agent_activity", "entered_review_mode",
        "exited_review_mode", "sleep", "function_call_output", "agent_message", "reasoning",
    }
)  # fmt: skip
"""Types of items that are no calls and have no event."""

ASKS_USER = "item/tool/requestUserInput"
APPROVALS = {"item/commandExecution/requestApproval": "shell", "item/fileChange/requestApproval": "apply_patch"}
"""The tool of each request for an approval."""
DECLINED: Mapping[str, dict[str, Any]] = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    ELICITATION: {"action": "decline", "content": None},
    "item/permissions/requestApproval": {"permissions": {}},
    ASKS_USER: {"answers": {}},
    "execCommandApproval": {"decision": "denied"},
    "applyPatchApproval": {"decision": "denied"},
}
"""The result that declines each request of the CLI. Other requests get an error."""


PROMPT_HOOK = "userPromptSubmit"
"""The event of the hooks that get a prompt before the model."""
REFUSES = frozenset({"blocked", "stopped"})
"""The statuses of such a hook after which the model does not get the prompt, and the thread does not keep it (0.171.0)."""


class TurnStream:
    """The notifications of one turn.

    Attributes:
        calls: The calls that are running.
        denials: The result of each call that was denied, by the call's id.
        turn_id: The CLI's id of the turn; None until it is known.
        plan: The plan that the model has proposed last, in Markdown; empty if there is none.
        refusal: Why a hook has refused the prompt; None if it has not, or if the turn went on.
    """

    def __init__(self, thread_id: str | None, folder: str, app_tools: Mapping[str, str], patch_reason: str = "") -> None:
        self.calls = CallTracker()
        self.denials: dict[str, str] = {}
        self.turn_id: str | None = None
        self.plan = ""
        self._thread_id, self._folder, self._app_tools, self._patch_reason = thread_id, folder, app_tools, patch_reason
        self._unstarted: dict[str, Call] = {}
        self._model_calls: dict[str, tuple[Call, int]] = {}
        self._started: set[str] = set()
        self._ended_early: set[str] = set()
        self._streamed: set[str] = set()
        self._has_text = self._has_tokens = False
        self.refusal: str | None = None

    def read(self, method: str, params: dict[str, Any]) -> list[OutputEvent] | None:
        """The events of a notification; None if its method is unknown."""
        handler = _NOTIFICATIONS.get(method)
        if handler is None:
            return None
        return [] if self.is_of_another(params) else handler(self, params)

    def is_of_another(self, params: dict[str, Any]) -> bool:
        """Whether a notification or a request is of another turn of the thread, such as a late one of the turn before.

        Sub-agents have threads of their own. A call that this turn has started may end in another.
        """
        turn_id = params.get("turnId")
        if turn_id is None or turn_id == self.turn_id or not self._in_thread(params):
            return False
        item = params.get("item")
        return not (isinstance(item, dict) and str(item.get("id")) in self.calls)

    def start_call(self, call_id: str, reason: str | None = None) -> list[OutputEvent]:
        """The start of a call that was held back for the model's reason; nothing if it has started."""
        call = self._unstarted.pop(call_id, None)
        if call is None:
            return []
        return self._start(replace(call, input={**call.input, "reason": reason}) if reason else call)

    def start_requested(self, call: Call) -> list[OutputEvent]:
        """The start of a call that only a request of the CLI announces."""
        return [] if call.id in self.calls else self._start(call)

    def knows(self, call_id: str) -> bool:
        """Whether the item of a call has started."""
        return call_id in self.calls or call_id in self._unstarted

    def retried(self) -> list[OutputEvent]:
        """The model's stream broke and the CLI asks the model again: what was streamed of the message does not count."""
        if not self._has_tokens:
            return []
        self._has_text = self._has_tokens = False
        return [MessageEnd(discarded=True)]

    def response_over(self) -> list[OutputEvent]:
        """A response of the model and its calls are over: a command that still runs does so in the background."""
        events: list[OutputEvent] = []
        for call in [call for call in self.calls.running.values() if call.name == "shell"]:
            events += self.calls.end(call.id, STILL_RUNNING, failed=False)
            self._ended_early.add(call.id)
        return events

    def end(self, *, stopped: bool) -> list[OutputEvent]:
        """The events that are left when the turn is over."""
        events = [event for call_id in list(self._unstarted) for event in self.start_call(call_id)]
        if not stopped:
            events += self.response_over()
        return [*events, *self.calls.fail_all(), *self._message_end()]

    def _in_thread(self, params: dict[str, Any]) -> bool:
        return self._thread_id is None or params.get("threadId", self._thread_id) == self._thread_id

    def _item_started(self, params: dict[str, Any]) -> list[OutputEvent] | None:
        item = snake(params["item"])
        if item["type"] in ("agent_message", "reasoning", "plan"):
            return self._message_end() if self._has_text and self._in_thread(params) else []
        return self._begin(item)

    def _begin(self, item: dict[str, Any]) -> list[OutputEvent] | None:
        call = call_of(item)
        if call is None:
            return [] if item["type"] in SILENT else None
        if item["type"] == "dynamic_tool_call":
            call = replace(call, name=self._app_tools.get(call.name, call.name))
        if call.id in self.calls or call.id in self._unstarted or call.id in self._ended_early:
            return []
        if item["type"] == "command_execution" and item.get("source") == "agent" and not item.get("process_id"):
            # The CLI may request an approval for it, in the next line: that has the model's reason.
            self._unstarted[call.id] = call
            return []
        return self._start(call)

    def _start(self, call: Call) -> list[OutputEvent]:
        self._has_text = self._has_tokens = False
        self._started.add(call.id)
        if call.name == "apply_patch" and self._patch_reason and "changes" in call.input:
            call = replace(call, input={**call.input, "reason": self._patch_reason})
        return self.calls.start(call)

    def _item_completed(self, params: dict[str, Any]) -> list[OutputEvent] | None:
        item = snake(params["item"])
        if item["type"] == "plan" and self._in_thread(params):
            self.plan = item["text"]
        if item["type"] in ("agent_message", "plan"):
            return self._whole(params, AgentToken, item["id"], item["text"])
        if item["type"] == "reasoning":
            return self._whole(params, Thinking, item["id"], "\n\n".join(item.get("summary") or item.get("content") or []))
        if item["type"] == "context_compaction":
            # The CLI does not report what is left of the thread.
            return [*self._message_end(), Compacted()] if self._in_thread(params) else []
        if item["id"] in self._ended_early or (
            item["id"] not in self.calls and params.get("turnId", self.turn_id) != self.turn_id
        ):
            return []
        events = self._begin(item)
        if events is None or call_of(item) is None:
            return events
        events += self.start_call(item["id"])
        call = self.calls.running[item["id"]]
        if item["type"] == "dynamic_tool_call" and item["tool"] in self._app_tools and call.id not in self.denials:
            # The client has given the result itself.
            return [*events, *self.calls.finish(call.id, failed=outcome_of(item)[1])]
        output, failed = outcome_of(item, self.denials.get(call.id))
        return [*events, *self.calls.end(call.id, output, failed=failed, exit_code=exit_code_of(item))]

    def _model_item(self, params: dict[str, Any]) -> list[OutputEvent]:
        """A call of the model and its output, as the model's API has them.

        A command that the CLI's sandbox stops within its first milliseconds often has no other report (0.137 to 0.169), also as
        the only one of a script. Calls that have items are reported by these.
        """
        item = params["item"]
        if not self._in_thread(params):
            return []
        if item["type"] not in MODEL_OUTPUTS:
            call = model_call(item, self._folder)
            if call is not None:
                self._model_calls[call.id] = call, len(self._started)
            return []
        call, started = self._model_calls.pop(item["call_id"], (None, 0))
        if call is None or call.id in self._started or call.id in self._unstarted:
            return []
        if call.name == SCRIPT_TOOL and len(self._started) > started:
            return []
        output, code = model_outcome(item)
        self._ended_early.add(call.id)
        failed = code != 0 if call.name != SCRIPT_TOOL else False
        return [*self._start(call), *self.calls.end(call.id, output, failed=failed, exit_code=code)]

    def _whole(self, params: dict[str, Any], kind: TokenKind, item_id: str, text: str) -> list[OutputEvent]:
        if item_id in self._streamed or not text or not self._in_thread(params):
            return []
        return self._token(kind, item_id, text)

    def _token(self, kind: TokenKind, item_id: str, text: str) -> list[OutputEvent]:
        self._streamed.add(item_id)
        self._has_tokens, self.refusal = True, None
        self._has_text = self._has_text or kind is AgentToken
        return [kind(text=text)]

    def _message_delta(self, params: dict[str, Any]) -> list[OutputEvent]:
        return self._token(AgentToken, params["itemId"], params["delta"]) if params["delta"] and self._in_thread(params) else []

    def _summary_delta(self, params: dict[str, Any]) -> list[OutputEvent]:
        return self._token(Thinking, params["itemId"], params["delta"]) if params["delta"] and self._in_thread(params) else []

    def _summary_part(self, params: dict[str, Any]) -> list[OutputEvent]:
        return self._token(Thinking, params["itemId"], "\n\n") if params.get("summaryIndex") and self._in_thread(params) else []

    def _output_delta(self, params: dict[str, Any]) -> list[OutputEvent]:
        call_id = params["itemId"]
        return [*self.start_call(call_id), *self.calls.output(call_id, params["delta"])]

    def _plan(self, params: dict[str, Any]) -> list[OutputEvent]:
        if not self._in_thread(params):
            return []
        return [Plan(entries=tuple(PlanEntry(content=step["step"], status=_status(step["status"])) for step in params["plan"]))]

    def _hook(self, params: dict[str, Any]) -> list[OutputEvent]:
        run = params["run"]
        if run["eventName"] in LIFECYCLE_HOOKS:
            return []
        status = "started" if run["status"] == "running" else str(run["status"])
        if run["eventName"] == PROMPT_HOOK and status in REFUSES:
            reason = "; ".join(entry["text"] for entry in run["entries"])
            self.refusal = f"{HOOK_REFUSED}: {reason}" if reason else HOOK_REFUSED
        found = [entry["text"] for entry in run.get("entries") or () if entry["kind"] == "warning"]
        notices = [Notice(severity="warning", text=text) for text in found]
        return [Hook(id=run["id"], name=run["eventName"], status=status), *notices]

    def _message_end(self) -> list[OutputEvent]:
        if not self._has_text and not self._has_tokens:
            return []
        self._has_text = self._has_tokens = False
        return [MessageEnd()]


def _status(native: str) -> Literal["pending", "in_progress", "completed"]:
    """The status of a step of a plan. A step whose status is not known is not done."""
    return "in_progress" if native == "inProgress" else "completed" if native == "completed" else "pending"


_NOTIFICATIONS: dict[str, Callable[[TurnStream, dict[str, Any]], list[OutputEvent] | None]] = {
    "item/started": TurnStream._item_started,
    "item/completed": TurnStream._item_completed,
    "item/agentMessage/delta": TurnStream._message_delta,
    "item/plan/delta": TurnStream._message_delta,
    "item/reasoning/summaryTextDelta": TurnStream._summary_delta,
    "item/reasoning/textDelta": TurnStream._summary_delta,
    "item/reasoning/summaryPartAdded": TurnStream._summary_part,
    "item/commandExecution/outputDelta": TurnStream._output_delta,
    "turn/plan/updated": TurnStream._plan,
    "hook/started": TurnStream._hook,
    "hook/completed": TurnStream._hook,
    "rawResponseItem/completed": TurnStream._model_item,
}


@dataclass(slots=True)
class PendingRequest:
    """A request of the CLI that waits for the client.

    Attributes:
        decided_by: Who decides about it.
        inside: The paths of a patch that led into the session's folders when the client was asked.
        choices: The answers that the CLI suggests, with its decision for each.
        questions: The questions of a request for answers, by their ids.
    """

    request_id: Any
    wants: Literal["result", "permission", "answer"]
    elicitation: bool = False
    decided_by: Decider = "gateway"
    inside: Sequence[str] = ()
    choices: Mapping[str, tuple[PermissionChoice, Any]] = field(default_factory=dict)
    questions: Mapping[str, str] = field(default_factory=dict)

    def decision(self, *, granted: bool, choice: str | None = None) -> dict[str, Any]:
        """The result of a request for permission."""
        if choice is not None and choice in self.choices:
            return {"decision": self.choices[choice][1]}
        if self.elicitation:
            return {"action": "accept", "content": {}} if granted else {"action": "decline", "content": None}
        return {"decision": "accept" if granted else "decline"}


class TurnRequests:
    """The requests of the CLI in one turn: approvals, and calls of application-side tools.

    Attributes:
        pending: The requests that wait for the client, by the ids of their calls.
        events: The events of calls that end with the client's reply: the CLI has no item for them.
    """

    def __init__(
        self,
        rpc: JsonRpcPeer,
        grants: Grants,
        app_tools: Mapping[str, str],
        turn: TurnStream,
        client_requests: list[ClientRequest],
    ) -> None:
        self._rpc, self._grants, self._app_tools, self._turn = rpc, grants, app_tools, turn
        self._client_requests = client_requests
        self.pending: dict[str, PendingRequest] = {}
        self._checked: dict[int | str, tuple[Any, str | None, bool]] = {}
        self._early: dict[str, tuple[Any, str, dict[str, Any]]] = {}
        self._elicited: set[str] = set()
        self.events: list[OutputEvent] = []

    @property
    def unanswered(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self.pending or self._early)

    def clear(self) -> None:
        """Forget the requests, which the CLI itself rejects."""
        self.pending.clear()
        self._early.clear()
        self._checked.clear()

    def receive(self, request_id: Any, method: str, params: dict[str, Any]) -> list[OutputEvent] | None:
        """The events of a request. None if it is unknown or malformed: it is declined then, since the CLI waits for an answer."""
        try:
            events = None if self._turn.is_of_another(params) else self._receive(request_id, method, params)
        except MALFORMED:
            events = None
        if events is None:
            decline(self._rpc, request_id, method)
        return events

    def item_started(self) -> list[OutputEvent]:
        """The events of approvals that were requested before their items started."""
        known = [call_id for call_id in self._early if self._turn.knows(call_id)]
        return [event for call_id in known for event in self._approve_early(call_id)]

    def start_early(self) -> list[OutputEvent]:
        """The events of approvals whose items have not started: their calls start with what the requests have."""
        events: list[OutputEvent] = []
        for call_id, (_, method, params) in list(self._early.items()):
            events += self._turn.start_requested(_call_of_approval(call_id, APPROVALS[method], params))
            events += self._approve_early(call_id)
        return events

    def question(self) -> Awaiting:
        """The event that asks the client about all that is pending."""
        calls = (
            AwaitedCall(
                id=call_id,
                wants=request.wants,
                decided_by=request.decided_by,
                choices=tuple(choice for choice, _ in request.choices.values()),
            )
            for call_id, request in self.pending.items()
        )
        return Awaiting(calls=tuple(calls))

    def reply(self, reply: Reply, thread_id: str | None) -> None:
        """Answer a request by the client's reply."""
        request = self.pending.pop(reply.call_id, None)
        if request is None:
            return
        if request.wants == "permission":
            self._permit(request, reply, thread_id)
        elif request.wants == "answer":
            self._answer(request, reply)
        elif isinstance(reply, PermissionReply):
            self._turn.denials[reply.call_id] = denied(reply.reason)
            self._rpc.respond(request.request_id, {"contentItems": tool_output(denied(reply.reason)), "success": False})
        else:
            self._rpc.respond(request.request_id, {"contentItems": tool_output(reply.content), "success": True})

    def paths_checked(self, check: ClientRequest, *, inside: bool) -> None:
        """Accept a trusted patch in a sandbox, or one that the client has granted, if its paths are inside the session's folders.

        Outside of a sandbox, or if they are not inside, the client is asked. One that it has granted is declined if its paths
        have changed since.
        """
        request_id, call_id, granted = self._checked.pop(check.id, (None, None, False))
        if call_id is None:
            # Of a turn that has ended, or was interrupted.
            return
        if inside and (granted or not self._grants.client_decides_patches):
            self._rpc.respond(request_id, {"decision": "accept"})
        elif granted:
            self._turn.denials[call_id] = denied(PATHS_CHANGED)
            self._rpc.respond(request_id, {"decision": "decline"})
        else:
            decider: Decider = "client" if self._grants.client_decides_patches else "gateway"
            paths = check.params["paths"] if inside else ()
            self.pending[call_id] = PendingRequest(request_id, "permission", decided_by=decider, inside=paths)

    def _receive(self, request_id: Any, method: str, params: dict[str, Any]) -> list[OutputEvent] | None:
        if method in APPROVALS:
            if not self._turn.knows(params["itemId"]):
                self._early[params["itemId"]] = request_id, method, params
                return []
            return self._approval(request_id, APPROVALS[method], params)
        if method == ELICITATION:
            return self._elicitation(request_id, params)
        if method == ASKS_USER and self._grants.trust.get(QUESTION_TOOL) is not None:
            call = Call(params["itemId"], QUESTION_TOOL, {"questions": questions_of(params)})
            self.pending[call.id] = PendingRequest(request_id, "answer", questions=question_texts(params))
            return self._turn.start_requested(call)
        if method == "item/tool/call" and params["tool"] in self._app_tools:
            arguments = params.get("arguments")
            name = self._app_tools[params["tool"]]
            call = Call(params["callId"], name, arguments if isinstance(arguments, dict) else {})
            self.pending[call.id] = PendingRequest(request_id, "result")
            return self._turn.start_requested(call)
        return None

    def _approve_early(self, call_id: str) -> list[OutputEvent]:
        request_id, method, params = self._early.pop(call_id)
        return self._approval(request_id, APPROVALS[method], params)

    def _approval(self, request_id: Any, tool: str, params: dict[str, Any]) -> list[OutputEvent]:
        call_id = params["itemId"]
        events = self._turn.start_call(call_id, params.get("reason"))
        call = self._turn.calls.running.get(call_id)
        verdict = self._grants.verdict(tool, params, call.input.get("changes", []) if call else [])
        if verdict == "ask" and call is not None:
            decider: Decider = "client" if tool == "apply_patch" and self._grants.client_decides_patches else "gateway"
            lasting = self._grants.lasting_choices
            choices = choices_of(tool, params, lasting=lasting) if self._grants.mode is not None else {}
            self.pending[call_id] = PendingRequest(request_id, "permission", decided_by=decider, choices=choices)
        elif verdict == "check" and call is not None:
            self._check(request_id, call_id, paths_of(call.input["changes"]), granted=False)
        elif verdict == "accept":
            self._rpc.respond(request_id, {"decision": "accept"})
        else:
            self._turn.denials[call_id] = denied(NOT_ENABLED)
            self._rpc.respond(request_id, {"decision": "decline"})
        return events

    def _check(self, request_id: Any, call_id: str, paths: Sequence[str], *, granted: bool) -> None:
        check = ClientRequest(f"paths of {request_id}", CHECK_PATHS, {"paths": paths})
        self._checked[check.id] = request_id, call_id, granted
        self._client_requests.append(check)

    def _elicitation(self, request_id: Any, params: dict[str, Any]) -> list[OutputEvent] | None:
        """A call of an MCP server of the client: the client is asked unless the tool is trusted."""
        running = self._turn.calls.running.values()
        call = call_of_elicitation(params, (call for call in running if call.id not in self._elicited))
        if call is None:
            return None
        self._elicited.add(call.id)
        request = PendingRequest(request_id, "permission", elicitation=True)
        if self._grants.trusts(call.name):
            self._rpc.respond(request_id, request.decision(granted=True))
        else:
            self.pending[call.id] = request
        return []

    def _answer(self, request: PendingRequest, reply: Reply) -> None:
        if isinstance(reply, ToolReply):
            self._rpc.respond(request.request_id, answers_of(request.questions, reply.content))
            self.events += self._turn.calls.finish(reply.call_id, failed=False)
        else:
            self._rpc.respond(request.request_id, DECLINED[ASKS_USER])
            self.events += self._turn.calls.end(reply.call_id, denied(reply.reason), failed=True)

    def _permit(self, request: PendingRequest, reply: Reply, thread_id: str | None) -> None:
        if isinstance(reply, PermissionReply) and reply.allowed:
            if request.inside:
                return self._check(request.request_id, reply.call_id, request.inside, granted=True)
            return self._rpc.respond(request.request_id, request.decision(granted=True, choice=reply.choice))
        reason = reply.reason if isinstance(reply, PermissionReply) else None
        self._turn.denials[reply.call_id] = denied(reason)
        call = self._turn.calls.running.get(reply.call_id)
        if reason and call is not None:
            # The response has no member for a reason: it follows as a message of the user, right after the call's output.
            message = {"type": "text", "text": f"The call of {call.name} was denied: {reason}", "text_elements": []}
            params = {"threadId": thread_id, "expectedTurnId": self._turn.turn_id, "input": [message]}
            self._rpc.request("turn/steer", params, lambda result, error: [])
        self._rpc.respond(request.request_id, request.decision(granted=False))


def _call_of_approval(call_id: str, tool: str, params: Mapping[str, Any]) -> Call:
    """The call of an approval whose item is not known; only that of a command has the input."""
    given = {name: params[name] for name in ("cwd", "reason") if params.get(name)}
    if tool == "shell":
        command = plain_command(str(params.get("command") or ""))
        return Call(call_id, tool, {"command": command, **given}, command)
    return Call(call_id, tool, {"changes": [], **given})


def call_requested(method: str, params: Mapping[str, Any]) -> Call | None:
    """The call that a request of the CLI is about, whose item is not known; None for a request about no call."""
    if method in APPROVALS:
        return _call_of_approval(params["itemId"], APPROVALS[method], params)
    if method == "item/tool/call":
        return Call(params["callId"], params["tool"], params.get("arguments"))
    return None


def decline(rpc: JsonRpcPeer, request_id: Any, method: str) -> None:
    """Decline a request of the CLI."""
    if method in DECLINED:
        rpc.respond(request_id, DECLINED[method])
    else:
        rpc.respond_error(request_id, METHOD_NOT_FOUND, f"{method} is not supported")
