"""The index of the search in PostgreSQL: a table with the words of each text (tsvector, GIN), and excerpts.

A word is a sequence of letters and digits, in lower case and without accents, as in FTS5's `unicode61 remove_diacritics 2`, where
only Latin letters lose their accents. The parser of
PostgreSQL would recognize addresses, numbers and paths. The index has no positions, which PostgreSQL limits to 16,383, and to 256
for a word: words that stand together are compared here, in the texts that have all of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.store.search_index import Marks, Phrase
from gateway.store.sql import Connection, Row

TABLE = "search_texts"
MOST_CHARACTERS = 200
"""Of a word in the index; PostgreSQL limits it to 2,046 bytes. Words that are longer are compared here."""
MOST_FOLDS = 10_000
"""Characters whose folding is remembered, about 1 MB."""
READ_ROWS = 100
"""Rows with all words of a phrase that are read at once."""
_WORD = re.compile("[^\\W_]+(?:[\u0300-\u036f][^\\W_]*)*")
_CREATE = (
    f"CREATE TABLE {TABLE} (row_id bigint PRIMARY KEY, body text NOT NULL, words tsvector NOT NULL)",
    f"CREATE INDEX {TABLE}_words ON {TABLE} USING gin (words)",
)
_LOCK = 0x736561726368
"""The key of the advisory lock that the creation takes."""
_FIND = f"""
SELECT t.body, t.row_id, s.session, m.position, m.seq, m.body
FROM {TABLE} t JOIN search_sessions s ON s.number = t.row_id >> 32
JOIN sessions x ON x.id = s.session
LEFT JOIN messages m ON m.session_id = s.session AND m.position = (t.row_id & 4294967295) - 1
WHERE t.words @@ CAST(:expression AS tsquery) AND t.row_id < :before
  AND (:everybody OR x.owner IS NOT DISTINCT FROM CAST(:owner AS text))
  AND (CAST(:agent AS text) IS NULL OR x.agent = CAST(:agent AS text))
ORDER BY t.row_id DESC LIMIT :limit
"""


class _Folds(dict[int, str | None]):
    """Of a character outside of ASCII words: what stands for it in the index, for `str.translate`. None is nothing."""

    def __missing__(self, code: int) -> str | None:
        if len(self) >= MOST_FOLDS:
            self.clear()
        self[code] = found = None if 0x300 <= code <= 0x36F else _folded_character(chr(code))
        return found


def _folded_character(character: str) -> str:
    # Unicode's simple case folding: one character for one.
    folded = next((one for one in (character.casefold(), character.lower()) if len(one) == 1), character)
    base = unicodedata.normalize("NFD", folded)[0]
    return base.lower() if base.isascii() else folded


_FOLDS = _Folds()


class _Word(NamedTuple):
    folded: str
    first: int
    end: int


def create(connection: Connection) -> bool:
    """Creates the table if it is missing. Returns whether it was."""
    connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
    if connection.value(f"SELECT to_regclass('{TABLE}')") is not None:
        return False
    for statement in _CREATE:
        connection.execute(statement)
    return True


def insert_rows(connection: Connection, rows: Sequence[tuple[int, str]]) -> None:
    """Adds texts with their numbers."""
    statement = f"INSERT INTO {TABLE} (row_id, body, words) VALUES (:row_id, :body, array_to_tsvector(CAST(:words AS text[])))"
    values = [
        {"row_id": row_id, "body": body, "words": sorted({word.folded[:MOST_CHARACTERS] for word in _words(body)})}
        for row_id, body in rows
    ]
    if values:
        connection.execute_many(statement, values)


def delete_rows(connection: Connection, row_ids: Sequence[int]) -> None:
    """Deletes texts."""
    if row_ids:
        connection.execute(f"DELETE FROM {TABLE} WHERE row_id {{in_row_ids}}", {"row_ids": list(row_ids)})


def row_ids_between(connection: Connection, first: int, last: int, limit: int) -> list[int]:
    """Returns numbers of texts."""
    query = f"SELECT row_id FROM {TABLE} WHERE row_id BETWEEN :first AND :last LIMIT :limit"
    return connection.values(query, {"first": first, "last": last, "limit": limit})


def find(connection: Connection, phrases: Sequence[Phrase], limit: int, marks: Marks, values: Mapping[str, Any]) -> Iterator[Row]:
    """Yields the rows that have all phrases, the greatest number first, each with an excerpt."""
    wanted = [found for found in ([word.folded for word in _words(phrase)] for phrase, _ in phrases) if found]
    whole = [is_whole for phrase, is_whole in phrases if _WORD.search(phrase)]
    if not wanted:
        return
    conditions = {
        f"'{word[:MOST_CHARACTERS]}'" + ("" if is_whole or n < len(phrase) - 1 else ":*")
        for phrase, is_whole in zip(wanted, whole, strict=True)
        for n, word in enumerate(phrase)
    }
    single = all(len(phrase) == 1 for phrase in wanted)
    rows = limit if single else READ_ROWS
    parameters = {**values, "expression": " & ".join(sorted(conditions)), "limit": rows}
    while True:
        read = connection.rows(_FIND, parameters)
        for indexed, *row in read:
            words = list(_words(indexed))
            spans = [_spans(words, phrase, is_whole) for phrase, is_whole in zip(wanted, whole, strict=True)]
            if all(spans):
                yield *row, _excerpt(indexed, words, sorted(span for found in spans for span in found), marks)
                limit -= 1
                if not limit:
                    return
        if len(read) < rows:
            return
        _, parameters["before"], *_ = read[-1]


def _words(body: str) -> Iterator[_Word]:
    for match in _WORD.finditer(body):
        yield _Word(_folded(match[0]), match.start(), match.end())


def _folded(word: str) -> str:
    return word.lower() if word.isascii() else word.translate(_FOLDS)


def _spans(words: Sequence[_Word], phrase: Sequence[str], whole: bool) -> list[tuple[int, int]]:
    """Where a phrase is among the words: the first word, and the one behind its last."""
    *beginning, last = phrase
    found = []
    for end, word in enumerate(words, 1):
        if not (word.folded == last if whole else word.folded.startswith(last)):
            continue
        first = end - len(phrase)
        if first >= 0 and all(words[first + n].folded == wanted for n, wanted in enumerate(beginning)):
            found.append((first, end))
    return found


def _excerpt(body: str, words: Sequence[_Word], spans: Sequence[tuple[int, int]], marks: Marks) -> str:
    """The words around the first match, with marks around each match."""
    match_begin, match_end, count = marks
    first = max(0, min(spans[0][0] - count // 4, len(words) - count))
    last = min(len(words), first + count)
    at = words[first].first if first else 0
    end = words[last - 1].end if last < len(words) else len(body)
    parts = ["…"] if first else []
    for begin, behind in spans:
        begin_at, end_at = words[begin].first, words[behind - 1].end
        if begin_at < at or end_at > end:
            continue
        parts += [body[at:begin_at], match_begin, body[begin_at:end_at], match_end]
        at = end_at
    parts += [body[at:end], "…" if last < len(words) else ""]
    return "".join(parts)
