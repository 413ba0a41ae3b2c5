"""SQLAlchemy's asyncio engine for Core alone.

Its package imports the ORM as well, of which nothing is used here: 6 MB and 46 ms at every start (measured with 2.1.9).
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

PACKAGE = "sqlalchemy.ext.asyncio"

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine


def _engine() -> ModuleType:
    """The engine's module, imported without what its package's `__init__` imports."""
    spec = find_spec(PACKAGE)
    if spec is None or PACKAGE in sys.modules:
        return import_module(PACKAGE)
    sys.modules[PACKAGE] = module_from_spec(spec)
    try:
        return import_module(f"{PACKAGE}.engine")
    finally:
        # Whoever imports the package later gets all of it.
        del sys.modules[PACKAGE]


if not TYPE_CHECKING:
    _found = _engine()
    AsyncConnection, AsyncEngine = _found.AsyncConnection, _found.AsyncEngine
    create_async_engine = _found.create_async_engine

__all__ = ["AsyncConnection", "AsyncEngine", "create_async_engine"]
