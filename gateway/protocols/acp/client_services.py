"""What a client offers its agents: text files as it has them, saved or not, and terminals that it shows."""

from __future__ import annotations

import asyncio
from typing import Any

from acp.schema import (
    BaseModel,
    ClientCapabilities,
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

SHAPES: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {
    READ: (ReadTextFileRequest, ReadTextFileResponse),
    WRITE: (WriteTextFileRequest, WriteTextFileResponse),
    CREATE: (CreateTerminalRequest, CreateTerminalResponse),
    "terminal/output": (TerminalOutputRequest, TerminalOutputResponse),
    WAIT: (WaitForTerminalExitRequest, WaitForTerminalExitResponse),
    "terminal/kill": (KillTerminalRequest, KillTerminalResponse),
    "terminal/release": (ReleaseTerminalRequest, ReleaseTerminalResponse),
}


def offered(capabilities: ClientCapabilities | None) -> frozenset[str]:
    """The methods that a client has said at `initialize` that it has."""
    fs = capabilities.fs if capabilities else None
    files = [method for method, there in ((READ, fs and fs.read_text_file), (WRITE, fs and fs.write_text_file)) if there]
    terminals = [method for method in SHAPES if method.startswith("terminal/")] if capabilities and capabilities.terminal else []
    return frozenset([*files, *terminals])


class OfferedServices(ClientServices):
    """Of one client, for one session. `close` it with the session's window: what is asked then fails."""

    def __init__(self, session_id: str, client: Client, methods: frozenset[str]) -> None:
        self._session_id, self._client, self._methods = session_id, client, methods
        self._asking: set[asyncio.Task[dict[str, Any]]] = set()
        self._made: set[str] = set()
        self._running: set[str] = set()
        self._closed = False

    def shows(self, terminal_id: str) -> bool:
        """Whether this is a terminal of the client's."""
        return terminal_id in self._made

    def supported_methods(self) -> frozenset[str]:
        return frozenset() if self._closed else self._methods

    def supports(self, request: ClientRequest) -> bool:
        return request.method in self.supported_methods()

    async def serve(self, request: ClientRequest) -> ClientResponse:
        if not self.supports(request):
            return ClientResponse(error=f"{request.method}: the client has closed the session", code=INTERNAL_ERROR)
        asks, answers = SHAPES[request.method]
        try:
            params = asks.model_validate({**request.params, "sessionId": self._session_id})
        except ValidationError as error:
            return ClientResponse(error=str(rpc_error(error)), code=INVALID_PARAMS)
        try:
            result = await self._ask(request.method, params)
            answer = as_json(answers.model_validate(result))
        except RpcError as error:
            return ClientResponse(error=str(error), code=error.code)
        except ValidationError:
            return ClientResponse(error=f"{request.method}: the client's answer is not one of the protocol", code=INTERNAL_ERROR)
        self._note(request, answer)
        return ClientResponse(answer)

    def release_terminals(self) -> None:
        for terminal_id in sorted(self._running):
            self._release(terminal_id)
        self._running.clear()

    def close(self) -> None:
        """The client has closed the session, or is gone."""
        self._closed = True
        for task in list(self._asking):
            task.cancel()
        self.release_terminals()

    async def _ask(self, method: str, params: BaseModel) -> dict[str, Any]:
        """The client's result. Raises RpcError, also when the session is closed meanwhile."""
        task = self._begin(method, params)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            if method == CREATE:
                # The client may be making it just now; nobody else would release it.
                task.add_done_callback(self._made_too_late)
            else:
                task.cancel()
            raise
        if task.cancelled():
            raise RpcError(INTERNAL_ERROR, f"{method}: the client has closed the session")
        return task.result()

    def _begin(self, method: str, params: BaseModel) -> asyncio.Task[dict[str, Any]]:
        task = asyncio.create_task(self._client.ask(method, params))
        self._asking.add(task)
        task.add_done_callback(self._ended)
        return task

    def _release(self, terminal_id: str) -> None:
        params = ReleaseTerminalRequest(session_id=self._session_id, terminal_id=terminal_id)
        self._begin("terminal/release", params)

    def _made_too_late(self, task: asyncio.Task[dict[str, Any]]) -> None:
        if self._closed or task.cancelled() or task.exception():
            return
        if isinstance(terminal_id := task.result().get("terminalId"), str):
            self._release(terminal_id)

    def _ended(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._asking.discard(task)
        # Nobody waits for what comes of a release; the others' errors are taken where they are waited for.
        if not task.cancelled():
            task.exception()

    def _note(self, request: ClientRequest, answer: dict[str, Any]) -> None:
        if request.method == CREATE:
            self._made.add(answer["terminalId"])
            self._running.add(answer["terminalId"])
        elif request.method == "terminal/release":
            self._running.discard(str(request.params.get("terminalId")))
