"""The services of a session's client: done by the client whose run is under way, where it offers them."""

from __future__ import annotations

import asyncio

from drivers.contract.client_services import CREATE, INTERNAL_ERROR, WAIT, ClientRequest, ClientResponse, ClientServices

OF_A_TERMINAL = frozenset({"terminal/output", WAIT, "terminal/kill", "terminal/release"})


class SessionServices(ClientServices):
    """Of one session, for its agent, whichever client speaks. A terminal stays with the client that has made it."""

    def __init__(self) -> None:
        self._now: ClientServices | None = None
        self._terminals: dict[str, ClientServices] = {}
        self._releasing: set[asyncio.Task[ClientResponse]] = set()

    def hand_to(self, client: ClientServices | None) -> None:
        """The run that begins now is this client's, or of one that does nothing for agents."""
        self._now = client

    def take_from(self, client: ClientServices) -> None:
        """Its run is over, or the client is gone; the terminals that it runs stay with it."""
        if self._now is client:
            self._now = None

    def supported_methods(self) -> frozenset[str]:
        return frozenset() if self._now is None else self._now.supported_methods()

    def supports(self, request: ClientRequest) -> bool:
        if request.method in OF_A_TERMINAL:
            return str(request.params.get("terminalId")) in self._terminals
        return self._now is not None and self._now.supports(request)

    async def serve(self, request: ClientRequest) -> ClientResponse:
        terminal_id = str(request.params.get("terminalId"))
        client = self._terminals.get(terminal_id) if request.method in OF_A_TERMINAL else self._now
        if client is None:
            return ClientResponse(error=f"{request.method}: the client that offered it is gone", code=INTERNAL_ERROR)
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
