"""The codec of claude's stream-json: one codec a process. Shapes as printed by claude 2.1.329 (tests/transcripts/claude).

The members of its lines come in any order, and any release adds types: a type without a handler becomes `stdout`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_json

from drivers.claude.compaction import Compaction
from drivers.claude.control_messages import HOOKS, denial_answer, failure, mcp_answer, success
from drivers.claude.message_stream import MessageStream
from drivers.claude.permissions import IDS, NATIVE, suggestions_of
from drivers.claude.session_metadata import METADATA, SessionMetadata
from drivers.claude.stdin_lines import UserMessages
from drivers.claude.tool_calls import CallRequest, TurnCalls
from drivers.claude.tools import OUTPUT_TOOL, PREFIX, Toolset
from drivers.codecs.asking_codec import AskingCodec
from drivers.codecs.rate_limits import limit_error
from drivers.contract.agent import Prompt, Reply
from drivers.contract.capabilities import SupportsModes, SupportsSteering
from drivers.contract.codec import IN_RUN
from drivers.contract.errors import AgentUnavailable, ResumeFailed
from drivers.contract.events import (
    NO_USAGE,
    AgentToken,
    ContextUse,
    Error,
    Hook,
    MessageEnd,
    ModeChanged,
    NativeSession,
    Notice,
    OutputEvent,
    RateLimit,
    SessionEnd,
    Thinking,
    Usage,
)
from drivers.contract.line_splitter import parse_object
from drivers.contract.tool_denials import HOOK_REFUSED, HOOK_STOPPED, NO_RUN

REDUNDANT = frozenset(
    {
        "thinking_tokens", "api_retry", "ui_invalidate", "permission_denied",
        "task_started", "task_progress", "task_updated", "task_notification", "background_tasks_changed",
        "model_refusal_no_fallback", "session_state_changed", "files_persisted",
    }
)  # fmt: skip
"""Subtypes of `system` lines whose content another line has too, or that no event can express."""
OF_A_TURN = frozenset({"stream_event", "assistant", "user", "result"})
"""Types of lines that belong to a turn."""
LIFECYCLE_HOOKS = frozenset({"SessionStart", "Stop", "Notification"})
HOOK_STATUS = {"success": "completed", "error": "failed"}
NO_CONVERSATION = "No conversation found"
INITIALIZE = "init"
"""The id of a control request."""
LIMIT_STATUS: Mapping[str, Literal["allowed", "warning", "rejected"]] = {
    "allowed": "allowed",
    "allowed_warning": "warning",
    "rejected": "rejected",
}


class ClaudeCodec(AskingCodec, SupportsSteering, SupportsModes):
    """One process.

    A line belongs to the turn that the CLI is in, which may be another one than that of the last prompt: a turn of its own about
    a background task, or a late result. The CLI reports the id of the message that a turn begins with (`command_lifecycle`, and
    the member `user_message_uuid`); 2.1.148 reports that a turn begins (`init`), not which one. Until the prompt's turn has
    begun, lines of a turn are of an earlier one.

    Parameters:
        initialize: Members of the control request that opens a session.
        tools: The tools of the session.
        once: The one-shot form, whose run ends with the process. Else a session, one run a prompt.
        is_command: Whether a prompt may be the slash command of this name; None if a prompt is always text.
        mode: The CLI's own mode of the session; None where the gateway asks about each call of an untrusted tool.
        modes: The modes that the session may have.
        folder: The working folder of the session, as a real path.
        sources: Which of the CLI's settings files a choice of the client may change, as values of `--setting-sources`.
        context_sizes: The sizes of the context windows of models, by name. The CLI reports that of a model at the end of a turn
            only; the codec adds it, for the next turns of all sessions that share the mapping.
    """

    title = "claude"
    # Sub-agents and hooks go on to write while others wait.
    max_held_seconds = 2.0
    delta_text = {AgentToken: ("event", "delta", "text"), Thinking: ("event", "delta", "thinking")}
    delta_unread = ("uuid",)

    def __init__(
        self,
        initialize: dict[str, Any] | None = None,
        *,
        tools: Toolset | None = None,
        once: bool = False,
        is_command: Callable[[str], bool] | None = None,
        mode: str | None = None,
        modes: frozenset[str] = frozenset(),
        folder: str = "",
        sources: Sequence[str] = (),
        context_sizes: MutableMapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self._context_sizes = {} if context_sizes is None else context_sizes
        self._mode, self._modes, self._folder, self._sources = mode, modes, folder, sources
        self._mode_requests: dict[str, str] = {}
        self._mode_changes = 0
        self._once = once
        self._limit: RateLimit | None = None
        self._tools = tools or Toolset()
        self._session: NativeSession | None = None
        self._compaction = Compaction()
        self._metadata = SessionMetadata(is_command)
        self._user_messages = UserMessages(is_command or (lambda name: False))
        self._interrupts = 0
        self._reports_ids = self._reports_turns = False
        self._begun = True
        self._begin_turn()
        if once:
            self.phase = "running"
        else:
            self._control(INITIALIZE, {"subtype": "initialize", "hooks": HOOKS, **(initialize or {})})

    def _begin_turn(self) -> None:
        self._calls = TurnCalls(self._tools, self._folder, self._write)
        self._stream = MessageStream(self._calls)
        self.release()
        self.stop_asking()
        self._turn_started = self._interrupted = self._has_text = False
        self._refusal: Refusal | None = None
        self._hook_reason: str | None = None

    # -- to the CLI ---------------------------------------------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        self.phase = "running"
        self._begun = not (self._reports_ids or self._reports_turns)
        self._begin_turn()
        self._write(self._user_messages.prompt(prompt))

    def steer(self, prompt: Prompt) -> bool:
        # The CLI reads it after the tools that run now; if none follows, in a turn of its own after this one (2.1.329).
        if self._once or self._interrupted:
            return False
        self._write(self._user_messages.steer(prompt))
        return True

    def reply(self, reply: Reply) -> None:
        self._calls.reply(reply)
        self.answered(reply.call_id, [])

    def interrupt(self) -> bool:
        if self._once or self._user_messages.unread_steers:
            # A message that the CLI has not read yet would begin a turn after the interrupt.
            return False
        self._interrupted = True
        self._calls.cancel()
        self.stop_asking()
        # An interrupt before the turn's `system/init` is answered with success and ignored (5 of 5 at 0 ms, none at 20).
        if self._turn_started:
            self._send_interrupt()
        return True

    def set_mode(self, mode: str) -> bool:
        if self._mode is None or mode not in IDS.values():
            return False
        self._mode_changes += 1
        request_id = f"mode-{self._mode_changes}"
        self._mode_requests[request_id], self._mode = self._mode, mode
        self._control(request_id, {"subtype": "set_permission_mode", "mode": NATIVE.get(mode, mode)})
        return True

    def silence(self) -> float | None:
        # All calls of a message are known when it is over.
        return None if self._stream.in_message else self._calls.silence()

    def question(self) -> list[OutputEvent]:
        return self._calls.question()

    def _send_interrupt(self) -> None:
        self._interrupts += 1
        self._control(f"interrupt-{self._interrupts}", {"subtype": "interrupt"})

    def _control(self, request_id: str, request: dict[str, Any]) -> None:
        self._write({"type": "control_request", "request_id": request_id, "request": request})

    def _write(self, line: dict[str, Any]) -> None:
        self.outbox += to_json(line) + b"\n"

    # -- from the CLI -------------------------------------------------------------------------------------------------

    def dispatch(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        if not self._begun:
            self._begun = self._begins(message)
            if not self._begun and message.get("type") in OF_A_TURN:
                return []
        return super().dispatch(message)

    def _begins(self, message: dict[str, Any]) -> bool:
        """Whether the turn of the prompt has begun, by a line that belongs to it or precedes it."""
        kind = message.get("type")
        if kind == "command_lifecycle":
            return message.get("state") == "started" and message.get("command_uuid") in self._user_messages.ids
        if kind == "system":
            return message.get("subtype") == "init" and not self._reports_ids
        message_id = message.get("uuid") if message.get("isReplay") else message.get("user_message_uuid")
        return message_id in self._user_messages.ids

    def _lifecycle(self, message: dict[str, Any]) -> list[OutputEvent]:
        self._reports_ids = self._reports_ids or message["command_uuid"] in self._user_messages.ids
        return []

    def required(self, message: dict[str, Any]) -> str | None:
        kind = message.get("type")
        if kind == "control_response" and self.phase == "starting":
            return "a malformed response"
        return "a malformed result" if kind == "result" and self.phase != "ready" else None

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self.phase == "starting" and any(NO_CONVERSATION in line for line in stderr):
            self.start_error = ResumeFailed("claude has no such session any more")
        return [*self.release(), *super().exited(exit_code, stderr)]

    def _system(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        subtype = str(message.get("subtype"))
        if subtype == "init":
            return self._init(message)
        if subtype in ("hook_started", "hook_response"):
            return self._hook(message)
        if subtype == "compact_boundary":
            self._compaction.begin(message)
            return []
        if subtype == "informational":
            return self._informational(message)
        if subtype in METADATA:
            return self._metadata.read(message)
        if subtype == "status":
            return self._mode_reported(message.get("permissionMode"))
        return [] if subtype in REDUNDANT else None

    def _informational(self, message: dict[str, Any]) -> list[OutputEvent]:
        """Read a line that the CLI shows to its user only. With `prevent_continuation` a hook has refused the prompt.

        Lines of other levels are shown beside each command of the CLI's own interface.
        """
        if message.get("prevent_continuation") and self.phase in IN_RUN:
            self._refusal = refusal_of(message)
        elif message.get("level") in ("warning", "error") and self.phase in IN_RUN:
            return [Notice(severity=message["level"], text=str(message.get("content")))]
        return []

    def _init(self, message: dict[str, Any]) -> list[OutputEvent]:
        """A turn has started."""
        self._turn_started = self._reports_turns = True
        if self._interrupted:
            self._send_interrupt()
        session = NativeSession(native_id=message["session_id"], model=message.get("model"))
        self.native_id = session.native_id
        if session == self._session:
            return []
        self._session = session
        return [session]

    def _mode_reported(self, native: Any) -> list[OutputEvent]:
        """The CLI reports its mode when that has changed, by request or by itself (EnterPlanMode, an approved plan)."""
        mode = IDS.get(str(native))
        if self._mode is None or mode is None or mode == self._mode:
            return []
        self._mode = mode
        return [ModeChanged(mode=mode)]

    def _mode_refused(self, before: str) -> list[OutputEvent]:
        """The CLI does not change the mode, such as to `auto` with a model that does not support it."""
        self._mode = before
        return [ModeChanged(mode=before)]

    def _hook(self, message: dict[str, Any]) -> list[OutputEvent]:
        if message.get("hook_event") in LIFECYCLE_HOOKS or self.phase != "running":
            return []
        status = "started"
        if message["subtype"] == "hook_response":
            self._hook_reason = stop_of_hook(message) or self._hook_reason
            status = HOOK_STATUS.get(str(message.get("outcome")), str(message.get("outcome")))
        return [Hook(id=message["hook_id"], name=message["hook_name"], status=status)]

    def _stream_event(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        if self.phase not in IN_RUN:
            return []
        context, usage = self._stream.context, self._stream.usage
        events = self._stream.read(message)
        self._has_text = self._has_text or _has_text(events)
        if events is None or self._stream.usage is usage:
            return events
        used = [] if self._once else [self._stream.message_usage]
        return [*events, *used, *(self._context_use() if self._stream.context != context else ())]

    def _context_use(self) -> list[OutputEvent]:
        """How full the context is after a message of the model, where the size is known from an earlier turn."""
        size = self._context_sizes.get((self._session.model if self._session else None) or "")
        used = self._stream.context
        return [ContextUse(used=used, size=size)] if used and size else []

    def _message(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        if message.get("isReplay"):
            self._user_messages.replayed(message.get("uuid"))
            return []
        if self.phase not in IN_RUN:
            return []
        compacted, events = self._compaction.read(message), self._stream.read(message)
        self._has_text = self._has_text or _has_text(events)
        return None if events is None else [*compacted, *events]

    def _result(self, message: dict[str, Any]) -> list[OutputEvent]:
        if self.phase == "starting":
            # A session that cannot be resumed is refused by a result line, before the response to `initialize`.
            text = " ".join(map(str, message.get("errors") or [message.get("result")]))
            if NO_CONVERSATION in text:
                self.start_error = ResumeFailed(text)
            return [Error(message=text)]
        if self.phase not in IN_RUN or not self._ends_turn(message):
            return []
        usage = usage_of(message)
        if usage and not self._once:
            # The rest: sub-agents, other requests of the CLI, and the price.
            rest = usage[0].beyond(self._stream.usage)
            usage = [rest] if rest != NO_USAGE else []
        events = [*self._stream.end(), *self._compaction.end(), *usage]
        model = self._session.model if self._session else None
        size = context_size(message, model)
        if size is not None and self._context_sizes.get(model or "") != size:
            # Until now it was not known, so that no message of the turn was followed by the event.
            self._context_sizes[model or ""] = size
            events += self._context_use()
        if self._tools.is_answer(OUTPUT_TOOL) and (output := message.get("structured_output")) is not None:
            events.append(AgentToken(text=to_json(output).decode()))
        last, end = run_end(message, self._stream.stop_reason, interrupted=self._interrupted, limit=self._limit)
        if not message.get("is_error"):
            told, end = told_end(message, end, self._refusal, self._hook_reason, has_text=self._has_text)
            last = [*last, *told]
        if self._once:
            self.run_result = end
            return [*events, *last]
        if self._user_messages.unread_steers and not self._interrupted:
            self._begin_turn()
            return [*events, *last]
        self.phase = "ready"
        return [*events, *last, end]

    def _ends_turn(self, result: dict[str, Any]) -> bool:
        """Whether a result is of the prompt's turn."""
        answered = [*(result.get("user_message_uuids") or ()), result.get("user_message_uuid")]
        if self._reports_ids and any(answered):
            return not self._user_messages.ids.isdisjoint(answered)
        return "task-notification" not in str(result.get("origin"))

    def _control_response(self, message: dict[str, Any]) -> list[OutputEvent]:
        response = message["response"]
        if (before := self._mode_requests.pop(response["request_id"], None)) is not None:
            if response.get("subtype") == "error":
                return self._mode_refused(before)
        elif self.phase == "starting":
            if response["request_id"] != INITIALIZE:
                raise ValueError(f"no request has the id {response['request_id']!r}")
            if response.get("subtype") == "error":
                self.start_error = AgentUnavailable(f"claude does not open a session: {response.get('error')}")
            else:
                self.phase = "ready"
                return self._metadata.initialized(response.get("response") or {})
        return []

    def _control_request(self, message: dict[str, Any]) -> list[OutputEvent]:
        request_id, request = message["request_id"], message["request"]
        try:
            return self._receive_request(request_id, request)
        except (KeyError, TypeError, AttributeError) as error:
            # The CLI would wait for ever without a response, and a call that is not understood is not permitted.
            text = f"not understood: {error!r}"
            denial = denial_answer(request.get("subtype"), text)
            self._write(failure(request_id, text) if denial is None else success(request_id, denial))
        return []

    def _receive_request(self, request_id: str, request: dict[str, Any]) -> list[OutputEvent]:
        subtype = request.get("subtype")
        if subtype == "hook_callback":
            call = request["input"]
            hook = CallRequest("hook", request_id, None)
            return self._call_requested(
                call["tool_use_id"], call["tool_name"], call["tool_input"], hook, inner="agent_id" in call
            )
        if subtype == "can_use_tool":
            call_id, name, given = request["tool_use_id"], request["tool_name"], request["input"]
            suggestions = suggestions_of(request, self._modes, self._sources) if self._mode is not None else ()
            permission = CallRequest("permission", request_id, given, suggestions)
            return self._call_requested(call_id, name, given, permission, inner=bool(request.get("agent_id")))
        if subtype == "mcp_message":
            return self._receive_mcp(request_id, request["message"])
        self._write(failure(request_id, f"not supported: {subtype}"))
        return []

    def _call_requested(
        self, call_id: str, name: str, given: Any, request: CallRequest, *, inner: bool = False
    ) -> list[OutputEvent]:
        if self.phase not in IN_RUN or not self._begun:
            # Of a turn of the CLI's own, or of a background task: no client sees it.
            return self._calls.deny(call_id, name, given, request, NO_RUN, inner=inner)
        return self._calls.requested(call_id, name, given, request, inner=inner)

    def _receive_mcp(self, request_id: str, message: dict[str, Any]) -> list[OutputEvent]:
        if message.get("method") == "tools/call":
            params = message["params"]
            call_id, name = params["_meta"]["claudecode/toolUseId"], PREFIX + params["name"]
            call = CallRequest("mcp", request_id, message["id"])
            return self._call_requested(call_id, name, params.get("arguments") or {}, call)
        if message.get("method") == "notifications/cancelled":
            self._calls.mcp_call_cancelled(message["params"]["requestId"])
        self._write(success(request_id, mcp_answer(message, self._tools)))
        return []

    def _request_cancelled(self, message: dict[str, Any]) -> list[OutputEvent]:
        self._calls.request_cancelled(message["request_id"])
        return []

    def _rate_limit(self, message: dict[str, Any]) -> list[OutputEvent]:
        """The CLI reports the limits of a subscription when they change."""
        info = message["rate_limit_info"]
        self._limit = RateLimit(
            status=LIMIT_STATUS[info["status"]],
            limit=info.get("rateLimitType"),
            utilization=info.get("utilization"),
            resets_at=info.get("resetsAt"),
        )
        return [self._limit]

    def _ignore(self, message: dict[str, Any]) -> list[OutputEvent]:
        return []

    handlers = {
        "stream_event": _stream_event,
        "assistant": _message,
        "user": _message,
        "system": _system,
        "result": _result,
        "control_response": _control_response,
        "control_request": _control_request,
        "control_cancel_request": _request_cancelled,
        "tool_progress": _ignore,
        "command_lifecycle": _lifecycle,
        "keep_alive": _ignore,
        "rate_limit_event": _rate_limit,
    }


