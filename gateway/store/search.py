"""The search in titles and messages, by the words that are stored with them (words.py).

The index (search_index.py) finds the messages that have all words. That words stand together is compared in the words
themselves, and so are those of titles, of which there are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.store.database import Database
from gateway.store.search_index import TABLE, VECTOR, expression, is_kept
from gateway.store.sql import Connection, equals

Phrase = tuple[str, bool]
"""Words that stand together, as `words_of` returns them, and whether the last is whole, not only the beginning of a word."""
_MESSAGES = {
    "sqlite": f"""
        SELECT found.rowid AS cursor, sessions.id, messages.position, messages.seq, messages.body
        FROM {TABLE} AS found CROSS JOIN histories ON histories.number = found.rowid >> 32
        CROSS JOIN sessions ON sessions.id = histories.session_id CROSS JOIN messages ON messages.number = found.rowid
        WHERE {TABLE} MATCH :expression AND found.rowid < :before
    """,
    "postgresql": f"""
        SELECT messages.number AS cursor, sessions.id, position, seq, body
        FROM messages JOIN sessions ON sessions.id = session_id
        WHERE {VECTOR} @@ CAST(:expression AS tsquery) AND messages.number < :before
    """,
}
# The place of a title is behind those of all messages of its session.
_TITLES = """
SELECT histories.number << 32 AS cursor, sessions.id, NULL, NULL, NULL
FROM session_metadata JOIN histories ON histories.session_id = session_metadata.session_id
JOIN sessions ON sessions.id = session_metadata.session_id WHERE histories.number << 32 < :before
"""


@dataclass(frozen=True, slots=True)
class SearchRow:
    """A title (without `position` and `body`) or a message that was found. `cursor` continues after it."""

    cursor: int
    session_id: str
    position: int | None
    seq: int | None
    body: str | None


class SearchRepository:
    """Titles and messages by their words."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(
        self, phrases: Sequence[Phrase], owner: str | None, *, everybody: bool, agent: str | None, limit: int, before: int | None
    ) -> list[SearchRow] | None:
        """Returns what has all phrases, the newest session first and its last message first. None without an index.

        Sessions are those of the owner, or all with `everybody`. `before` is the cursor of the page before.
        """
        before = 2**63 - 1 if before is None else before
        values: dict[str, Any] = {"owner": owner, "agent": agent, "before": before, "limit": limit}
        values |= {f"phrase_{n}": f"% {words} %" if whole else f"% {words}%" for n, (words, whole) in enumerate(phrases)}
        of_sessions = ([] if everybody else [equals("owner", owner)]) + ([] if agent is None else [equals("agent", agent)])
        compared = [f"' ' || {{table}}.words || ' ' LIKE :phrase_{n}" for n in range(len(phrases))]
        together = [condition for condition, (words, _) in zip(compared, phrases, strict=True) if " " in words]

        def found(connection: Connection) -> list[SearchRow] | None:
            if not is_kept(connection):
                return None
            values["expression"] = expression(_words(phrases), connection.dialect)
            in_messages = [_MESSAGES[connection.dialect], *of_sessions, *(one.format(table="messages") for one in together)]
            in_titles = [_TITLES, *of_sessions, *(one.format(table="session_metadata") for one in compared)]
            rows = list[SearchRow]()
            for conditions in (in_messages, in_titles):
                query = f"{' AND '.join(conditions)} ORDER BY cursor DESC LIMIT :limit"
                rows += [SearchRow(*row) for row in connection.execute(query, values)]
            return sorted(rows, key=lambda row: -row.cursor)[:limit]

        return await self._database.read(found)


def _words(phrases: Sequence[Phrase]) -> Iterator[Phrase]:
    for words, whole in phrases:
        *others, last = words.split(" ")
        yield from ((word, True) for word in others)
        yield last, whole
