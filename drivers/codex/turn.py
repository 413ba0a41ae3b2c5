"""One turn of `codex app-server`: notifications in, text, thinking, tool calls and their results out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drivers.codex.items import Call, call_of, outcome_of, snake
from drivers.contract.events import AgentToken, Compacted, Hook, MessageEnd, OutputEvent, Thinking

TokenKind = type[AgentToken] | type[Thinking]
LIFECYCLE_HOOKS = frozenset({"sessionStart", "sessionEnd", "stop"})
STILL_RUNNING = "[still running in the background]"


class TurnStream:
    """`calls` are the open ones by id, `denials` why the client said no."""

    def __init__(self, thread_id: str | None, app_tools: frozenset[str]) -> None:
        self.calls: dict[str, Call] = {}
        self.denials: dict[str, str | None] = {}
        self.turn_id: str | None = None
        self._thread_id, self._app_tools = thread_id, app_tools
        self._held: dict[str, Call] = {}
        self._background: set[str] = set()
        self._streamed: set[str] = set()
        self._said = self._dirty = False

    def read(self, method: str, params: dict[str, Any]) -> list[OutputEvent] | None:
        """The events of a notification; None if it is not known."""
        read = _READERS.get(method)
        return read(self, params) if read else None

    def ask(self, call_id: str, reason: str | None) -> list[OutputEvent]:
        """The start of a call whose permission is asked for, if it has not been told yet."""
        call = self._held.pop(call_id, None)
        if call is None:
            return []
        return self._start(call.with_reason(reason) if reason else call)

    def call(self, call: Call) -> list[OutputEvent]:
        """The start of a call that is known by a request only."""
        return [] if call.id in self.calls else self._start(call)

    def retried(self) -> list[OutputEvent]:
        """The model's stream broke and it is asked again: what was streamed of the message does not count."""
        if not self._dirty:
            return []
        self._said = self._dirty = False
        return [MessageEnd(discarded=True)]

    def response_over(self) -> list[OutputEvent]:
        """A response of the model and its calls are over: a command that still runs does so in the background."""
        running = [call for call in self.calls.values() if call.name == "shell"]
        for call in running:
            del self.calls[call.id]
            self._background.add(call.id)
        return [event for call in running for event in call.ended(STILL_RUNNING, failed=False)]

    def end(self, *, stopped: bool) -> list[OutputEvent]:
        """What is left when the turn is over."""
        events: list[OutputEvent] = []
        for call_id in list(self._held):
            events += self.ask(call_id, None)
        if not stopped:
            events += self.response_over()
        events += [call.closed(failed=True) for call in self.calls.values()]
        self.calls.clear()
        return [*events, *self._message_end()]

    def _mine(self, params: dict[str, Any]) -> bool:
        return self._thread_id is None or params.get("threadId", self._thread_id) == self._thread_id

    def _item_started(self, params: dict[str, Any]) -> list[OutputEvent] | None:
        item = snake(params["item"])
        if item["type"] in ("agent_message", "reasoning"):
            return self._message_end() if self._said and self._mine(params) else []
        return self._begin(item)

    def _begin(self, item: dict[str, Any]) -> list[OutputEvent] | None:
        call = call_of(item)
        if call is None:
            return [] if item["type"] in SILENT else None
        if call.id in self.calls or call.id in self._held:
            return []
        if item["type"] == "command_execution" and item.get("source") == "agent" and not item.get("process_id"):
            # It may be asked for: the request, which is the next line, has the reason.
            self._held[call.id] = call
            return []
        return self._start(call)

    def _start(self, call: Call) -> list[OutputEvent]:
        self.calls[call.id] = call
        self._said = self._dirty = False
        return [call.started()]

    def _item_completed(self, params: dict[str, Any]) -> list[OutputEvent] | None:
        item = snake(params["item"])
        if item["type"] == "agent_message":
            return self._whole(params, AgentToken, item["id"], item["text"])
        if item["type"] == "reasoning":
            return self._whole(params, Thinking, item["id"], "\n\n".join(item.get("summary") or item.get("content") or []))
        if item["type"] == "context_compaction":
            # What is left of the thread the CLI keeps to itself.
            return [*self._message_end(), Compacted()] if self._mine(params) else []
        if item["id"] in self._background or (
            item["id"] not in self.calls and params.get("turnId", self.turn_id) != self.turn_id
        ):
            return []
        events = self._begin(item)
        if events is None or call_of(item) is None:
            return events
        events += self.ask(item["id"], None)
        call = self.calls.pop(item["id"])
        if item["type"] == "dynamic_tool_call" and call.name in self._app_tools:
            # The client has given the result itself.
            return [*events, call.closed(failed=outcome_of(item)[1])]
        output, failed = outcome_of(item, self.denials.get(call.id), denied=call.id in self.denials)
        return [*events, *call.ended(output, failed=failed)]

    def _whole(self, params: dict[str, Any], kind: TokenKind, item_id: str, text: str) -> list[OutputEvent]:
        if item_id in self._streamed or not text or not self._mine(params):
            return []
        return self._token(kind, item_id, text)

    def _token(self, kind: TokenKind, item_id: str, text: str) -> list[OutputEvent]:
        self._streamed.add(item_id)
        self._dirty = True
        self._said = self._said or kind is AgentToken
        return [kind(text=text)]

    def _message_delta(self, params: dict[str, Any]) -> list[OutputEvent]:
        return self._token(AgentToken, params["itemId"], params["delta"]) if params["delta"] and self._mine(params) else []

    def _summary_delta(self, params: dict[str, Any]) -> list[OutputEvent]:
        return self._token(Thinking, params["itemId"], params["delta"]) if params["delta"] and self._mine(params) else []

    def _summary_part(self, params: dict[str, Any]) -> list[OutputEvent]:
        return self._token(Thinking, params["itemId"], "\n\n") if params.get("summaryIndex") and self._mine(params) else []

    def _output_delta(self, params: dict[str, Any]) -> list[OutputEvent]:
        return self.ask(params["itemId"], None)

    def _hook(self, params: dict[str, Any]) -> list[OutputEvent]:
        run = params["run"]
        if run["eventName"] in LIFECYCLE_HOOKS:
            return []
        status = "started" if run["status"] == "running" else str(run["status"])
        return [Hook(id=run["id"], name=run["eventName"], status=status)]

    def _message_end(self) -> list[OutputEvent]:
        if not self._said and not self._dirty:
            return []
        self._said = self._dirty = False
        return [MessageEnd()]


SILENT = frozenset(
    {
        "user_message", "hook_prompt", "plan", "context_compaction", "sub_agent_activity", "entered_review_mode",
        "exited_review_mode", "sleep", "function_call_output", "agent_message", "reasoning",
    }
)  # fmt: skip
"""Items that are no calls and tell nothing that a client could use."""

_READERS: dict[str, Callable[[TurnStream, dict[str, Any]], list[OutputEvent] | None]] = {
    "item/started": TurnStream._item_started,
    "item/completed": TurnStream._item_completed,
    "item/agentMessage/delta": TurnStream._message_delta,
    "item/reasoning/summaryTextDelta": TurnStream._summary_delta,
    "item/reasoning/textDelta": TurnStream._summary_delta,
    "item/reasoning/summaryPartAdded": TurnStream._summary_part,
    "item/commandExecution/outputDelta": TurnStream._output_delta,
    "hook/started": TurnStream._hook,
    "hook/completed": TurnStream._hook,
}
