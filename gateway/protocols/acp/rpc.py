"""JSON-RPC 2.0 with one client: what is written to it, in order, and what it is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from acp.schema import BaseModel
from pydantic import ValidationError

from drivers.codecs.json_rpc import as_json
from gateway.errors import BadRequest, Conflict, GatewayError, NotFound
from gateway.security.redaction import Redactor

log = logging.getLogger(__name__)

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32600, -32601, -32602, -32603
AUTH_REQUIRED, NOT_FOUND = -32000, -32002

Id = int | str | None


class RpcError(Exception):
    """An error of JSON-RPC: ours to the client, or the client's to us."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def rpc_error(error: Exception) -> RpcError:
    """What goes wrong, with its code. The text is for people."""
    match error:
        case RpcError():
            return error
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            path = ".".join(str(part) for part in ("params", *first["loc"]))
            return RpcError(INVALID_PARAMS, f"{path}: {first['msg'].lower()}")
        case NotFound():
            return RpcError(NOT_FOUND, str(error))
        case BadRequest():
            return RpcError(INVALID_PARAMS, str(error))
        case Conflict():
            return RpcError(INVALID_REQUEST, str(error))
        case GatewayError():
            return RpcError(INTERNAL_ERROR, str(error))
    log.error("the gateway failed", exc_info=error)
    return RpcError(INTERNAL_ERROR, f"the gateway failed: {type(error).__name__}")


class Client:
    """The other end. Messages are written one after the other, in the order of the calls."""

    def __init__(self, send: Callable[[dict[str, Any]], Awaitable[None]], redactor: Redactor) -> None:
        self._send, self._redactor = send, redactor
        self._writing = asyncio.Lock()
        self._asked: dict[Id, asyncio.Future[dict[str, Any]]] = {}
        self._last = 0
        self._gone = False

    async def notify(self, method: str, params: BaseModel | dict[str, Any]) -> None:
        await self._write({"jsonrpc": "2.0", "method": method, "params": as_json(params)})

    async def respond(self, request_id: Id, result: BaseModel | dict[str, Any]) -> None:
        await self._write({"jsonrpc": "2.0", "id": request_id, "result": as_json(result)})

    async def refuse(self, request_id: Id, error: RpcError) -> None:
        """Answer with an error; its message is one line."""
        said = {"code": error.code, "message": " ".join(self._redactor.clean(str(error)).split())}
        await self._write({"jsonrpc": "2.0", "id": request_id, "error": said})

    async def ask(self, method: str, params: BaseModel | dict[str, Any]) -> dict[str, Any]:
        """The client's result. Raises RpcError. Where this is cancelled, the client is told that no answer is needed."""
        self._last += 1
        request_id = self._last
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[request_id] = answer
        try:
            await self._write({"jsonrpc": "2.0", "id": request_id, "method": method, "params": as_json(params)})
            return await answer
        except asyncio.CancelledError:
            await self.notify("$/cancel_request", {"requestId": request_id})
            raise
        finally:
            del self._asked[request_id]

    def answered(self, message: dict[str, Any]) -> None:
        """Take the client's answer; one that nobody waits for any more is nothing."""
        answer = self._asked.get(message["id"])
        if answer is None or answer.done():
            return
        result, error = message.get("result"), message.get("error")
        if error is None:
            answer.set_result(result if isinstance(result, dict) else {})
        else:
            told = error if isinstance(error, dict) else {"message": str(error)}
            code = told.get("code")
            answer.set_exception(RpcError(code if isinstance(code, int) else INTERNAL_ERROR, str(told.get("message"))))

    def gone(self) -> None:
        """Nothing is written any more."""
        self._gone = True

    def forget(self) -> None:
        """It is gone, and answers nothing of what it was asked: whoever still waits is cancelled."""
        for answer in list(self._asked.values()):
            answer.cancel()

    async def _write(self, message: dict[str, Any]) -> None:
        async with self._writing:
            if self._gone:
                return
            try:
                await self._send(message)
            except Exception as error:
                # Whoever carries the messages closes the connection; runs go on.
                log.info("a client of the Agent Client Protocol is gone: %s: %s", type(error).__name__, error)
                self._gone = True
