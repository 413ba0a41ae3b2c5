"""`portico store copy`: moves a gateway to another database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.options import config_errors, starting
from gateway.cli.output import say
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from gateway.store.copying import CopiedTable


@click.group()
def store() -> None:
    """Manage the database of a gateway."""


@store.command()
@click.argument("source")
@click.argument("target")
def copy(source: str, target: str) -> None:
    """Copy the whole store of SOURCE to the empty database TARGET, and compare them.

    Both are URLs, such as sqlite:////home/me/.local/share/portico/portico.db and postgresql://me@db.example/portico. Passwords
    come from PGPASSWORD or a password file, because other users can see a command line. No daemon may use either database. A copy
    that was interrupted goes on where it was.
    """
    with config_errors(), _unused(source, target):
        for table in _copied(source, target):
            say(f"{table.name}\t{table.rows} rows\tsha256 {table.digest}")
        say("The copy is complete: all rows are the same. Set [store] url to the new database; see docs/operations.md.")


def _copied(source: str, target: str) -> list[CopiedTable]:
    with starting():
        import asyncio

        from gateway.store.copying import copy_store

    shown = dict[str, int]()

    def progress(name: str, rows: int, total: int) -> None:
        percent = 100 * rows // total if total else 100
        if shown.get(name) != percent:
            shown[name] = percent
            say(f"{name}: {rows} of {total} rows", err=True)

    return asyncio.run(copy_store(source, target, progress))


@contextmanager
def _unused(source: str, target: str) -> Iterator[None]:
    """Lock the data directories of SQLite files, as a daemon does. Raises ConfigError if one runs."""
    with starting():
        from gateway.server.data_dir_lock import lock_as_it_is
        from gateway.store.backend import backend_of, url_secrets

    # A set: this process would lock out itself where both files are in one folder.
    folders = set[Path]()
    for name, url in (("SOURCE", source), ("TARGET", target)):
        if url_secrets(url, name):
            raise ConfigError("leave the password out of the command line: set PGPASSWORD, or use a file ~/.pgpass")
        folder: Path | None = backend_of(url, name).folder
        if folder is not None:
            folders.add(folder.resolve())
    with ExitStack() as stack:
        for folder in folders:
            # The folder of a backup is no data directory. Whoever uses the file itself is found without this lock, too.
            stack.enter_context(lock_as_it_is(folder))
        yield
