"""JSON-RPC 2.0, one message a line: a peer that matches responses to its requests. It writes to a buffer and does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from drivers.contract.client_services import INTERNAL_ERROR
from drivers.contract.events import OutputEvent

Params = BaseModel | Mapping[str, Any]
RequestId = int | str
RESPONSE = frozenset({"jsonrpc", "id", "result", "error"})
"""The members of a response."""


@dataclass(frozen=True, slots=True)
class RpcError:
    """The `error` member of a response (JSON-RPC 2.0, section 5.1)."""

    code: int
    message: str
    data: Any = None

    @classmethod
    def parse(cls, error: Any) -> RpcError:
        """Read an error member of any shape: without a text message, the whole member becomes the message."""
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            return cls(INTERNAL_ERROR, str(error))
        code = error.get("code")
        return cls(code if isinstance(code, int) else INTERNAL_ERROR, error["message"], error.get("data"))

    def describe(self) -> str:
        """The message, the details that some servers put in `data`, and the code."""
        details = self.data.get("details") or self.data.get("message") if isinstance(self.data, dict) else self.data
        text = f"{self.message}: {details}" if isinstance(details, str) and details not in self.message else self.message
        return f"{text} (code {self.code})"


def is_response(message: Mapping[str, Any]) -> bool:
    """Whether a message is a response, perhaps a malformed one, and not a line of a log in JSON."""
    members = message.keys()
    if "method" in members or not members:
        return False
    return members <= RESPONSE or bool(members & {"id", "jsonrpc"} and members & {"result", "error"})


ResponseHandler = Callable[[dict[str, Any] | None, RpcError | None], list[OutputEvent]]
"""Takes the result of a request, or None and the error. A result that is not an object is passed as an empty one."""


class JsonRpcPeer:
    """One end of a connection.

    Parameters:
        outbox: The buffer to which each message is appended, as one line.
        version: The value of the member `jsonrpc`. None leaves the member out, as `codex app-server` does.
    """

    def __init__(self, outbox: bytearray, *, version: str | None = "2.0") -> None:
        self._outbox = outbox
        self._envelope: dict[str, Any] = {} if version is None else {"jsonrpc": version}
        self._last_id = 0
        self._handlers: dict[int, ResponseHandler] = {}

    def request(self, method: str, params: Params, handler: ResponseHandler) -> None:
        """Send a request. `handler` is called with its response by `receive_response`."""
        self._last_id += 1
        self._handlers[self._last_id] = handler
        self._send({"id": self._last_id, "method": method, "params": as_json(params)})

    def notify(self, method: str, params: Params | None = None) -> None:
        """Send a notification; None leaves the member `params` out."""
        self._send({"method": method} if params is None else {"method": method, "params": as_json(params)})

    def respond(self, request_id: RequestId, result: Params) -> None:
        """Send the result of a request of the other end."""
        self._send({"id": request_id, "result": as_json(result)})

    def respond_error(self, request_id: RequestId, code: int, message: str) -> None:
        """Send an error as the response to a request of the other end."""
        self._send({"id": request_id, "error": {"code": code, "message": message}})

    def has_sent(self, request_id: Any) -> bool:
        """Whether a request with this id was sent, answered or not."""
        return isinstance(request_id, int) and not isinstance(request_id, bool) and 0 < request_id <= self._last_id

    def receive_response(self, message: Mapping[str, Any]) -> list[OutputEvent] | None:
        """The events of a response; None if no request with its id is pending. Raises KeyError for a message without an id."""
        request_id = message["id"]
        handler = self._handlers.pop(request_id, None) if isinstance(request_id, int) else None
        if handler is None:
            return None
        error = message.get("error")
        if error is not None:
            return handler(None, RpcError.parse(error))
        result = message.get("result")
        return handler(result if isinstance(result, dict) else {}, None)

    def _send(self, message: dict[str, Any]) -> None:
        self._outbox += to_json({**self._envelope, **message}) + b"\n"


def as_json(value: Params) -> dict[str, Any]:
    """A model as JSON data under the names of the wire, without members that are None; a mapping as it is."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dict(value)
