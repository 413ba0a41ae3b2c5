"""claude's stream-json, both ways: one codec a process. Shapes as printed by claude 2.1.329 (tests/transcripts/claude).

Keys of its lines come in any order, and new types come with any release: a line is parsed, looked up in a table, and shown
as `stdout` where the table has no entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_core import to_json

from drivers.claude.compaction import Compaction
from drivers.claude.control_channel import HOOKS, failure, mcp_answer, refusal, success
from drivers.claude.input import Said
from drivers.claude.result import context_of, run_end, usage_of
from drivers.claude.session_metadata import NOTICES, Notices
from drivers.claude.stream import MessageStream
from drivers.claude.tool_calls import Calls, IdempotencyKey
from drivers.claude.tools import PREFIX, Toolset
from drivers.contract.agent import Prompt, Reply
from drivers.contract.capabilities import SupportsSteering
from drivers.contract.codec import Codec
from drivers.contract.errors import AgentUnavailable, ResumeFailed
from drivers.contract.events import Awaiting, Error, Hook, NativeSession, OutputEvent, Stdout
from drivers.contract.lines import parse_object, text_line

NOISE = frozenset(
    {
        "status", "thinking_tokens", "api_retry", "informational", "ui_invalidate", "permission_denied",
        "task_started", "task_progress", "task_updated", "task_notification", "background_tasks_changed",
        "model_refusal_no_fallback", "session_state_changed", "files_persisted",
    }
)  # fmt: skip
"""Subtypes of `system` lines that tell nothing that another line does not tell better."""
LIFECYCLE_HOOKS = frozenset({"SessionStart", "Stop", "Notification"})
HOOK_STATUS = {"success": "completed", "error": "failed"}
NOT_FOUND = "No conversation found"
ACTIVE = ("running", "waiting")
PING = "ping"


class ClaudeCodec(Codec, SupportsSteering):
    """`once` is the one-shot form, whose run ends with the process; else a warm session, one run a prompt.

    `initialize` is the control request that opens a session, `tools` what the session may use.
    """

    title = "claude"

    def __init__(
        self,
        initialize: dict[str, Any] | None = None,
        *,
        tools: Toolset | None = None,
        once: bool = False,
        verbatim: bool = True,
    ) -> None:
        super().__init__()
        self._once = once
        self._tools = tools or Toolset()
        self._session: NativeSession | None = None
        self._compaction = Compaction()
        self._notices = Notices(tells_commands=not verbatim)
        self._said = Said(verbatim=verbatim)
        self._requests = 0
        self._begin()
        if once:
            self.phase = "running"
        else:
            self._control("init", {"subtype": "initialize", "hooks": HOOKS, **(initialize or {})})

    def _begin(self) -> None:
        self._calls = Calls(self._tools, self._write, self._send_ping)
        self._stream = MessageStream(self._calls)
        self._open: set[str] = set()
        self._held: list[OutputEvent] = []
        self._turn_seen = self._stopping = False

    # -- towards the CLI ----------------------------------------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        self.phase = "running"
        self._begin()
        self._write(self._said.prompt(prompt))

    def steer(self, prompt: Prompt) -> bool:
        # It is taken up behind the tools that run now; with none to come, in a turn of its own behind this one (2.1.329).
        if self._once or self._stopping:
            return False
        self._write(self._said.steer(prompt))
        return True

    def reply(self, reply: Reply) -> None:
        self._calls.reply(reply)
        self._open.discard(reply.call_id)
        if self.phase == "waiting" and not self._open:
            self.phase = "running"

    def interrupt(self) -> bool:
        if self._once or self._said.steered:
            # What was said to it and not taken up yet would begin a turn behind the interrupt.
            return False
        self._stopping = True
        self._calls.give_up()
        self.phase = "running" if self.phase == "waiting" else self.phase
        # An interrupt before the turn's `system/init` is answered with success and ignored (5 of 5 at 0 ms, none at 20).
        if self._turn_seen:
            self._send_interrupt()
        return True

    def _send_ping(self) -> None:
        self._control(PING, {"subtype": "mcp_status"})

    def _send_interrupt(self) -> None:
        self._requests += 1
        self._control(f"interrupt-{self._requests}", {"subtype": "interrupt"})

    def _control(self, request_id: str, request: dict[str, Any]) -> None:
        self._write({"type": "control_request", "request_id": request_id, "request": request})

    def _write(self, line: dict[str, Any]) -> None:
        self.outbox += to_json(line) + b"\n"

    # -- from the CLI -------------------------------------------------------------------------------------------------

    def receive(self, line: bytes) -> list[OutputEvent]:
        native = parse_object(line)
        events = self._read(native) if native is not None else None if line.strip() else []
        return self._hand_over([Stdout(line=text_line(line))] if events is None else events)

    def _read(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        read = _READERS.get(str(native.get("type")))
        try:
            return read(self, native) if read else None
        except (KeyError, TypeError, ValueError, AttributeError):
            # A known type in a shape that is not: shown, as any other line that is not understood.
            return None

    def _hand_over(self, events: list[OutputEvent]) -> list[OutputEvent]:
        """What the client sees now: nothing new while the CLI waits for it, and whether it does."""
        if self.phase == "waiting":
            # The CLI may end a call by itself. The turn that the client saw is over; the next one begins with this.
            self._held += events
            return []
        events, self._held = [*self._held, *events], []
        if self.phase == "running" and not self._stream.in_message:
            for event in (handing := self._calls.awaiting()):
                if isinstance(event, Awaiting):
                    self._open = {call.id for call in event.calls if not call.optional}
                    self.phase = "waiting"
            events += handing
        return events

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self.phase == "starting" and any(NOT_FOUND in line for line in stderr):
            self.start_error = ResumeFailed("claude has no such session any more")
        held, self._held = self._held, []
        return [*held, *super().exited(exit_code, stderr)]

    def _system(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        subtype = str(native.get("subtype"))
        if subtype == "init":
            return self._turn_start(native)
        if subtype in ("hook_started", "hook_response"):
            return self._hook(native)
        if subtype == "compact_boundary":
            self._compaction.begin(native)
            return []
        if subtype in NOTICES:
            return self._notices.read(native)
        return [] if subtype in NOISE else None

    def _turn_start(self, native: dict[str, Any]) -> list[OutputEvent]:
        self._turn_seen = True
        if self._stopping:
            self._send_interrupt()
        session = NativeSession(native_id=native["session_id"], model=native.get("model"))
        self.native_id = session.native_id
        if session == self._session:
            return []
        self._session = session
        return [session]

    def _hook(self, native: dict[str, Any]) -> list[OutputEvent]:
        if native.get("hook_event") in LIFECYCLE_HOOKS or self.phase != "running":
            return []
        status = "started"
        if native["subtype"] == "hook_response":
            status = HOOK_STATUS.get(str(native.get("outcome")), str(native.get("outcome")))
        return [Hook(id=native["hook_id"], name=native["hook_name"], status=status)]

    def _message(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        if native.get("isReplay"):
            self._said.heard(native["message"]["content"])
            return []
        if self.phase not in ACTIVE:
            return []
        compacted, events = self._compaction.read(native), self._stream.read(native)
        return None if events is None else [*compacted, *events]

    def _result(self, native: dict[str, Any]) -> list[OutputEvent]:
        if self.phase == "starting":
            # A session that cannot be resumed is refused by a result line, before `initialize` is answered.
            said = " ".join(map(str, native.get("errors") or [native.get("result")]))
            if NOT_FOUND in said:
                self.start_error = ResumeFailed(said)
            return [Error(message=said)]
        if self.phase not in ACTIVE or "task-notification" in str(native.get("origin")):
            return []
        events = [*self._stream.end(), *self._compaction.end(), *usage_of(native)]
        events += context_of(native, self._stream.context, self._session.model if self._session else None)
        telling, end = run_end(native, self._stream.stop_reason, interrupted=self._stopping)
        if self._once:
            self.run_result = end
            return [*events, *telling]
        if self._said.steered and not self._stopping:
            self._begin()
            return [*events, *telling]
        self.phase = "ready"
        return [*events, *telling, end]

    def _control_response(self, native: dict[str, Any]) -> list[OutputEvent]:
        response = native["response"]
        if response["request_id"] == PING:
            self._calls.ponged()
        elif response["request_id"] == "init" and self.phase == "starting":
            if response.get("subtype") == "error":
                self.start_error = AgentUnavailable(f"claude does not open a session: {response.get('error')}")
            else:
                self.phase = "ready"
                return self._notices.opened(response.get("response") or {})
        return []

    def _control_request(self, native: dict[str, Any]) -> list[OutputEvent]:
        request_id, request = native["request_id"], native["request"]
        try:
            self._asked(request_id, request)
        except (KeyError, TypeError, AttributeError) as error:
            # An unanswered request would hang the CLI, and what is not understood is not granted.
            refused = refusal(request.get("subtype"), f"not understood: {error!r}")
            self._write(failure(request_id, f"not understood: {error!r}") if refused is None else success(request_id, refused))
        return []

    def _asked(self, request_id: str, request: dict[str, Any]) -> None:
        subtype = request.get("subtype")
        if subtype == "hook_callback":
            given = request["input"]
            ask = IdempotencyKey("hook", request_id, None)
            self._calls.asked(given["tool_use_id"], given["tool_name"], given["tool_input"], ask, inner="agent_id" in given)
        elif subtype == "can_use_tool":
            ask = IdempotencyKey("permission", request_id, request["input"])
            self._calls.asked(
                request["tool_use_id"], request["tool_name"], request["input"], ask, inner=bool(request.get("agent_id"))
            )
        elif subtype == "mcp_message":
            self._mcp(request_id, request["message"])
        else:
            self._write(failure(request_id, f"not supported: {subtype}"))

    def _mcp(self, request_id: str, message: dict[str, Any]) -> None:
        if message.get("method") == "tools/call":
            params = message["params"]
            call_id, name = params["_meta"]["claudecode/toolUseId"], PREFIX + params["name"]
            self._calls.asked(call_id, name, params.get("arguments") or {}, IdempotencyKey("mcp", request_id, message["id"]))
            return
        if message.get("method") == "notifications/cancelled":
            self._calls.uncalled(message["params"]["requestId"])
        self._write(success(request_id, mcp_answer(message, self._tools)))

    def _withdrawn(self, native: dict[str, Any]) -> list[OutputEvent]:
        self._calls.withdrawn(native["request_id"])
        return []

    def _ignore(self, native: dict[str, Any]) -> list[OutputEvent]:
        return []


_READERS: dict[str, Callable[[ClaudeCodec, dict[str, Any]], list[OutputEvent] | None]] = {
    "stream_event": ClaudeCodec._message,
    "assistant": ClaudeCodec._message,
    "user": ClaudeCodec._message,
    "system": ClaudeCodec._system,
    "result": ClaudeCodec._result,
    "control_response": ClaudeCodec._control_response,
    "control_request": ClaudeCodec._control_request,
    "control_cancel_request": ClaudeCodec._withdrawn,
    "tool_progress": ClaudeCodec._ignore,
    "keep_alive": ClaudeCodec._ignore,
    "rate_limit_event": ClaudeCodec._ignore,
}
