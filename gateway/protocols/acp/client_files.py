"""Text files and terminals that a client serves for its agents, unsaved text included.

Protocol pages: https://agentclientprotocol.com/protocol/file-system and https://agentclientprotocol.com/protocol/terminals
"""

from __future__ import annotations

import asyncio
from typing import Any

from acp.schema import (
    BaseModel,
    CreateTerminalRequest,
    CreateTerminalResponse,
    KillTerminalRequest,
    KillTerminalResponse,
    ReadTextFileRequest,
    ReadTextFileResponse,
    ReleaseTerminalRequest,
    ReleaseTerminalResponse,
    TerminalOutputRequest,
    TerminalOutputResponse,
    WaitForTerminalExitRequest,
    WaitForTerminalExitResponse,
    WriteTextFileRequest,
    WriteTextFileResponse,
)
from pydantic import ValidationError

from drivers.codecs.json_rpc import as_json
from drivers.contract.client_services import (
    CREATE,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    READ,
    WAIT,
    WRITE,
    ClientRequest,
    ClientResponse,
    ClientServices,
)
from gateway.protocols.acp.rpc import Client, RpcError, rpc_error

MODELS: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {
    READ: (ReadTextFileRequest, ReadTextFileResponse),
    WRITE: (WriteTextFileRequest, WriteTextFileResponse),
    CREATE: (CreateTerminalRequest, CreateTerminalResponse),
    "terminal/output": (TerminalOutputRequest, TerminalOutputResponse),
    WAIT: (WaitForTerminalExitRequest, WaitForTerminalExitResponse),
    "terminal/kill": (KillTerminalRequest, KillTerminalResponse),
    "terminal/release": (ReleaseTerminalRequest, ReleaseTerminalResponse),
}


class AcpClientServices(ClientServices):
    """The services of one client for one session. Requests fail after `close`, which the session view calls when it is closed."""

    def __init__(self, session_id: str, client: Client, methods: frozenset[str]) -> None:
        self._session_id, self._client, self._methods = session_id, client, methods
        self._requests: set[asyncio.Task[dict[str, Any]]] = set()
        self._terminals: set[str] = set()
        self._unreleased: set[str] = set()
        self._closed = False

    def has_terminal(self, terminal_id: str) -> bool:
        """Whether the client has created this terminal, also if it is released."""
        return terminal_id in self._terminals

    def supported_methods(self) -> frozenset[str]:
        return frozenset() if self._closed else self._methods

    def supports(self, request: ClientRequest) -> bool:
        return request.method in self.supported_methods()

    async def serve(self, request: ClientRequest) -> ClientResponse:
        if not self.supports(request):
            return ClientResponse(error=f"{request.method}: the client has closed the session", code=INTERNAL_ERROR)
        params_model, result_model = MODELS[request.method]
        try:
            params = params_model.model_validate({**request.params, "sessionId": self._session_id})
        except ValidationError as error:
            return ClientResponse(error=str(rpc_error(error)), code=INVALID_PARAMS)
        try:
            result = await self._request(request.method, params)
            answer = as_json(result_model.model_validate(result))
        except RpcError as error:
            return ClientResponse(error=str(error), code=error.code)
        except ValidationError:
            return ClientResponse(error=f"{request.method}: the client's answer is invalid", code=INTERNAL_ERROR)
        self._record_terminal(request, answer)
        return ClientResponse(answer)

    def release_terminals(self) -> None:
        for terminal_id in sorted(self._unreleased):
            self._release(terminal_id)
        self._unreleased.clear()

    def close(self) -> None:
        """Cancel all requests and release all terminals, because the client has closed the session or is gone."""
        self._closed = True
        for task in list(self._requests):
            task.cancel()
        self.release_terminals()

    async def _request(self, method: str, params: BaseModel) -> dict[str, Any]:
        """Return the client's result. Raises RpcError, also if the session is closed meanwhile."""
        task = self._start_request(method, params)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            if method == CREATE:
                # The client may already be creating the terminal, and nothing else would release it.
                task.add_done_callback(self._release_created)
            else:
                task.cancel()
            raise
        if task.cancelled():
            raise RpcError(INTERNAL_ERROR, f"{method}: the client has closed the session")
        return task.result()

    def _start_request(self, method: str, params: BaseModel) -> asyncio.Task[dict[str, Any]]:
        task = asyncio.create_task(self._client.request(method, params))
        self._requests.add(task)
        task.add_done_callback(self._finish_request)
        return task

    def _release(self, terminal_id: str) -> None:
        params = ReleaseTerminalRequest(session_id=self._session_id, terminal_id=terminal_id)
        self._start_request("terminal/release", params)

    def _release_created(self, task: asyncio.Task[dict[str, Any]]) -> None:
        if self._closed or task.cancelled() or task.exception():
            return
        if isinstance(terminal_id := task.result().get("terminalId"), str):
            self._release(terminal_id)

    def _finish_request(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._requests.discard(task)
        # Marks the exception as retrieved: nothing awaits the answer to a release.
        if not task.cancelled():
            task.exception()

    def _record_terminal(self, request: ClientRequest, answer: dict[str, Any]) -> None:
        if request.method == CREATE:
            self._terminals.add(answer["terminalId"])
            self._unreleased.add(answer["terminalId"])
        elif request.method == "terminal/release":
            self._unreleased.discard(str(request.params.get("terminalId")))
