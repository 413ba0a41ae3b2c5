"""A uvicorn server inside another event loop, and the address that a server listens on.

It depends on undocumented parts of uvicorn, checked by tests/gateway/server/test_uvicorn_internals.py:

* `uvicorn.Server.capture_signals`, overridden in `EmbeddedServer`: uvicorn has no option to leave signals alone.
* `uvicorn.Server.servers`, read in `listening_address`: uvicorn reports the port that it chose in its log only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


class EmbeddedServer(uvicorn.Server):
    """A server in the event loop of another one, which leaves signal handlers as they are."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listening_address(server: uvicorn.Server) -> tuple[str, int]:
    """Return the host and port of the first listening socket of a server that has started."""
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    return host, port
