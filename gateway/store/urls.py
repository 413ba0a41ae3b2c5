"""URLs of databases in the configuration: what one names, its passwords, and the backend for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from gateway.errors import ConfigError
from gateway.installation import command_for_extra
from gateway.store.backend import Backend
from gateway.store.sql import Dialect
from gateway.store.sqlite import SqliteBackend
from gateway.store.times import STORE_TIMES, StoreTimes

SETTING = "store.url"
"""The setting of the configuration with the URL."""
_DIALECTS: Mapping[str, Dialect] = {"sqlite": "sqlite", "postgresql": "postgresql", "postgres": "postgresql"}
"""By the schemes of URLs. libpq has both names of PostgreSQL."""
_URLS = "use sqlite:///FILE or postgresql://USER@HOST/DATABASE"
_PASSWORDS = ("password", "sslpassword")
"""Parameters of a URL with a password: the second one is that of the key of a TLS certificate."""
_PARTS = re.compile(r"([^/?]*)([^?]*)(.*)", re.DOTALL)
"""Of a URL behind the scheme: the user and the hosts, the path, and the parameters."""
_UNCLEAR = re.compile(r"[#\s]|%(?![0-9A-Fa-f]{2})|%00")
_HOST = re.compile(r"(\[[^][]*\]|[^][:]*)(:[0-9]*)?")
"""A host with its port. libpq permits several, with commas between them."""


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A URL of a database. `text` is as libpq takes it, `shown` without passwords, and `secrets` are the passwords.

    `file` is the path of an SQLite database; None for one in memory. `parameters` are the names of the parameters behind the `?`.
    """

    dialect: Dialect
    text: str
    shown: str
    secrets: tuple[str, ...] = ()
    file: str | None = None
    parameters: frozenset[str] = frozenset()


def backend_of(url: str, name: str = SETTING, times: StoreTimes = STORE_TIMES) -> Backend:
    """Returns the backend of a URL of the configuration, without a connection. Raises ConfigError if there is none for it.

    `name` is the name of the URL in errors.
    """
    parsed = database_url(url, name)
    return SqliteBackend(parsed.file, times) if parsed.dialect == "sqlite" else _on_postgresql(parsed, times)


def _on_postgresql(url: DatabaseUrl, times: StoreTimes) -> Backend:
    try:
        # It imports psycopg, which only an extra installs, and which takes 0.05 s and 8 MB.
        from gateway.store.postgresql import PostgresqlBackend
    except ImportError as error:
        raise ConfigError(
            f"a store on PostgreSQL needs psycopg, which the extra `postgresql` installs ({error}). "
            f"Run: {command_for_extra('postgresql')}"
        ) from None
    return PostgresqlBackend(url.text, url.shown, url.parameters, times)


def database_url(url: str, name: str = SETTING) -> DatabaseUrl:
    """Parses a URL of the configuration. Raises ConfigError, without a password of the URL."""
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch("[a-z0-9+]+", scheme):
        raise ConfigError(f"{name} is no URL of a database: {_URLS}")
    dialect = _DIALECTS.get(scheme)
    if dialect is None:
        raise ConfigError(f"{name}: there is no store for {scheme}: {_URLS}")
    return _sqlite_url(url, rest, name) if dialect == "sqlite" else _postgresql_url(url, name)


def _sqlite_url(url: str, rest: str, name: str) -> DatabaseUrl:
    if rest and not rest.startswith("/"):
        raise ConfigError(f"{name} is no URL of a database: {_URLS}")
    file = rest[1:]
    if "?" in file:
        raise ConfigError(f"{name}: the URL of an SQLite database has no parameters: {_URLS}")
    return DatabaseUrl("sqlite", url, url, file=None if file in ("", ":memory:") else file)


def _postgresql_url(url: str, name: str) -> DatabaseUrl:
    scheme, _, rest = url.partition("://")
    authority, path, query = _PARTS.fullmatch(rest).groups()  # type: ignore[union-attr]
    user, _, hosts = authority.rpartition("@")
    parameters = [part.partition("=") for part in query.removeprefix("?").split("&") if part]
    # What libpq would take for another part than this does, so that a part of the password would be in errors.
    if "@" in f"{user}{path}{query}":
        raise ConfigError(
            f"{name} has more than one @, or one behind the host: write an @ in the user, the password or behind as %40"
        )
    if _UNCLEAR.search(rest) or any("%" in key for key, _, _ in parameters):
        raise ConfigError(f"{name} has a character that a URL cannot have: write a # as %23, a % as %25, and a space as %20")
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        raise ConfigError(f"{name} is no URL of a database: {_URLS}")
    user, _, password = user.partition(":")
    secrets = [password, *(value for key, _, value in parameters if key in _PASSWORDS)]
    query = "&".join(f"{key}={value}" for key, _, value in parameters if key not in _PASSWORDS)
    shown = f"{scheme}://{f'{user}@' if user else ''}{hosts}{path}{f'?{query}' if query else ''}"
    return DatabaseUrl(
        "postgresql",
        url,
        shown,
        tuple(unquote(secret) for secret in secrets if secret),
        parameters=frozenset(key for key, _, _ in parameters),
    )


def url_secrets(url: str, name: str = SETTING) -> list[str]:
    """Returns the passwords in a URL of the configuration: that of the user, and that of the key of a TLS certificate."""
    return list(database_url(url, name).secrets) if url else []
