"""JSON-RPC 2.0 as the Agent Client Protocol uses it: requests and their answers, one message a line; pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acp.schema import BaseModel, Error
from pydantic_core import to_json

from drivers.contract.events import OutputEvent

METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602
AUTH_REQUIRED, NOT_FOUND = -32000, -32002

Answer = Callable[[dict[str, Any] | None, Error | None], list[OutputEvent]]
"""What becomes of a request: its result, or the error that was given instead."""


class Rpc:
    """Our side of the connection; what is to be written goes to `outbox`."""

    def __init__(self, outbox: bytearray) -> None:
        self._outbox = outbox
        self._last = 0
        self._open: dict[int | str, Answer] = {}

    def request(self, method: str, params: BaseModel | dict[str, Any], answer: Answer) -> None:
        """Ask the agent; `answer` is called with what it says."""
        self._last += 1
        self._open[self._last] = answer
        self._write({"id": self._last, "method": method, "params": plain(params)})

    def notify(self, method: str, params: BaseModel | dict[str, Any]) -> None:
        self._write({"method": method, "params": plain(params)})

    def reply(self, question_id: int | str, result: BaseModel | dict[str, Any]) -> None:
        self._write({"id": question_id, "result": plain(result)})

    def refuse(self, question_id: int | str, code: int, message: str) -> None:
        self._write({"id": question_id, "error": {"code": code, "message": message}})

    def answered(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        """The events of an answer to a request of ours; None if there is no such request."""
        answer = self._open.pop(message["id"], None) if isinstance(message["id"], int | str) else None
        if answer is None:
            return None
        if "error" in message:
            return answer(None, error_of(message["error"]))
        result = message.get("result")
        return answer(result if isinstance(result, dict) else {}, None)

    def _write(self, message: dict[str, Any]) -> None:
        self._outbox += to_json({"jsonrpc": "2.0", **message}) + b"\n"


def plain(value: BaseModel | dict[str, Any]) -> dict[str, Any]:
    """A message's part as JSON data, with the names of the wire."""
    return value if isinstance(value, dict) else value.model_dump(mode="json", by_alias=True, exclude_none=True)


def error_of(given: Any) -> Error:
    """An error, whatever the agent has put there."""
    try:
        return Error.model_validate(given)
    except ValueError:
        return Error.model_validate({"code": -32603, "message": str(given)})


def said(error: Error) -> str:
    """An error for people: its message, the details that some agents give, and its code."""
    data = error.data
    details = data.get("details") or data.get("message") if isinstance(data, dict) else data
    text = f"{error.message}: {details}" if isinstance(details, str) and details not in error.message else error.message
    return f"{text} (code {_code(error)})"


def _code(error: Error) -> Any:
    code = error.code
    return getattr(code, "root", getattr(code, "value", code))
