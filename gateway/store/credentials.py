"""Queries about credentials: named keys, sign-ins of the console, and one-time codes.

Each change of a key or a sign-in also changes one value, so that a daemon learns by one small query that its copy is out of date.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gateway.store.database import Database
from gateway.store.shared_values import read_value, set_value
from gateway.store.sql import Connection, columns, equals, insert

CHANGE = "credentials"
"""The name of the shared value that each change replaces by a new one."""


@dataclass(frozen=True, slots=True)
class NamedKeyRow:
    """A named key by its hash. Times are seconds since the epoch."""

    digest: str
    name: str
    created_at: float
    used_at: float | None


@dataclass(frozen=True, slots=True)
class SignInRow:
    """A sign-in by the hash of its cookie, and the hash of its token. `name` is None for one by a default key.

    `key` is what is stored of the key that it was made by. Times are seconds since the epoch.
    """

    cookie: str
    name: str | None
    key: str
    token: str
    used_at: float


@dataclass(frozen=True, slots=True)
class CredentialRows:
    """All keys and sign-ins. `change` is None if there was none yet."""

    change: str | None
    keys: tuple[NamedKeyRow, ...]
    sign_ins: tuple[SignInRow, ...]


_KEYS = f"SELECT {columns(NamedKeyRow)} FROM named_keys ORDER BY created_at, name"
_SIGN_INS = f"SELECT {columns(SignInRow)} FROM sign_ins"
_KEY_USED = "UPDATE named_keys SET used_at = :at WHERE digest = :digest AND (used_at IS NULL OR used_at < :at)"
_SIGN_IN_USED = "UPDATE sign_ins SET used_at = :at WHERE cookie = :digest AND used_at < :at"


class CredentialRepository:
    """The credentials by their hashes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def change(self) -> str | None:
        """Returns a value that differs after each change of a key or a sign-in."""
        return await self._database.read(lambda connection: read_value(connection, CHANGE))

    async def all(self) -> CredentialRows:
        """Returns all keys, the oldest first, and all sign-ins."""

        def rows(connection: Connection) -> CredentialRows:
            # First: what changes after this is noticed by the next comparison.
            change = read_value(connection, CHANGE)
            keys = tuple(NamedKeyRow(*row) for row in connection.rows(_KEYS))
            return CredentialRows(change, keys, tuple(SignInRow(*row) for row in connection.rows(_SIGN_INS)))

        return await self._database.read(rows)

    async def add_key(self, row: NamedKeyRow) -> str | None:
        """Stores a key, unless another one has its name, whose case does not count. Returns the name of that, else None."""
        values = {**asdict(row), "folded_name": row.name.casefold()}

        def transaction(connection: Connection) -> str | None:
            # Its lock lets no other process add a key of the name meanwhile.
            _changed(connection)
            used = connection.first("SELECT name, digest FROM named_keys WHERE folded_name = :folded_name", values)
            if used is None:
                connection.execute(insert("named_keys", values), values)
                return None
            name, digest = used
            return None if digest == row.digest else str(name)

        return await self._database.write(transaction)

    async def remove_key(self, name: str) -> bool:
        """Deletes a key. Returns whether there was one of that name."""

        def transaction(connection: Connection) -> bool:
            _changed(connection)
            return connection.changed("DELETE FROM named_keys WHERE name = :name", {"name": name}) > 0

        return await self._database.write(transaction)

    async def add_sign_in(self, row: SignInRow, unused_since: float, limit: int) -> None:
        """Stores a sign-in; deletes those that were not used since a time, and of this name those above the limit, the ones
        whose last use is the longest ago."""
        values = asdict(row)
        of_name = f"SELECT cookie FROM sign_ins WHERE {equals('name', row.name)} ORDER BY used_at DESC, cookie"
        surplus = "DELETE FROM sign_ins WHERE used_at < :unused_since OR cookie {in_cookies}"

        def transaction(connection: Connection) -> None:
            _changed(connection)
            found = connection.values(of_name, values)
            connection.execute(surplus, {"unused_since": unused_since, "cookies": found[limit - 1 :]})
            connection.execute(insert("sign_ins", values), values)

        await self._database.write(transaction)

    async def end_sign_in(self, cookie: str) -> None:
        """Deletes a sign-in, if there is one."""

        def transaction(connection: Connection) -> None:
            _changed(connection)
            connection.execute("DELETE FROM sign_ins WHERE cookie = :cookie", {"cookie": cookie})

        await self._database.write(transaction)

    async def record_uses(self, keys: Mapping[str, float], sign_ins: Mapping[str, float]) -> None:
        """Stores when keys and sign-ins were used, unless a later use is stored. The value of `change` stays."""

        def transaction(connection: Connection) -> None:
            # In one order, so that two nodes do not wait for each other.
            for statement, used in ((_KEY_USED, keys), (_SIGN_IN_USED, sign_ins)):
                for digest in sorted(used):
                    connection.execute(statement, {"digest": digest, "at": used[digest]})

        await self._database.write(transaction)

    async def add_code(self, digest: str, name: str | None, key: str, seconds: float, limit: int) -> None:
        """Stores a code that is valid for so many seconds of the database's clock; deletes those that are over, and of this name
        the oldest above the limit."""
        values = {"digest": digest, "name": name, "key": key, "seconds": seconds}
        of_name = f"SELECT digest FROM sign_in_codes WHERE {equals('name', name)} ORDER BY expires_at DESC, digest"
        statement = "INSERT INTO sign_in_codes (digest, name, key, expires_at) VALUES (:digest, :name, :key, {now} + :seconds)"

        def transaction(connection: Connection) -> None:
            connection.execute("DELETE FROM sign_in_codes WHERE expires_at < {now}")
            found = connection.values(of_name, values)
            connection.execute("DELETE FROM sign_in_codes WHERE digest {in_digests}", {"digests": found[limit - 1 :]})
            connection.execute(statement, values)

        await self._database.write(transaction)

    async def use_code(self, digest: str) -> tuple[str | None, str] | None:
        """Deletes a code, and returns the name and the key it was made by. None if there is none, or it is over: of several
        nodes at the same time one gets it."""
        statement = "DELETE FROM sign_in_codes WHERE digest = :digest AND expires_at >= {now} RETURNING name, key"

        def transaction(connection: Connection) -> tuple[str | None, str] | None:
            found = connection.first(statement, {"digest": digest})
            return None if found is None else (found[0], found[1])

        return await self._database.write(transaction)


def _changed(connection: Connection) -> None:
    set_value(connection, CHANGE, uuid.uuid4().hex)
