"""The version of a database. A database of another version is refused, and nothing in it is changed."""

from __future__ import annotations

from sqlalchemy import Connection, inspect, select, text

from gateway.errors import ConfigError
from gateway.store import schema
from gateway.store.backend import shown_url

_EARLIER_TABLE = "schema_version"
"""The table with the version of a database that a Portico before version 1 has written."""
_EMPTY = {
    "sqlite": "move the file away, with the files beside it whose names begin the same",
    "postgresql": "set [store] url to an empty database",
}


def store_version(connection: Connection) -> int | None:
    """Returns the version of a database; None if it is empty. Raises ConfigError if it is from before version 1."""
    found = inspect(connection)
    if found.has_table(_EARLIER_TABLE):
        number = connection.execute(text(f"SELECT version FROM {_EARLIER_TABLE}")).scalar()
        raise ConfigError(
            f"the store {_shown(connection)} is from before version 1, from an earlier Portico that called its tables version "
            f"{number}: this Portico does not read it, and has changed nothing. {_export(connection)}. Then start with an empty "
            f"store: {_EMPTY[connection.dialect.name]}"
        )
    if not found.has_table(schema.store_version.name):
        return None
    version: int | None = connection.execute(select(schema.store_version.c.version)).scalar()
    return version


def check_usable(connection: Connection, version: int | None) -> None:
    """Raises ConfigError if this Portico cannot use the tables of a database that has this version."""
    if version == schema.UNFINISHED_COPY:
        raise ConfigError(f"a copy of another store to {_shown(connection)} has not ended: copy it again, to an empty database")
    if version not in (None, schema.VERSION):
        raise ConfigError(
            f"the store {_shown(connection)} is of version {version}, and this Portico reads version {schema.VERSION} only: it "
            f"has changed nothing. Install the version of Portico that wrote the store. {_export(connection)}"
        )


def _shown(connection: Connection) -> str:
    """Returns the URL of a database without its password, as `portico store export` takes it."""
    return shown_url(connection.engine.url.set(password=None))


def _export(connection: Connection) -> str:
    return f"`portico store export {_shown(connection)} --output FILE` writes all of its rows to a file, as JSON lines"
