"""`portico key`: prints the default key; adds, lists and removes named keys."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings
from gateway.cli.output import say
from gateway.security.api_keys import default_api_keys

if TYPE_CHECKING:
    from gateway.security.named_keys import NamedKeys

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
        with config_errors():
            say(default_api_keys(load_settings(config, data_dir))[0])


@key.command()
@CONFIG
@DATA_DIR
@click.argument("name")
@click.pass_obj
def add(group: _GroupOptions, name: str, config: Path | None, data_dir: Path | None) -> None:
    """Create a key for the client NAME and print it. It is valid at once, and is not printed again."""
    with config_errors():
        say(_named_keys(group, config, data_dir, lambda keys: keys.add(name)))
        say(f"Only its hash is stored: save the key now. `portico key remove {name}` revokes it.", err=True)


@key.command("list")
@CONFIG
@DATA_DIR
@click.pass_obj
def list_keys(group: _GroupOptions, config: Path | None, data_dir: Path | None) -> None:
    """List the keys of clients: name, creation time, last use."""
    with config_errors():
        for known in _named_keys(group, config, data_dir, lambda keys: keys.all()):
            used = f"last used {_local_time(known.used_at)}" if known.used_at else "never used"
            say(f"{known.name}\tmade {_local_time(known.created_at)}\t{used}")


@key.command()
@CONFIG
@DATA_DIR
@click.argument("name")
@click.pass_obj
def remove(group: _GroupOptions, name: str, config: Path | None, data_dir: Path | None) -> None:
    """Revoke the key of the client NAME: its next request gets 401. Its sessions stay."""
    with config_errors():
        _named_keys(group, config, data_dir, lambda keys: keys.remove(name))


def _named_keys(
    group: _GroupOptions, config: Path | None, data_dir: Path | None, call: Callable[[NamedKeys], Awaitable[Result]]
) -> Result:
    """Return what a function returns for the named keys."""
    # It takes 0.1 s, which `portico key` does not need.
    from gateway.cli.stored_keys import with_named_keys

    return with_named_keys(load_settings(config or group[0], data_dir or group[1]), call)


def _local_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
