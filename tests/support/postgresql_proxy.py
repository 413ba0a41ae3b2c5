"""A proxy in front of PostgreSQL that loses commits or their answers, and is then out of reach as long as a test wants."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from contextlib import suppress

from gateway.store.sql import Connection


class Proxy:
    """Forwards connections to the server. The next commits are handled as `lose` says, and their connections are cut:
    `request` is not forwarded, of `answer` the answer is not, and `late` is forwarded by `forward_late`.

    The answer of a commit is lost when the server has given it.
    With a `marker`, only transactions count that have these bytes. With `leaves`, the proxy is `away` once it has lost a commit:
    all connections are cut, and new ones are closed at once, until `come_back` is called. `refused` counts those. If it is also
    `silent`, no connection is cut or closed: what comes by these connections is dropped, also later.

    `round_trips` counts for each connection how often its client has sent something that is not sent without the answer before.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lose: list[str] = []
        self.marker, self.leaves = b"", False
        self.lost = self.refused = 0
        self.away = self.silent = False
        self.round_trips = Counter[int]()
        """By the port of the client: `port_of`."""
        self._waiting: set[socket.socket] = set()
        self._ignored: set[socket.socket] = set()
        self._unanswered: set[socket.socket] = set()
        self._late: list[tuple[socket.socket, bytes]] = []
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                if self.away:
                    self.refused += 1
                    if not self.silent:
                        client.close()
                    continue
                upstream = socket.create_connection(("127.0.0.1", self._target))
                self._sockets.append(upstream)
                for arguments in ((client, upstream), (upstream, client)):
                    threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        held = False
        with suppress(OSError):
            if source.getpeername()[1] == self._target:
                self._forward_answers(source, target)
            else:
                held = self._forward_requests(source, target)
        if not held:
            _cut(source, target)

    def _forward_answers(self, source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(65536):
            if source in self._ignored:
                continue
            if target not in self._unanswered:
                self._waiting.discard(target)
                target.sendall(data)
            elif b"COMMIT\0" in data and self._leave():
                return

    def _forward_requests(self, source: socket.socket, target: socket.socket) -> bool:
        """Return whether the connection to the server is still needed."""
        held = transaction = b""
        while data := source.recv(65536):
            if source in self._ignored:
                continue
            self._count(source)
            # The parts of a transaction may come one after the other, and what ends its COMMIT after that.
            transaction += data
            if self.lose[:1] == ["late"]:
                held = data = held + data
                if b"COMMIT" not in data:
                    continue
            if b"COMMIT" in transaction:
                if self.lose and self.marker in transaction:
                    lose = self.lose.pop(0)
                    if lose == "late":
                        self._late.append((target, data))
                        self._leave()
                        source.shutdown(socket.SHUT_RDWR)
                        return True
                    if lose == "request":
                        if self._leave():
                            return False
                        # What ends the COMMIT may come by itself, and no network loses the middle of what was sent.
                        self._ignored.add(source)
                        continue
                    self._unanswered.add(source)
                transaction = b""
            target.sendall(data)
        return False

    def _count(self, client: socket.socket) -> None:
        if client not in self._waiting:
            self._waiting.add(client)
            self.round_trips[client.getpeername()[1]] += 1

    def _leave(self) -> bool:
        """Count a lost commit, and cut all connections if the proxy leaves with it. Returns whether that one is to be cut."""
        self.away = self.leaves
        if self.leaves and self.silent:
            self._ignored.update(self._sockets)
        elif self.leaves:
            _cut(*self._sockets)
        self.lost += 1
        return not self.silent

    def forward_late(self) -> None:
        """Forward what was held back, as a network does, or a server that reads it late."""
        while self._late:
            target, data = self._late.pop()
            target.sendall(data)
            # The server may have closed the connection by now.
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    def come_back(self) -> None:
        """Accept connections again."""
        self.away = False

    def close(self) -> None:
        # A thread that waits in `accept` is not woken by `close`, and would accept one more.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for one in (self._listener, *self._sockets):
            one.close()


def port_of(connection: Connection) -> int:
    """The port by which a proxy knows a connection."""
    with socket.socket(fileno=os.dup(connection.driver.fileno())) as found:
        return int(found.getsockname()[1])


def _cut(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
