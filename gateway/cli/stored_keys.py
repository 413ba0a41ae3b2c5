"""The store of `portico key add`, `list` and `remove`, whether a daemon runs or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.private_files import folders_of_sessions, private_data_directory
from gateway.security.named_keys import NamedKeys
from gateway.store import Store
from gateway.store.sqlite import sqlite_url
from gateway.store.urls import database_url

Result = TypeVar("Result")


def with_named_keys(settings: Settings, call: Callable[[NamedKeys], Awaitable[Result]]) -> Result:
    """Return what a function returns for the named keys. Raises ConfigError if the store cannot be used.

    Creates a database that is missing, as `portico serve` does.
    """
    return asyncio.run(_called(settings, call))


async def _called(settings: Settings, call: Callable[[NamedKeys], Awaitable[Result]]) -> Result:
    url, in_use = settings.store.url, list[Path]()
    if not url:
        private_data_directory(settings.data_dir)
        url, in_use = sqlite_url(settings.data_dir), folders_of_sessions(settings.data_dir)
    parsed = database_url(url)
    if parsed.dialect == "sqlite" and parsed.file is None:
        raise ConfigError(f"the store is in the memory of the daemon (store.url is {url}), where /v1/keys changes its keys")
    store = await Store.open(url, in_use)
    try:
        with store.explained_errors():
            return await call(NamedKeys(store.credentials))
    finally:
        await store.close()