# -- the `result` line ------------------------------------------------------------------------------------------------


def usage_of(result: dict[str, Any]) -> list[Usage]:
    """This turn's tokens. `model_usage_since_last_result` counts sub-agents too; `usage` does not, `modelUsage` adds up."""
    models = result.get("model_usage_since_last_result")
    if isinstance(models, dict) and models:
        return [
            Usage(
                input_tokens=_sum(models, "inputTokens"),
                output_tokens=_sum(models, "outputTokens"),
                cache_read=_sum(models, "cacheReadInputTokens"),
                cache_write=_sum(models, "cacheCreationInputTokens"),
                reasoning_tokens=_sum(models, "thinkingTokens"),
                cost_usd=_cost(models),
            )
        ]
    usage = result.get("usage")
    if not isinstance(usage, dict):
        return []
    return [
        Usage(
            input_tokens=_int(usage.get("input_tokens")),
            output_tokens=_int(usage.get("output_tokens")),
            cache_read=_int(usage.get("cache_read_input_tokens")),
            cache_write=_int(usage.get("cache_creation_input_tokens")),
        )
    ]


def context_size(result: dict[str, Any], model: str | None) -> int | None:
    """The size of the model's context window. It is with the model's own figures, by its name with or without the date."""
    models = result.get("modelUsage")
    if not isinstance(models, dict):
        return None
    known = {name: figures.get("contextWindow") for name, figures in models.items() if isinstance(figures, dict)}
    size = known.get(model or "") or next((size for size in known.values() if len(known) == 1), None)
    return size if isinstance(size, int) and size > 0 else None


