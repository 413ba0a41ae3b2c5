"""The codec of programs that speak the gateway's own lines: one OutputEvent a line out, one request a line in.

Requests are JSON objects with a `type`: `open` (first, with the session's settings), `prompt`, `reply`, `steer`, `interrupt`,
and `answer` to what the program asks of the session's client by a line of the kind `client_request`.
A session says that it is ready by a `native_session` event; `session_end` ends a run. docs/writing-a-driver.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from drivers.contract.agent import PermissionReply, Prompt, Reply
from drivers.contract.capabilities import SupportsClientRequests, SupportsSteering
from drivers.contract.client_services import ClientRequest, ClientResponse
from drivers.contract.codec import Codec
from drivers.contract.events import Awaiting, NativeSession, OutputEvent, SessionEnd, Stdout, decode
from drivers.contract.lines import parse_object, text_line
from drivers.contract.specs import SessionSpec


def request(kind: str, **fields: Any) -> bytes:
    """One request line."""
    return to_json({"type": kind, **fields}, by_alias=True) + b"\n"


def open_request(spec: SessionSpec) -> bytes:
    """The first request of a session: its options, system prompt, tools, folders and the history to go on from."""
    return request(
        "open",
        options=dict(spec.options),
        system=spec.system,
        tools=[{"name": grant.name, "trust": grant.trust} for grant in spec.tools],
        app_tools=[tool.name for tool in spec.app_tools],
        additional_directories=[str(path) for path in spec.additional_directories],
        history=spec.history,
    )


class EventLineCodec(Codec, SupportsSteering, SupportsClientRequests):
    """`once` is the task form: the run is under way from the start and its end is the process' own."""

    def __init__(self, greeting: bytes = b"", *, once: bool = False) -> None:
        super().__init__()
        self.outbox += greeting
        self._once = once
        self._open: set[str] = set()
        if once:
            self.phase = "running"

    def receive(self, line: bytes) -> list[OutputEvent]:
        try:
            event = decode(line)
        except (ValidationError, ValueError):
            if asked := _client_request(line):
                self.client_requests.append(asked)
                return []
            return [Stdout(line=text_line(line))] if line.strip() else []
        if isinstance(event, Awaiting | SessionEnd) and self.phase not in ("running", "waiting"):
            # Of no run: shown as it came.
            return [Stdout(line=text_line(line))]
        if isinstance(event, NativeSession):
            self.native_id = event.native_id
            self.phase = "ready" if self.phase == "starting" else self.phase
        elif isinstance(event, Awaiting):
            self._open |= {call.id for call in event.calls}
            self.phase = "waiting"
        elif isinstance(event, SessionEnd):
            return self._ended(event)
        return [event]

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self._once and exit_code == 0 and self.run_result is None:
            # A program that just ends has done its task; only its exit code says that it has not.
            self.run_result = SessionEnd(exit_code=0)
        return super().exited(exit_code, stderr)

    def prompt(self, prompt: Prompt) -> None:
        self.phase = "running"
        self._open.clear()
        self.outbox += request("prompt", content=prompt.content, **({"go_on": True} if prompt.go_on else {}))

    def reply(self, reply: Reply) -> None:
        if self.phase != "waiting":
            return
        self._open.discard(reply.call_id)
        if not self._open:
            self.phase = "running"
        if isinstance(reply, PermissionReply):
            self.outbox += request("reply", id=reply.call_id, granted=reply.granted, reason=reply.reason)
        else:
            self.outbox += request("reply", id=reply.call_id, content=reply.content)

    def steer(self, prompt: Prompt) -> bool:
        self.outbox += request("steer", content=prompt.content)
        return True

    def client_responded(self, asked: ClientRequest, answer: ClientResponse) -> None:
        came = {"result": dict(answer.result)} if answer.error is None else {"error": answer.error, "code": answer.code}
        self.outbox += request("answer", id=asked.id, **came)

    def interrupt(self) -> bool:
        self.outbox += request("interrupt")
        return not self._once

    def _ended(self, event: SessionEnd) -> list[OutputEvent]:
        if self._once:
            self.run_result = event
            return []
        self.phase = "ready"
        return [event]


def _client_request(line: bytes) -> ClientRequest | None:
    """`{"kind": "client_request", "id": …, "method": …, "params": {…}}`: for the session's client, and nobody else."""
    asked = parse_object(line)
    if asked is None or asked.get("kind") != "client_request":
        return None
    asked_id, method, params = asked.get("id"), asked.get("method"), asked.get("params")
    if not isinstance(asked_id, int | str) or not isinstance(method, str) or not isinstance(params, dict):
        return None
    return ClientRequest(asked_id, method, params, client_only=True)
