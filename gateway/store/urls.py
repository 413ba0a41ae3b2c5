"""URLs of databases in the configuration: what one names, its passwords, and the backend for it."""

from __future__ import annotations

from sqlalchemy import make_url
from sqlalchemy.engine import URL

from gateway.errors import ConfigError
from gateway.installation import command_for_extra
from gateway.store.backend import KEY_PASSWORD, Backend
from gateway.store.sqlite import SqliteBackend

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
"""SQLAlchemy's drivers, by the schemes of URLs. libpq has both names of PostgreSQL."""

SETTING = "store.url"
"""The setting of the configuration with the URL."""
_URLS = "use sqlite:///FILE or postgresql://USER@HOST/DATABASE"


def backend_of(url: str, name: str = SETTING) -> Backend:
    """Returns the backend of a URL of the configuration, without a connection. Raises ConfigError if there is none for it.

    `name` is that of the URL in errors.
    """
    parsed = database_url(url, name)
    return SqliteBackend(parsed) if parsed.drivername == "sqlite" else _on_postgresql(parsed)


def _on_postgresql(url: URL) -> Backend:
    try:
        # It imports psycopg, which only an extra installs, and which takes 0.05 s and 8 MB.
        from gateway.store.postgresql import PostgresqlBackend
    except ImportError as error:
        raise ConfigError(
            f"a store on PostgreSQL needs psycopg, which the extra `postgresql` installs ({error}). "
            f"Run: {command_for_extra('postgresql')}"
        ) from None
    return PostgresqlBackend(url)


def database_url(url: str, name: str = SETTING) -> URL:
    """Parses a URL of the configuration, and adds the driver that is used. Raises ConfigError.

    A password is in `password`, also where it is a parameter of the URL.
    """
    try:
        parsed = make_url(url)
    except Exception:
        # The error of SQLAlchemy has the URL, which may have a password.
        raise ConfigError(f"{name} is no URL of a database: {_URLS}") from None
    if parsed.drivername not in DRIVERS:
        raise ConfigError(f"{name}: there is no store for {parsed.drivername}: {_URLS}")
    if "@" in (parsed.host or ""):
        # A part of the password would be a part of the host, which errors have.
        raise ConfigError(f"{name} has more than one @ before the host: write an @ in the user or the password as %40")
    if (password := parsed.normalized_query.get("password")) is not None:
        # The parameter is what libpq uses where both are given.
        parsed = parsed.difference_update_query(["password"]).set(password=password[-1])
    return parsed.set(drivername=DRIVERS[parsed.drivername])


def url_secrets(url: str, name: str = SETTING) -> list[str]:
    """Returns the passwords in a URL of the configuration: that of the user, and that of the key of a TLS certificate."""
    parsed = database_url(url, name) if url else None
    if parsed is None:
        return []
    return [secret for secret in (parsed.password, *parsed.normalized_query.get(KEY_PASSWORD, ())) if secret]