def run_end(
    result: dict[str, Any], model_stop: str | None, *, interrupted: bool, limit: RateLimit | None = None
) -> tuple[list[OutputEvent], SessionEnd]:
    """The last events of a turn, and its end. `subtype` is `success` even after errors, `is_error` is not."""
    if not result.get("is_error"):
        return [], SessionEnd(exit_code=0, stop_reason="refusal" if result.get("stop_reason") == "refusal" else "end_turn")
    if interrupted and str(result.get("terminal_reason")).startswith("aborted"):
        return [], SessionEnd(exit_code=130, stop_reason="cancelled")
    text = str(result.get("result") or "; ".join(map(str, result.get("errors") or [])) or result.get("terminal_reason"))
    last: list[OutputEvent] = [Error(message=f"claude: {text}")]
    if result.get("api_error_status") == 429 and limit is not None and limit.status == "rejected":
        last = [limit_error(f"claude: {text}", limit)]
    if result.get("stop_reason") == "refusal":
        return last, SessionEnd(exit_code=1, stop_reason="refusal")
    if result.get("api_error") == "max_output_tokens" or (model_stop == "max_tokens" and result.get("api_error_status") is None):
        return last, SessionEnd(exit_code=1, stop_reason="max_tokens")
    return last, SessionEnd(exit_code=1, stop_reason="error")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A hook has refused the prompt, or stopped the turn before the model got it."""

    text: str
    """Why, for people."""
    kept: bool
    """Whether the CLI's conversation has the prompt."""


