"""`portico store`: moves a gateway to another database, and writes the rows of a database as JSON lines."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

import click

from gateway.cli.options import config_errors
from gateway.cli.output import say
from gateway.errors import ConfigError
from gateway.private_files import private_file
from gateway.server.data_dir_lock import lock_as_it_is
from gateway.store.copying import CopiedTable, copy_store
from gateway.store.export import export_store
from gateway.store.urls import backend_of, url_secrets


@click.group()
def store() -> None:
    """Manage the database of a gateway."""


@store.command()
@click.argument("source")
@click.argument("target")
def copy(source: str, target: str) -> None:
    """Copy the whole store of SOURCE to the empty database TARGET, and compare the numbers of rows.

    Both are URLs, such as sqlite:////home/me/.local/share/portico/portico.db and postgresql://me@db.example/portico. Passwords
    come from PGPASSWORD or a password file, because other users can see a command line. No daemon may use either database.
    """
    with config_errors(), _unused(source, target):
        for table in _copied(source, target):
            say(f"{table.name}\t{table.rows} rows")
        say("The copy is complete. Set [store] url to the new database; see docs/operations.md.")


@store.command()
@click.argument("url")
@click.option("--output", type=click.Path(path_type=Path), help="A new file, instead of standard output.")
def export(url: str, output: Path | None) -> None:
    """Write all rows of the database URL as JSON lines, each with a table and a row, and change nothing.

    The database may be of any version, and a daemon may use it. Encrypted values stay encrypted. Bytes that are no text have the
    form {"base64": ...}. The password of a PostgreSQL database comes from PGPASSWORD or a password file.
    """
    with config_errors():
        _check_no_password(url, "URL")
        with _new_file(output) if output is not None else nullcontext(sys.stdout.buffer) as file:
            for name, rows in asyncio.run(export_store(url, file)).items():
                say(f"{name}: {rows} rows", err=True)


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Create a file that only this user can read, and remove it if it is not written completely. Raises ConfigError."""
    try:
        descriptor = private_file(path, os.O_WRONLY | os.O_EXCL)
    except FileExistsError:
        raise ConfigError(f"{path} exists: give the path of a new file") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _check_no_password(url: str, name: str) -> None:
    if url_secrets(url, name):
        raise ConfigError("leave the password out of the command line: set PGPASSWORD, or use a file ~/.pgpass")


def _copied(source: str, target: str) -> list[CopiedTable]:
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
    # A set: this process would lock out itself where both files are in one folder.
    folders = set[Path]()
    for name, url in (("SOURCE", source), ("TARGET", target)):
        _check_no_password(url, name)
        folder: Path | None = backend_of(url, name).folder
        if folder is not None:
            folders.add(folder.resolve())
    with ExitStack() as stack:
        for folder in folders:
            # The folder of a backup is no data directory. Whoever uses the file itself is found without this lock, too.
            stack.enter_context(lock_as_it_is(folder))
        yield
