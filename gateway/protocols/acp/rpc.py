"""JSON-RPC 2.0 with one client: writes messages in order, matches answers to the gateway's requests, and maps errors to codes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from drivers.codecs.json_rpc import as_json
from gateway.errors import BadRequest, ConfigError, Conflict, Forbidden, GatewayError, LeaseLost, NotFound, SessionElsewhere
from gateway.security.redaction import Redactor, current_redactor

log = logging.getLogger(__name__)

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32600, -32601, -32602, -32603
AUTH_REQUIRED, NOT_FOUND = -32000, -32002
ELSEWHERE = -32091
"""Another node of the cluster has the session. A node to which a connection is forwarded answers with it, and so does one whose
client has other sessions open."""

Id = int | str | None


class RpcError(Exception):
    """A JSON-RPC error, of the gateway to the client or of the client to the gateway. `code` is that of JSON-RPC or of ACP."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_body(code: int, message: str) -> dict[str, Any]:
    """Return the JSON of an error. The message is in `data.details` too: clients display one or the other (Toad 0.6.20)."""
    return {"code": code, "message": message, "data": {"details": message}}


def rpc_error(error: Exception) -> RpcError:
    """Return the JSON-RPC error for an exception. An unexpected exception is logged; the client gets only its type's name."""
    match error:
        case RpcError():
            return error
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            path = ".".join(str(part) for part in ("params", *first["loc"]))
            return RpcError(INVALID_PARAMS, f"{path}: {first['msg'].lower()}")
        case NotFound():
            return RpcError(NOT_FOUND, str(error))
        case BadRequest() | Forbidden():
            return RpcError(INVALID_PARAMS, str(error))
        case Conflict():
            return RpcError(INVALID_REQUEST, str(error))
        case SessionElsewhere(log_id=None):
            text = "a new session belongs on another node of the cluster: this one is drained, or has not its folder"
            return RpcError(ELSEWHERE, f"{text}; open another connection for it")
        case SessionElsewhere():
            text = f"session {error.log_id!r} is on another node of the cluster at this moment"
            return RpcError(ELSEWHERE, f"{text}; open another connection for it")
        case LeaseLost():
            text = f"session {error.log_id!r} is on another node of the cluster by now"
            return RpcError(ELSEWHERE, f"{text}; send session/load or session/resume for it again")
        case GatewayError() | ConfigError():
            return RpcError(INTERNAL_ERROR, str(error))
    log.error("the gateway failed", exc_info=error)
    return RpcError(INTERNAL_ERROR, f"the gateway failed: {type(error).__name__}")


class Client:
    """The client's end of the connection. Messages are written one at a time, in the order of the calls.

    `send` writes one message to the transport. It may wait, for a client that reads slowly, and raises if the client is gone.
    `send_all` does the same for several messages; by default each is sent by `send`. Requests have ids above `last_request_id`.
    """

    def __init__(
        self,
        send: Callable[[dict[str, Any]], Awaitable[None]],
        redactor: Redactor,
        send_all: Callable[[Sequence[dict[str, Any]]], Awaitable[None]] | None = None,
        last_request_id: int = 0,
    ) -> None:
        self._send, self._send_all, self._redactor = send, send_all, redactor
        self._write_lock = asyncio.Lock()
        self._pending: dict[Id, asyncio.Future[dict[str, Any]]] = {}
        self._last_id = last_request_id
        self._stopped = False

    async def notify(self, method: str, params: BaseModel | dict[str, Any]) -> None:
        """Send a notification."""
        await self._write({"jsonrpc": "2.0", "method": method, "params": as_json(params)})

    async def notify_all(self, method: str, params: Iterable[dict[str, Any]]) -> None:
        """Send notifications of one method in their order."""
        await self._write(*({"jsonrpc": "2.0", "method": method, "params": each} for each in params))

    async def respond(self, request_id: Id, result: BaseModel | dict[str, Any]) -> None:
        """Answer a request with its result."""
        await self._write({"jsonrpc": "2.0", "id": request_id, "result": as_json(result)})

    async def respond_error(self, request_id: Id, error: RpcError) -> None:
        """Answer a request with an error. Its message is redacted and put on one line."""
        message = " ".join(current_redactor(self._redactor).clean(str(error)).split())
        await self._write({"jsonrpc": "2.0", "id": request_id, "error": error_body(error.code, message)})

    async def forward(self, message: dict[str, Any]) -> None:
        """Write a message of another node of the cluster as it is."""
        await self._write(message)

    @property
    def last_request_id(self) -> int:
        """The id of the last request."""
        return self._last_id

    async def request(self, method: str, params: BaseModel | dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the client's result. Raises RpcError for an error of the client.

        If the caller is cancelled, the client gets `$/cancel_request`
        (https://agentclientprotocol.com/rfds/request-cancellation).
        """
        self._last_id += 1
        request_id = self._last_id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answer
        try:
            await self._write({"jsonrpc": "2.0", "id": request_id, "method": method, "params": as_json(params)})
            return await answer
        except asyncio.CancelledError:
            await self.notify("$/cancel_request", {"requestId": request_id})
            raise
        finally:
            del self._pending[request_id]

    def resolve(self, message: dict[str, Any]) -> None:
        """Accept the client's answer to a request. An answer to a request that is not pending is ignored."""
        answer = self._pending.get(message["id"])
        if answer is None or answer.done():
            return
        result, error = message.get("result"), message.get("error")
        if error is None:
            answer.set_result(result if isinstance(result, dict) else {})
        else:
            body = error if isinstance(error, dict) else {"message": str(error)}
            code = body.get("code")
            answer.set_exception(RpcError(code if isinstance(code, int) else INTERNAL_ERROR, str(body.get("message"))))

    def stop_writing(self) -> None:
        """Drop all messages from now on, because the client is gone."""
        self._stopped = True

    def cancel_pending(self) -> None:
        """Cancel all pending requests, because the client is gone and answers none of them."""
        for answer in list(self._pending.values()):
            answer.cancel()

    async def _write(self, *messages: dict[str, Any]) -> None:
        async with self._write_lock:
            if self._stopped:
                return
            try:
                if self._send_all is not None and len(messages) > 1:
                    return await self._send_all(messages)
                for message in messages:
                    await self._send(message)
            except Exception as error:
                # The transport closes the connection. Runs continue.
                log.info("an ACP client is gone: %s: %s", type(error).__name__, error)
                self._stopped = True
