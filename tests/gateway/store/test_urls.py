"""URLs of databases: which one is named, and which passwords must not be shown."""

from __future__ import annotations

import pytest

from gateway.errors import ConfigError
from gateway.store.urls import backend_of, database_url, url_secrets

pytestmark = pytest.mark.one_store


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:////srv/portico.db", "/srv/portico.db"),
        ("sqlite:///portico.db", "portico.db"),
        ("sqlite:////srv/a%20b ä.db", "/srv/a%20b ä.db"),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
    ],
)
def test_the_file_of_a_url(url: str, file: str | None) -> None:
    found = database_url(url)
    assert (found.dialect, found.file, found.secrets) == ("sqlite", file, ())
    backend = backend_of(url)
    assert backend.single_connection is (file is None) is (backend.folder is None)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
@pytest.mark.parametrize(
    ("rest", "shown", "secrets"),
    [
        ("me@db/x", "me@db/x", []),
        ("me:wr%40ng%2Fsecret@db:5433/x", "me@db:5433/x", ["wr@ng/secret"]),
        ("/x?host=/run/postgresql&port=5433", "/x?host=/run/postgresql&port=5433", []),
        ("me@db/x?password=wrong%20secret&sslmode=require", "me@db/x?sslmode=require", ["wrong secret"]),
        ("me:one@db/x?sslkey=key.pem&sslpassword=two&password=three", "me@db/x?sslkey=key.pem", ["one", "three", "two"]),
        ("me:one@db1:5432,db2:5433/x?sslmode=disable", "me@db1:5432,db2:5433/x?sslmode=disable", ["one"]),
        ("me:one@[::1]:5432/x", "me@[::1]:5432/x", ["one"]),
        ("me:p[x]w:y@db/x", "me@db/x", ["p[x]w:y"]),
    ],
)
def test_passwords_of_a_url(scheme: str, rest: str, shown: str, secrets: list[str]) -> None:
    url = f"{scheme}://{rest}"
    assert database_url(url).dialect == "postgresql"
    assert sorted(url_secrets(url)) == secrets
    backend = backend_of(url)
    assert (backend.name, backend.url) == (f"{scheme}://{shown}", f"{scheme}://{shown}")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("portico.db", "x is no URL of a database: use sqlite:///FILE or postgresql://USER@HOST/DATABASE"),
        ("sqlite://portico.db", "x is no URL of a database: use sqlite:///FILE or"),
        ("sqlite:////srv/portico.db?key=wrong-secret", "x: the URL of an SQLite database has no parameters: use"),
        ("sqlite:///file::memory:?uri=true", "x: the URL of an SQLite database has no parameters"),
        ("postgresql://me:wrong-secret@host:port/db", "x is no URL of a database"),
        ("postgresql://me:wrong-secret@[::1/db", "x is no URL of a database"),
        ("postgresql://me:my@wrong-secret@host/db", "x has more than one @.*%40"),
        ("postgresql://me:?wrong-secret@host/db", "x has more than one @.*%40"),
        ("postgresql://me:12/wrong-secret@host/db", "x has more than one @.*%40"),
        ("postgresql://me:1#wrong-secret@host/db", "x has a character .*%23"),
        ("postgresql://me@host/db?password=a#wrong-secret", "x has a character .*%23"),
        ("postgresql://me@host/db?pass%77ord=wrong-secret", "x has a character .*%25"),
        ("postgresql://me:50%wrong-secret@host/db", "x has a character .*%25"),
        ("postgresql://me:top wrong-secret@host/db", "x has a character .*%20"),
        ("postgresql://me:%00wrong-secret@host/db", "x has a character"),
        ("mysql://me:wrong-secret@host/db", "x: there is no store for mysql: use sqlite:///FILE or"),
    ],
)
def test_other_urls_are_refused_without_their_passwords(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        database_url(url, "x")
    assert "wrong-secret" not in str(refused.value)