def refusal_of(informational: dict[str, Any]) -> Refusal:
    """Read the line with which the CLI refuses a prompt (2.1.332)."""
    content, outcome = str(informational.get("content")), informational.get("prompt_submit_outcome")
    members = outcome if isinstance(outcome, dict) else {}
    reason = str(members.get("reason") or content).strip()
    kept = bool(members.get("prompt_kept", "blocked by hook" not in content))
    return Refusal(f"{HOOK_STOPPED if kept else HOOK_REFUSED}: {reason}", kept)


def stop_of_hook(response: dict[str, Any]) -> str | None:
    """Return why a hook stops the turn, if it does. Only its own output has the reason (2.1.332)."""
    found = parse_object(str(response.get("stdout") or "").encode())
    return str(found.get("stopReason") or "") or None if found is not None and found.get("continue") is False else None


def told_end(
    result: dict[str, Any], end: SessionEnd, refusal: Refusal | None, hook_reason: str | None, *, has_text: bool
) -> tuple[list[OutputEvent], SessionEnd]:
    """Return as text what a turn ends with that no message has told, and its end."""
    if refusal is not None:
        told = refusal.text
        end = SessionEnd(exit_code=1, stop_reason="refusal", prompt_kept=refusal.kept)
    elif result.get("terminal_reason") == "hook_stopped":
        told = HOOK_STOPPED + (f": {hook_reason}" if hook_reason else "")
    else:
        told = str(result.get("result") or "") if result.get("num_turns") == 0 and not has_text else ""
    return ([AgentToken(text=told), MessageEnd()] if told else []), end


def _has_text(events: Sequence[OutputEvent] | None) -> bool:
    return events is not None and any(type(event) is AgentToken for event in events)


def _cost(models: dict[str, Any]) -> float | None:
    costs = [model.get("costUSD") for model in models.values() if isinstance(model, dict)]
    known = [cost for cost in costs if isinstance(cost, int | float)]
    # Sums of floating-point numbers have digits that are noise; a token costs more than 1e-9 dollars.
    return round(sum(known), 9) if known else None


def _sum(models: dict[str, Any], key: str) -> int:
    return sum(_int(model.get(key)) for model in models.values() if isinstance(model, dict))


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0
