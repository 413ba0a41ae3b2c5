"""Queries about the credentials that all nodes of a cluster share: named keys, sign-ins of the console, and one-time codes.

Each change of a key or a sign-in also changes one value, so that a node learns by one small query that its copy is out of date.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, bindparam, delete, insert, or_, select, update

from gateway.store import schema
from gateway.store.clock import DatabaseTime
from gateway.store.database import Database
from gateway.store.shared_values import read_value, set_value

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
    """A sign-in by the hash of its cookie. `name` is None for one by a default key."""

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
            keys = tuple(NamedKeyRow(*row) for row in connection.execute(_KEYS))
            return CredentialRows(change, keys, tuple(SignInRow(*row) for row in connection.execute(_SIGN_INS)))

        return await self._database.read(rows)

    async def add_key(self, row: NamedKeyRow) -> str | None:
        """Stores a key, unless another one has its name, whose case does not count. Returns the name of that, else None."""
        folded = row.name.casefold()

        def transaction(connection: Connection) -> str | None:
            # Its lock lets no other node add a key of the name meanwhile.
            _changed(connection)
            used = connection.execute(_NAME, {"of_name": folded}).first()
            if used is None:
                connection.execute(insert(schema.named_keys).values(**asdict(row), folded_name=folded)).close()
            return None if used is None or used.digest == row.digest else str(used.name)

        return await self._database.write(transaction)

    async def remove_key(self, name: str) -> bool:
        """Deletes a key. Returns whether there was one of that name."""
        statement = delete(schema.named_keys).where(schema.named_keys.c.name == name)

        def transaction(connection: Connection) -> bool:
            _changed(connection)
            return connection.execute(statement).rowcount > 0

        return await self._database.write(transaction)

    async def add_sign_in(self, row: SignInRow, unused_since: float, limit: int) -> None:
        """Stores a sign-in; deletes those that were not used since a time, and of this name those above the limit, the ones
        whose last use is the longest ago."""
        table = schema.sign_ins
        of_name = table.c.name.is_(None) if row.name is None else table.c.name == row.name
        surplus = select(table.c.cookie).where(of_name).order_by(table.c.used_at.desc(), table.c.cookie).offset(limit - 1)

        def transaction(connection: Connection) -> None:
            _changed(connection)
            found = connection.execute(surplus).scalars().all()
            connection.execute(delete(table).where(or_(table.c.used_at < unused_since, table.c.cookie.in_(found)))).close()
            connection.execute(insert(table).values(**asdict(row))).close()

        await self._database.write(transaction)

    async def end_sign_in(self, cookie: str) -> None:
        """Deletes a sign-in, if there is one."""
        statement = delete(schema.sign_ins).where(schema.sign_ins.c.cookie == cookie)

        def transaction(connection: Connection) -> None:
            _changed(connection)
            connection.execute(statement).close()

        await self._database.write(transaction)

    async def record_uses(self, keys: Mapping[str, float], sign_ins: Mapping[str, float]) -> None:
        """Stores when keys and sign-ins were used, unless a later use is stored. The value of `change` stays."""

        def transaction(connection: Connection) -> None:
            # In one order, so that two nodes do not wait for each other.
            for statement, used in ((_KEY_USED, keys), (_SIGN_IN_USED, sign_ins)):
                for digest in sorted(used):
                    connection.execute(statement, {"of_digest": digest, "at": used[digest]}).close()

        await self._database.write(transaction)

    async def add_code(self, digest: str, name: str | None, key: str, seconds: float, limit: int) -> None:
        """Stores a code that is valid for so many seconds of the database's clock; deletes those that are over, and of this name
        the oldest above the limit."""
        table = schema.sign_in_codes
        of_name = table.c.name.is_(None) if name is None else table.c.name == name
        surplus = select(table.c.digest).where(of_name).order_by(table.c.expires_at.desc(), table.c.digest).offset(limit - 1)

        def transaction(connection: Connection) -> None:
            connection.execute(delete(table).where(table.c.expires_at < DatabaseTime())).close()
            found = connection.execute(surplus).scalars().all()
            connection.execute(delete(table).where(table.c.digest.in_(found))).close()
            values = {"digest": digest, "name": name, "key": key, "expires_at": DatabaseTime() + seconds}
            connection.execute(insert(table).values(**values)).close()

        await self._database.write(transaction)

    async def use_code(self, digest: str) -> tuple[str | None, str] | None:
        """Deletes a code, and returns the name and the key it was made by. None if there is none, or it is over: of several
        nodes at the same time one gets it."""
        table = schema.sign_in_codes
        statement = delete(table).where(table.c.digest == digest, table.c.expires_at >= DatabaseTime())
        used = statement.returning(table.c.name, table.c.key)

        def transaction(connection: Connection) -> tuple[str | None, str] | None:
            found = connection.execute(used).first()
            return None if found is None else (found.name, found.key)

        return await self._database.write(transaction)


_keys, _sign_ins = schema.named_keys.c, schema.sign_ins.c
_KEYS = select(_keys.digest, _keys.name, _keys.created_at, _keys.used_at).order_by(_keys.created_at, _keys.name)
_SIGN_INS = select(_sign_ins.cookie, _sign_ins.name, _sign_ins.key, _sign_ins.token, _sign_ins.used_at)
_NAME = select(_keys.name, _keys.digest).where(_keys.folded_name == bindparam("of_name"))
_KEY_USED = (
    update(schema.named_keys)
    .where(_keys.digest == bindparam("of_digest"), or_(_keys.used_at.is_(None), _keys.used_at < bindparam("at")))
    .values(used_at=bindparam("at"))
)
_SIGN_IN_USED = (
    update(schema.sign_ins)
    .where(_sign_ins.cookie == bindparam("of_digest"), _sign_ins.used_at < bindparam("at"))
    .values(used_at=bindparam("at"))
)


def _changed(connection: Connection) -> None:
    set_value(connection, CHANGE, uuid.uuid4().hex)
