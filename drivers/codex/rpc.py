"""The JSON-RPC of `codex app-server`, whose messages lack the member `jsonrpc`: ids, requests and their answers; sans-I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_json

from drivers.contract.events import OutputEvent

Then = Callable[[dict[str, Any]], list[OutputEvent]]
"""What to do with an answer: a message with `result` or `error`."""

DECLINED: Mapping[str, dict[str, Any]] = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "mcpServer/elicitation/request": {"action": "decline", "content": None},
    "item/permissions/requestApproval": {"permissions": {}},
    "item/tool/requestUserInput": {"answers": {}},
    "execCommandApproval": {"decision": "denied"},
    "applyPatchApproval": {"decision": "denied"},
}
"""How to say no to the CLI's requests, each in its own words."""


class Rpc:
    """One connection; what is to be written goes into `outbox`."""

    def __init__(self, outbox: bytearray) -> None:
        self._outbox = outbox
        self._last = 0
        self._open: dict[int, Then] = {}

    def request(self, method: str, params: dict[str, Any], then: Then) -> None:
        """Ask the server; `then` gets its answer."""
        self._last += 1
        self._open[self._last] = then
        self._write({"id": self._last, "method": method, "params": params})

    def notify(self, method: str) -> None:
        self._write({"method": method})

    def answer(self, request_id: Any, result: dict[str, Any]) -> None:
        """Answer one of the server's own requests."""
        self._write({"id": request_id, "result": result})

    def decline(self, request_id: Any, method: str) -> None:
        """Say no to one of the server's own requests, in its own way."""
        if method in DECLINED:
            return self.answer(request_id, DECLINED[method])
        self._write({"id": request_id, "error": {"code": -32601, "message": f"{method} is not supported"}})

    def answered(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        """Pass an answer on to who asked; None if nobody did."""
        then = self._open.pop(message["id"], None)
        return then(message) if then else None

    def _write(self, message: dict[str, Any]) -> None:
        self._outbox += to_json(message) + b"\n"


def error_of(message: dict[str, Any]) -> str | None:
    """Why a request failed; None if it did not."""
    error = message.get("error")
    if error is None:
        return None
    return str(error.get("message") if isinstance(error, dict) else error)
