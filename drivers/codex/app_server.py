"""The codec of `codex app-server`: one thread a process, warm between turns. Shapes as printed by codex 0.169.0.

Approvals and calls of application-side tools are requests of the CLI's own, and come while others run or the model still writes.
They are gathered until the CLI is silent and then announced in one `awaiting`; what comes after that is held back until
the client has answered, so that each `awaiting` names exactly what is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drivers.codecs.json_rpc import JsonRpcPeer, RpcError
from drivers.codex.approvals import Asks, decline
from drivers.codex.content import user_input
from drivers.codex.handshake import Handshake
from drivers.codex.result import NO_TOKENS, context_of, failure, tokens, usage_of
from drivers.codex.thread_start import Opening
from drivers.codex.turn import TurnStream
from drivers.contract.agent import Prompt, Reply
from drivers.contract.capabilities import SupportsDebounce, SupportsSteering
from drivers.contract.codec import Codec
from drivers.contract.events import Error, NativeSession, OutputEvent, SessionEnd, Stdout, Title
from drivers.contract.lines import parse_object, text_line

SETTLE = 0.2
"""Seconds: requests of one message came up to 20 ms apart (measured, 2 cores), a sandboxed command beside them up to 150 ms."""
SETTLE_RUNNING = 35.0
"""The same while a trusted command of the same message runs: its result belongs before the `awaiting`. After 30 s at most
the CLI leaves a command to the background."""
NO_ENTRY = frozenset({401, 403})


class CodexAppCodec(Codec, SupportsSteering, SupportsDebounce):
    """A live session."""

    title = "codex"

    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self._grants, self._app_tools = opening.grants, frozenset(tool.name for tool in opening.app_tools)
        self._rpc = JsonRpcPeer(self.outbox, version=None)
        self._thread = Handshake(self._rpc, opening)
        self._told_session = False
        self._new_turn()
        self._held: list[OutputEvent] = []
        self._used = NO_TOKENS if opening.resume is None else None
        self._used_before = self._used
        self._clock = self._asked_since = 0
        self._shake()

    def _new_turn(self) -> None:
        self._turn = TurnStream(self._thread.id, self._app_tools)
        self._asks = Asks(self._rpc, self._grants, self._app_tools, self._turn)
        self._turn_runs = self._stopping = self._completed = False
        self._steering = 0
        self._unsaid: list[dict[str, Any]] = []
        self._no_entry: dict[str, Any] | None = None

    def _shake(self) -> None:
        self.start_error = self._thread.start_error
        if self._thread.ready and self.phase == "starting":
            self.native_id, self.phase = self._thread.native_id, "ready"

    # -- towards the CLI ------------------------------------------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        self.phase = "running"
        self._new_turn()
        self._used_before = self._used
        # An empty input asks the model again, with nothing said by the user in between.
        params = {"threadId": self._thread.id, "input": [] if prompt.go_on else user_input(prompt.content)}
        self._rpc.request("turn/start", params, self._turn_accepted)

    def steer(self, prompt: Prompt) -> bool:
        if not self._turn_runs or self._completed or self._stopping:
            return False
        said = user_input(prompt.content)
        params = {"threadId": self._thread.id, "expectedTurnId": self._turn.turn_id, "input": said}
        self._steering += 1
        self._rpc.request("turn/steer", params, lambda result, error: self._steered(said, error))
        return True

    def reply(self, reply: Reply) -> None:
        self._asks.reply(reply, self._thread.id)
        if self.phase == "waiting" and not self._asks.announced:
            self.phase = "running"

    def interrupt(self) -> bool:
        self._stopping = True
        # What is open is rejected by the CLI itself when its turn is interrupted.
        self._asks.open.clear()
        self.phase = "running"
        self._send_interrupt()
        return True

    def _send_interrupt(self) -> None:
        # Before the turn's `turn/started` it is refused: "no active turn to interrupt".
        if self._turn_runs:
            self._rpc.request("turn/interrupt", {"threadId": self._thread.id, "turnId": self._turn.turn_id}, _nothing)

    # -- from the CLI ---------------------------------------------------------------------------------------------------

    def receive(self, line: bytes) -> list[OutputEvent]:
        native = parse_object(line)
        if native is None:
            return self._pass([Stdout(line=text_line(line))] if line.strip() else [])
        try:
            events = self._read(native)
        except (KeyError, TypeError, ValueError, AttributeError):
            # A known message in a shape that is not: shown, as any other line that is not understood.
            events = None
        return self._pass([Stdout(line=text_line(line))] if events is None else events)

    def debounce_seconds(self) -> float | None:
        if self.phase != "running" or not self._asks.open:
            return None
        if self._clock - self._asked_since > SETTLE_RUNNING * 1000:
            # A command that is never silent must not hold the others back.
            return 0.0
        running = self._turn.calls.keys() - self._asks.open.keys()
        return SETTLE_RUNNING if running else SETTLE

    def debounced_events(self) -> list[OutputEvent]:
        if self.phase != "running" or not self._asks.open:
            return []
        events = self._pass([self._asks.announce()])
        self.phase = "waiting"
        return events

    def exited(self, exit_code: int, stderr: Any) -> list[OutputEvent]:
        held, self._held = self._held, []
        running = self.phase in ("running", "waiting")
        events = super().exited(exit_code, stderr)
        return [*held, *self._turn.end(stopped=True), *events] if running else events

    def _pass(self, events: list[OutputEvent]) -> list[OutputEvent]:
        if self.phase == "waiting":
            self._held += events
            return []
        held, self._held = self._held, []
        return [*held, *events]

    def _read(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        method = native.get("method")
        moment = native.get("emittedAtMs")
        self._clock = moment if isinstance(moment, int) else self._clock
        if method is None:
            events = self._rpc.receive_response(native)
            self._shake()
            return events
        if "id" in native:
            return self._request(native["id"], method, native["params"])
        if method in NOISE:
            return []
        if method in _NOTES:
            return _NOTES[method](self, native["params"])
        return self._turn.read(method, native["params"]) if self.phase in ("running", "waiting") else []

    def _request(self, request_id: Any, method: str, params: dict[str, Any]) -> list[OutputEvent] | None:
        if self.phase not in ("running", "waiting") or self._stopping:
            decline(self._rpc, request_id, method)
            return []
        if not self._asks.open:
            self._asked_since = self._clock
        try:
            return self._asks.take(request_id, method, params)
        except (KeyError, TypeError, ValueError, AttributeError):
            # Not understood, but not left unanswered: it would wait for ever.
            decline(self._rpc, request_id, method)
            return None

    def _turn_accepted(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if error or result is None:
            message = error.message if error else ""
            return self._finish([Error(message=f"codex: {message}")], SessionEnd(exit_code=1, stop_reason="error"))
        self._turn.turn_id = result["turn"]["id"]
        return []

    def _steered(self, said: list[dict[str, Any]], error: RpcError | None) -> list[OutputEvent]:
        self._steering -= 1
        if error:
            # The turn was over already: it is said in a turn of its own, in the same run.
            self._unsaid += said
        return self._turn_over() if self._completed and not self._steering else []

    def _turn_over(self) -> list[OutputEvent]:
        if not self._unsaid or self._stopping:
            return self._finish([], SessionEnd(exit_code=0))
        events, said = self._turn.end(stopped=False), self._unsaid
        self._new_turn()
        self._rpc.request("turn/start", {"threadId": self._thread.id, "input": said}, self._turn_accepted)
        return events

    def _turn_started(self, params: dict[str, Any]) -> list[OutputEvent]:
        if self.phase != "running" or self._turn_runs or params["threadId"] != self._thread.id:
            return []
        self._turn.turn_id = params["turn"]["id"]
        self._turn_runs = True
        if self._stopping:
            self._send_interrupt()
        if self._told_session:
            return []
        self._told_session = True
        return [NativeSession(native_id=self.native_id, model=self._thread.model)]

    def _turn_completed(self, params: dict[str, Any]) -> list[OutputEvent] | None:
        turn = params["turn"]
        if self.phase not in ("running", "waiting") or params["threadId"] != self._thread.id or turn["id"] != self._turn.turn_id:
            return []
        status = turn["status"]
        if status == "completed":
            self._completed = True
            return [] if self._steering else self._turn_over()
        if status == "failed":
            return self._finish(*failure(turn.get("error")))
        # An interrupt leaves running commands in the background: they are ended before the run is over.
        self.phase = "running"
        self._asks.open.clear()
        self._rpc.request("thread/backgroundTerminals/clean", {"threadId": self._thread.id}, self._interrupted)
        return []

    def _interrupted(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if self.phase != "running":
            return []
        if self._no_entry is not None and not self._stopping:
            return self._finish(*failure(self._no_entry), stopped=True)
        return self._finish([], SessionEnd(exit_code=130, stop_reason="cancelled"), stopped=True)

    def _finish(self, telling: list[OutputEvent], end: SessionEnd, *, stopped: bool = False) -> list[OutputEvent]:
        events = self._turn.end(stopped=stopped or bool(end.exit_code))
        if self._used is not None and self._used != self._used_before:
            events.append(usage_of(self._used, self._used_before))
        self.phase = "ready"
        self._asks.open.clear()
        return [*events, *telling, end]

    def _token_usage(self, params: dict[str, Any]) -> list[OutputEvent]:
        if params["threadId"] != self._thread.id:
            return []
        usage = params["tokenUsage"]
        now, last = tokens(usage["total"], camel=True), tokens(usage["last"], camel=True)
        self._used = now
        if params["turnId"] != self._turn.turn_id:
            # Told after a resume: where the thread's counters stood.
            self._used_before = now
            return []
        self._used_before = self._used_before or {name: now[name] - last[name] for name in now}
        # It comes when a response and its calls are over, and when they are interrupted.
        over = self.phase == "running" and not self._asks.open and not self._stopping
        told = context_of(usage) if self.phase in ("running", "waiting") else []
        return [*(self._turn.response_over() if over else []), *told]

    def _named(self, params: dict[str, Any]) -> list[OutputEvent]:
        return [Title(text=params.get("threadName"))] if params["threadId"] == self._thread.id else []

    def _error(self, params: dict[str, Any]) -> list[OutputEvent]:
        if params["threadId"] != self._thread.id or self.phase not in ("running", "waiting") or not params.get("willRetry"):
            return []
        if self._no_entry is None and _no_entry(params["error"]):
            # A wrong key stays wrong: by default the CLI tries 6 times, which takes 7 s.
            told = params["error"]
            self._no_entry = {**told, "message": told.get("additionalDetails") or told.get("message")}
            self._send_interrupt()
        return self._turn.retried()


def _no_entry(error: dict[str, Any]) -> bool:
    details = str(error.get("additionalDetails"))
    info = error.get("codexErrorInfo")
    codes = [part.get("httpStatusCode") for part in info.values() if isinstance(part, dict)] if isinstance(info, dict) else []
    # Where a web socket is refused, the CLI goes on over HTTP.
    return any(code in NO_ENTRY for code in codes) and "url: ws" not in details


def _nothing(result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
    return []


_NOTES: dict[str, Callable[[CodexAppCodec, dict[str, Any]], list[OutputEvent] | None]] = {
    "turn/started": CodexAppCodec._turn_started,
    "turn/completed": CodexAppCodec._turn_completed,
    "thread/tokenUsage/updated": CodexAppCodec._token_usage,
    "thread/name/updated": CodexAppCodec._named,
    "error": CodexAppCodec._error,
}

NOISE = frozenset(
    {
        "account/rateLimits/updated", "account/updated", "configWarning", "item/commandExecution/terminalInteraction",
        "item/fileChange/outputDelta", "item/fileChange/patchUpdated", "item/mcpToolCall/progress",
        "mcpServer/startupStatus/updated",
        "remoteControl/status/changed", "serverRequest/resolved", "skills/changed", "thread/compacted", "thread/goal/cleared",
        "thread/readState/changed", "thread/settings/updated", "thread/started", "thread/status/changed",
        "turn/diff/updated",
    }
)  # fmt: skip
"""Notifications that tell nothing that another one does not tell better."""
