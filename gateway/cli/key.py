"""`portico key`: prints the default key; adds, lists and removes named keys."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings, starting

if TYPE_CHECKING:
    from gateway.config import Settings
    from gateway.security.credentials import KeyStorage

Result = TypeVar("Result")
_GroupOptions = tuple[Path | None, Path | None]
"""--config and --data-dir of `portico key`: they may stand before the subcommand or after it."""


@click.group(invoke_without_command=True)
@CONFIG
@DATA_DIR
@click.pass_context
def key(context: click.Context, config: Path | None, data_dir: Path | None) -> None:
    """Print the API key; the first call creates it. The subcommands manage further keys, one for each client."""
    context.obj = (config, data_dir)
    if context.invoked_subcommand is None:
        with config_errors(), starting():
            from gateway.security.api_keys import default_api_keys

            click.echo(default_api_keys(load_settings(config, data_dir))[0])


@key.command()
@CONFIG
@DATA_DIR
@click.argument("name")
@click.pass_obj
def add(group: _GroupOptions, name: str, config: Path | None, data_dir: Path | None) -> None:
    """Create a key for the client NAME and print it. It is valid at once, and is not printed again.

    On the other nodes of a cluster it is valid within two seconds.
    """
    with config_errors():
        click.echo(_on_keys(group, config, data_dir, lambda keys: keys.add_key(name)))
        click.echo(f"Only its hash is stored: save the key now. `portico key remove {name}` revokes it.", err=True)


@key.command("list")
@CONFIG
@DATA_DIR
@click.pass_obj
def list_keys(group: _GroupOptions, config: Path | None, data_dir: Path | None) -> None:
    """List the keys of clients: name, creation time, last use."""
    with config_errors():
        for known in _on_keys(group, config, data_dir, lambda keys: keys.keys()):
            used = f"last used {_local_time(known.used_at)}" if known.used_at else "never used"
            click.echo(f"{known.name}\tmade {_local_time(known.created_at)}\t{used}")


@key.command()
@CONFIG
@DATA_DIR
@click.argument("name")
@click.pass_obj
def remove(group: _GroupOptions, name: str, config: Path | None, data_dir: Path | None) -> None:
    """Revoke the key of the client NAME: its next request gets 401. Its sessions stay."""
    with config_errors():
        _on_keys(group, config, data_dir, lambda keys: keys.remove_key(name))


def _on_keys(
    group: _GroupOptions, config: Path | None, data_dir: Path | None, call: Callable[[KeyStorage], Awaitable[Result]]
) -> Result:
    """Call a method of the named keys of the configuration: those in the data directory, or those of the nodes of a cluster."""
    with starting():
        import asyncio

        settings = load_settings(config or group[0], data_dir or group[1])
        if settings.node.address:
            return asyncio.run(_in_store(settings, call))
        from gateway.security.credentials import LocalCredentials

        credentials = LocalCredentials(settings.data_dir)

    async def called() -> Result:
        return await call(credentials)

    return asyncio.run(called())


async def _in_store(settings: Settings, call: Callable[[KeyStorage], Awaitable[Result]]) -> Result:
    """Call it for the keys in the store, which the nodes may use meanwhile: they notice a change within two seconds."""
    from gateway.nodes.shared_keys import SharedKeys
    from gateway.store import Store

    store = await Store.open_unchanged(settings.store.url)
    try:
        with store.explained_errors():
            return await call(SharedKeys(store.shared.credentials))
    finally:
        await store.close()


def _local_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
