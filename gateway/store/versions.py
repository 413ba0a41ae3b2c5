"""Which programs can use a database: its version, and the oldest version of a program that its tables are made for."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, inspect, select

from gateway.errors import ConfigError
from gateway.store import schema

_TABLE = schema.schema_version


class StoreTooNew(ConfigError):
    """A newer program has migrated the store in a way that this one cannot use."""


class StoreVersion(NamedTuple):
    """The version of a database, and the oldest version of a program that can use it."""

    version: int
    compatible_from: int


def store_version(connection: Connection) -> StoreVersion | None:
    """Returns the version of a database; None if it is empty."""
    if not inspect(connection).has_table(_TABLE.name):
        return None
    version: int | None = connection.execute(select(_TABLE.c.version)).scalar()
    if version is None:
        return None
    # The column is of version 11. It is read where it matters only.
    newer = version > schema.VERSION and version != schema.UNFINISHED_COPY
    found = connection.execute(select(_TABLE.c.compatible_from)).scalar() if newer else None
    return StoreVersion(version, found or version)


def check_usable(found: StoreVersion | None) -> None:
    """Raises ConfigError if this program cannot use the tables of a database, however it is migrated."""
    if found is None:
        return
    if found.version == schema.UNFINISHED_COPY:
        raise ConfigError("a copy of another store to this database is not finished: run `portico store copy` again")
    if found.compatible_from > schema.VERSION:
        raise StoreTooNew(
            f"the store is of version {found.version}, for a Portico that reads {found.compatible_from} or newer; this one reads "
            f"{schema.VERSION}: install the version of Portico that wrote it"
        )


def check_still_usable(connection: Connection, *, until_commit: bool = False) -> None:
    """Raises StoreTooNew if a newer program has migrated the database since this one has opened it.

    With `until_commit` no program can do that before the end of the transaction.
    """
    query = select(_TABLE.c.version, _TABLE.c.compatible_from)
    row = connection.execute(query.with_for_update(read=True) if until_commit else query).first()
    if row is not None and row.version > schema.VERSION:
        check_usable(StoreVersion(row.version, row.compatible_from or row.version))
