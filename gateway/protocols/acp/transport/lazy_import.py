"""Imports the connection's code when the first client connects: importing the `acp` package takes 0.5 s and 24 MB (0.12.1)."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.protocols.acp.connection import Connection

_MODULE = "gateway.protocols.acp.connection"


async def connection_class() -> type[Connection]:
    """Return the class Connection. The first call imports it in a thread, so that the event loop is not blocked."""
    if _MODULE not in sys.modules:
        await asyncio.to_thread(importlib.import_module, _MODULE)
    connection: type[Connection] = importlib.import_module(_MODULE).Connection
    return connection
