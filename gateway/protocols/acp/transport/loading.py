"""The connection's code, imported when the first client comes: the protocol's package takes half a second and 24 MB."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.protocols.acp.connection import Connection

_MODULE = "gateway.protocols.acp.connection"


async def connection_class() -> type[Connection]:
    """Import it beside the event loop, once."""
    if _MODULE not in sys.modules:
        await asyncio.to_thread(importlib.import_module, _MODULE)
    found: type[Connection] = importlib.import_module(_MODULE).Connection
    return found
