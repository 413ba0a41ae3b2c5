"""SQL that both databases understand, and the tables that it makes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.store import Store, schema
from gateway.store.rows import AuditRecord
from gateway.store.sql import Connection, assignments, columns, equals, insert, like
from tests.support.stores import connected, store_url

INSERT = insert("things", ("number", "id", "text", "by"))


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection to a database with the table `things`."""
    with connected(store_url(tmp_path, empty=True)) as found:
        found.execute('CREATE TABLE things (id {text} PRIMARY KEY, number INTEGER, text {text}, "by" {float}, data {bytes})')
        yield found


def add(connection: Connection, thing: str, text: str | None = None, number: int | None = None) -> None:
    connection.execute(INSERT, {"text": text, "id": thing, "by": 0.5, "number": number})


def test_values_are_named_and_those_that_a_statement_does_not_name_are_ignored(connection: Connection) -> None:
    connection.execute(INSERT, {"text": "one", "id": "a", "by": 0.1, "unknown": 5, "number": 7})
    values = {"id": "a", "number": 9, "text": "two"}
    connection.execute(f"UPDATE things SET {assignments(('number', 'text'))} WHERE id = :id", values)
    assert connection.rows('SELECT id, number, text, "by" FROM things WHERE id = :id', values) == [("a", 9, "two", 0.1)]
    with pytest.raises((sqlite3.ProgrammingError, psycopg.ProgrammingError), match=r"\bnumber\b"):
        connection.execute(INSERT, {"id": "b", "text": "x", "by": 0.5})


def test_a_query_gives_its_first_row_and_its_first_column(connection: Connection) -> None:
    query = "SELECT id, number FROM things ORDER BY id"
    assert (connection.rows(query), connection.values(query)) == ([], [])
    assert connection.first(query) is connection.value(query) is None
    connection.execute_many(INSERT, ({"id": name, "number": 1, "text": None, "by": None} for name in "ba"))
    assert (connection.rows(query), connection.values(query)) == ([("a", 1), ("b", 1)], ["a", "b"])
    assert (connection.first(query), connection.value(query)) == (("a", 1), "a")


def test_none_is_null(connection: Connection) -> None:
    add(connection, "a", "text")
    add(connection, "b", None)
    for text, expected in (("text", ["a"]), (None, ["b"]), ("other", [])):
        given = {"text": text}
        assert connection.values(f"SELECT id FROM things WHERE {equals('text', text)}", given) == expected


def test_a_list_of_texts_or_numbers(connection: Connection) -> None:
    for number, thing in enumerate(("a", "b", 'c"', "d, '")):
        add(connection, thing, number=number)
    find = "SELECT id FROM things WHERE {in_condition} ORDER BY id"
    for ids in (["a", 'c"', "d, '", "none"], ["none"], []):
        given = {"ids": ids}
        found = [name for name in ("a", "b", 'c"', "d, '") if name in ids]
        assert connection.values(find.replace("{in_condition}", "id {in_ids}"), given) == found
        rest = connection.values(find.replace("{in_condition}", "NOT (id {in_ids})"), given)
        assert rest == [name for name in ("a", "b", 'c"', "d, '") if name not in ids]
    assert connection.values(find.replace("{in_condition}", "number {in_numbers}"), {"numbers": [1, 3]}) == ["b", "d, '"]


def test_patterns_and_what_is_no_word_or_value(connection: Connection) -> None:
    for thing, text in (("a", '{"role":"user"}'), ("b", "50%_/"), ("c", "50 percent")):
        add(connection, thing, text)
    assert connection.values("""SELECT id FROM things WHERE text LIKE '{"role":"user"%'""") == ["a"]
    find = "SELECT id FROM things WHERE text LIKE :pattern ESCAPE '/'"
    assert connection.values(find, {"pattern": f"{like('50%_/')}%"}) == ["b"]
    assert connection.values(find, {"pattern": "50%"}) == ["b", "c"]
    assert connection.value("SELECT 'at 10:30, 5 %(id)s {}'") == "at 10:30, 5 %(id)s {}"


def test_words_of_each_database(connection: Connection) -> None:
    assert abs(connection.value("SELECT {now}") - time.time()) < 60
    connection.execute("INSERT INTO things (id, data) VALUES ('a', :data)", {"data": b"\x00\xff" * 300})
    assert connection.first("SELECT {size}(data), data FROM things") == (600, b"\x00\xff" * 300)


async def test_the_tables_are_those_of_the_file_in_each_database(tmp_path: Path) -> None:
    await (await Store.open(store_url(tmp_path))).close()
    with connected(store_url(tmp_path)) as connection:
        found = schema.found_tables(connection)
        # One of its columns is a keyword.
        assert connection.rows(f"SELECT {columns(AuditRecord)} FROM audit") == []
    tables = schema.tables()
    assert {name: names for name, names in found.items() if not name.startswith(("store_writers", "messages_search"))} == {
        name: [column.name for column in of_table] for name, of_table in tables.items()
    }
    assert {column.name: column.key for column in tables["events"] if column.key} == {"log_id": 1, "first": 2}
    assert [column.name for column in tables["events"] if column.large] == ["log_id", "body"]


@pytest.mark.sqlite_only
async def test_no_key_of_a_table_is_null(tmp_path: Path) -> None:
    """SQLite permits NULL in a primary key, unless the column says otherwise."""
    await (await Store.open(store_url(tmp_path))).close()
    keys = """
        SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c
        WHERE m.name {in_tables} AND c.pk AND c.type = 'TEXT' AND NOT c."notnull"
    """
    with connected(store_url(tmp_path)) as connection:
        assert connection.rows(keys, {"tables": list(schema.tables())}) == []
