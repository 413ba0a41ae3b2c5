"""The codec of programs that use the gateway's own lines: they write one OutputEvent a line and read one request a line.

Requests are JSON objects with a `type`: `open` (first, with the session's settings), `prompt`, `reply`, `steer`, `interrupt`,
and `answer` to a line of the kind `client_request`, which is a request to the session's client.
A session is ready with its first `native_session` event; `session_end` ends a run. docs/writing-a-driver.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from drivers.codecs.json_lines import CUT_OBJECT, unstructured
from drivers.contract.agent import PermissionReply, Prompt, Reply
from drivers.contract.agent_specs import SessionSpec
from drivers.contract.capabilities import SupportsClientRequests, SupportsSteering
from drivers.contract.client_services import ClientRequest, ClientResponse
from drivers.contract.codec import IN_RUN, Codec
from drivers.contract.events import Awaiting, NativeSession, OutputEvent, SessionEnd, decode
from drivers.contract.line_splitter import excerpt, line_parts, parse_object

TURN_ENDS = ("awaiting", "session_end")
"""Kinds of events that a run cannot go on without: a malformed one is a `protocol_error`."""


def request(kind: str, **fields: Any) -> bytes:
    """One request line."""
    return to_json({"type": kind, **fields}, by_alias=True) + b"\n"


def open_request(spec: SessionSpec, **fields: Any) -> bytes:
    """The first request of a session: its options, system prompt, tools, folders and history, and fields of one program."""
    return request(
        "open",
        options=dict(spec.options),
        system=spec.seed.system,
        tools=[{"name": grant.name, "trust": grant.trust} for grant in spec.tools],
        app_tools=[tool.name for tool in spec.app_tools],
        additional_directories=[str(path) for path in spec.additional_directories],
        history=spec.seed.history,
        **fields,
    )


class EventLineCodec(Codec, SupportsSteering, SupportsClientRequests):
    """One process.

    Parameters:
        greeting: Bytes to write first, such as an `open` request.
        once: The form of a task, whose run begins and ends with the process.
    """

    def __init__(self, greeting: bytes = b"", *, once: bool = False) -> None:
        super().__init__()
        self.outbox += greeting
        self._once = once
        self._awaited: set[str] = set()
        if once:
            self.phase = "running"

    def receive(self, line: bytes) -> list[OutputEvent]:
        try:
            event = decode(line)
        except (ValidationError, ValueError):
            message = parse_object(line)
            return self._receive_parts(line) if message is None else self._no_event(message, line)
        return self._receive_event(event, line)

    def _receive_parts(self, line: bytes) -> list[OutputEvent]:
        parts, is_cut = line_parts(line)
        events: list[OutputEvent] = []
        for part in parts:
            events += unstructured(part.text.encode()) if part.message is None else self.receive(to_json(part.message))
            if self.protocol_error is not None:
                return events
        if is_cut and self.phase != "ready":
            self.protocol_error = f"{self.title} wrote {CUT_OBJECT}: {excerpt(line)}"
        return events

    def _no_event(self, message: dict[str, Any], line: bytes) -> list[OutputEvent]:
        if client_request := _client_request(message):
            self.client_requests.append(client_request)
            return []
        kind = message.get("kind")
        if kind == "native_session" if self.phase == "starting" else kind in TURN_ENDS and self.phase in IN_RUN:
            self.protocol_error = f"{self.title} wrote a malformed {kind} event: {excerpt(line)}"
        return unstructured(line)

    def _receive_event(self, event: OutputEvent, line: bytes) -> list[OutputEvent]:
        if isinstance(event, Awaiting | SessionEnd) and self.phase not in IN_RUN:
            # It belongs to no run.
            return unstructured(line)
        if isinstance(event, NativeSession):
            self.native_id = event.native_id
            self.phase = "ready" if self.phase == "starting" else self.phase
        elif isinstance(event, Awaiting):
            self._awaited |= {call.id for call in event.calls}
            self.phase = "waiting"
        elif isinstance(event, SessionEnd):
            return self._ended(event)
        return [event]

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self._once and exit_code == 0 and self.run_result is None:
            # A program that ends without `session_end` has done its task unless its exit code is an error.
            self.run_result = SessionEnd(exit_code=0)
        return super().exited(exit_code, stderr)

    def prompt(self, prompt: Prompt) -> None:
        self.phase = "running"
        self._awaited.clear()
        self.outbox += request("prompt", content=prompt.content, **({"go_on": True} if prompt.go_on else {}))

    def reply(self, reply: Reply) -> None:
        if self.phase != "waiting":
            return
        self._awaited.discard(reply.call_id)
        if not self._awaited:
            self.phase = "running"
        if isinstance(reply, PermissionReply):
            own = {"choice": reply.choice} if reply.choice is not None else {}
            self.outbox += request("reply", id=reply.call_id, granted=reply.allowed, reason=reply.reason, **own)
        else:
            self.outbox += request("reply", id=reply.call_id, content=reply.content)

    def steer(self, prompt: Prompt) -> bool:
        self.outbox += request("steer", content=prompt.content)
        return True

    def client_responded(self, client_request: ClientRequest, response: ClientResponse) -> None:
        failed = response.error is not None
        outcome = {"error": response.error, "code": response.code} if failed else {"result": dict(response.result)}
        self.outbox += request("answer", id=client_request.id, **outcome)

    def interrupt(self) -> bool:
        self.outbox += request("interrupt")
        return not self._once

    def _ended(self, event: SessionEnd) -> list[OutputEvent]:
        if self._once:
            self.run_result = event
            return []
        self.phase = "ready"
        return [event]


def _client_request(message: dict[str, Any]) -> ClientRequest | None:
    """The request of a line `{"kind": "client_request", "id": …, "method": …, "params": {…}}`, for the session's client only."""
    if message.get("kind") != "client_request":
        return None
    request_id, method, params = message.get("id"), message.get("method"), message.get("params")
    if not isinstance(request_id, int | str) or not isinstance(method, str) or not isinstance(params, dict):
        return None
    return ClientRequest(request_id, method, params, client_only=True)
