"""The body of a request, kept for as long as the request may have to be sent to another node."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive


class KeptBody:
    """Keeps the messages of a body that `receive` returns, until `drop`."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] | None = []
        self._complete = False
        self._next = 0

    async def receive(self) -> Message:
        """Return the next message; after `rewind` those that are kept come first."""
        if self._kept is None:
            return await self._receive()
        if self._next < len(self._kept):
            self._next += 1
            return self._kept[self._next - 1]
        message = await self._receive()
        if not self._complete and self._kept is not None and message["type"] == "http.request":
            self._kept.append(message)
            self._next = len(self._kept)
            self._complete = not message.get("more_body")
        return message

    async def whole(self) -> bytes:
        """Read the rest, and return all of it. Raises ClientDisconnect."""
        kept = [] if self._kept is None else self._kept
        self._next = len(kept)
        while not self._complete:
            if (await self.receive())["type"] == "http.disconnect":
                raise ClientDisconnect
        return b"".join(message.get("body", b"") for message in kept)

    def rewind(self) -> None:
        """Begin anew with the messages that are kept."""
        self._next = 0

    def drop(self) -> None:
        """Keep nothing from now on."""
        self._kept = None
