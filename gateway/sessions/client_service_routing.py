"""Services that a session's client does for its agent (files, terminals), routed to the client whose run is under way."""

from __future__ import annotations

import asyncio

from drivers.contract.client_services import CREATE, INTERNAL_ERROR, WAIT, ClientRequest, ClientResponse, ClientServices

TERMINAL_METHODS = frozenset({"terminal/output", WAIT, "terminal/kill", "terminal/release"})


class SessionServices(ClientServices):
    """The services for one session's agent. A terminal stays with the client that has created it."""

    def __init__(self) -> None:
        self.client: ClientServices | None = None
        """The client whose run is under way; None where it does nothing for agents."""
        self._terminals: dict[str, ClientServices] = {}
        self._releasing: set[asyncio.Task[ClientResponse]] = set()

    def remove(self, client: ClientServices) -> None:
        """The client's run is over, or the client is gone; it keeps the terminals that it has created."""
        if self.client is client:
            self.client = None

    def supported_methods(self) -> frozenset[str]:
        return frozenset() if self.client is None else self.client.supported_methods()

    def supports(self, request: ClientRequest) -> bool:
        if request.method in TERMINAL_METHODS:
            return str(request.params.get("terminalId")) in self._terminals
        return self.client is not None and self.client.supports(request)

    async def serve(self, request: ClientRequest) -> ClientResponse:
        terminal_id = str(request.params.get("terminalId"))
        client = self._terminals.get(terminal_id) if request.method in TERMINAL_METHODS else self.client
        if client is None:
            return ClientResponse(error=f"{request.method}: the client that serves it is gone", code=INTERNAL_ERROR)
        answer = await client.serve(request)
        if request.method == "terminal/release":
            self._terminals.pop(terminal_id, None)
        elif request.method == CREATE and answer.error is None:
            self._terminals[str(answer.result["terminalId"])] = client
        return answer

    def release_terminals(self) -> None:
        terminals, self._terminals = self._terminals, {}
        for terminal_id, client in terminals.items():
            request = ClientRequest(f"left-{terminal_id}", "terminal/release", {"terminalId": terminal_id})
            task = asyncio.create_task(client.serve(request))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)
