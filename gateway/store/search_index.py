"""The index of the search, as SQLite (sqlite_search.py) and PostgreSQL (postgresql_search.py) have it: each is a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from gateway.store.sql import Connection, Row

Phrase = tuple[str, bool]
"""Words that stand together, and whether the last one is whole, not only the beginning of a word."""
Marks = tuple[str, str, int]
"""Of excerpts: the characters before and after what matches, and how many words an excerpt has."""


class SearchIndex(Protocol):
    """The functions of such a module."""

    def create(self, connection: Connection) -> bool | None:
        """Create the table if it is missing. Return whether it was; None if the database can have no index."""

    def insert_rows(self, connection: Connection, rows: Sequence[tuple[int, str]]) -> None:
        """Add texts with their numbers."""

    def delete_rows(self, connection: Connection, row_ids: Sequence[int]) -> None:
        """Delete texts."""

    def row_ids_between(self, connection: Connection, first: int, last: int, limit: int) -> list[int]:
        """Return numbers of texts."""

    def find(
        self, connection: Connection, phrases: Sequence[Phrase], limit: int, marks: Marks, values: Mapping[str, Any]
    ) -> Iterator[Row]:
        """Yield the rows that have all phrases, the greatest number first: each as the values of a search.SearchRow."""
