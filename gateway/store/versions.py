"""The version of a database. A database of another version is refused, and nothing in it is changed."""

from __future__ import annotations

from gateway.errors import ConfigError
from gateway.store import schema
from gateway.store.sql import Connection

_EARLIER_TABLE = "schema_version"
"""The table with the version of a database that a Portico before version 1 has written."""
_EMPTY = {
    "sqlite": "move the file away, with the files beside it whose names begin the same",
    "postgresql": "set [store] url to an empty database",
}


def store_version(connection: Connection, url: str) -> int | None:
    """Returns the version of a database; None if it is empty. Raises ConfigError if it is from before the tables of today.

    `url` is that of the database without passwords, for errors.
    """
    found = schema.found_tables(connection)
    if _EARLIER_TABLE in found:
        number = connection.value(f"SELECT version FROM {_EARLIER_TABLE}")
        why = f"is from before version 1, from an earlier Portico that called its tables version {number}"
        raise _of_earlier_portico(connection, url, why)
    if "store_version" not in found:
        return None
    version: int | None = connection.value("SELECT version FROM store_version")
    if version == schema.VERSION and (lacking := schema.lacking_columns(found)):
        raise _of_earlier_portico(connection, url, f"is of an earlier Portico: it lacks {lacking[0]}")
    return version


def _of_earlier_portico(connection: Connection, url: str, why: str) -> ConfigError:
    return ConfigError(
        f"the store {url} {why}: this Portico does not read it, and has changed nothing. {_export(url)}. Then start with an "
        f"empty store: {_EMPTY[connection.dialect]}"
    )


def check_usable(version: int | None, url: str) -> None:
    """Raises ConfigError if this Portico cannot use the tables of a database that has this version."""
    if version == schema.UNFINISHED_COPY:
        raise ConfigError(f"a copy of another store to {url} has not ended: copy it again, to an empty database")
    if version not in (None, schema.VERSION):
        raise ConfigError(
            f"the store {url} is of version {version}, and this Portico reads version {schema.VERSION} only: it "
            f"has changed nothing. Install the version of Portico that wrote the store. {_export(url)}"
        )


def _export(url: str) -> str:
    return f"`portico store export {url} --output FILE` writes all of its rows to a file, as JSON lines"
