"""The search in titles and messages of sessions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from drivers.contract.messages import MESSAGE, AssistantMessage, UserMessage, text_of
from gateway.errors import BadRequest, NotSupported
from gateway.runs.session_metadata import displayed_title
from gateway.security.authentication import Caller
from gateway.store import SessionDetails, Store
from gateway.store.search import Phrase, SearchRow
from gateway.store.words import Word, words_in, words_of

MAX_PHRASES = 32
EXCERPT_WORDS = 20
_TERM = re.compile(r'"([^"]*)"|([^\s"]+)')
_NO_INDEX = "the search needs an SQLite with the module FTS5, which this Python has not: install a Python whose sqlite3 has it"


@dataclass(frozen=True, slots=True)
class Found:
    """A title or a message that was found. `excerpt` are parts of its text, and whether each matches."""

    session_id: str
    title: str | None
    agent: str
    used_at: float
    role: Literal["title", "user", "assistant"]
    position: int | None
    seq: int | None
    excerpt: Sequence[tuple[str, bool]]


@dataclass(frozen=True, slots=True)
class Results:
    """A page of what was found, and the cursor of the next one."""

    found: Sequence[Found]
    next: int | None


class SessionSearch:
    """Finds titles and messages by their words."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def search(self, caller: Caller, query: str, *, agent: str | None, limit: int, after: int | None) -> Results:
        """Searches the sessions of a caller, the newest session first. Raises BadRequest, NotSupported.

        Each word is the beginning of one in the text. Words in quotation marks stand together, and each is whole. Upper and lower
        case are the same, and Latin letters are found without their accents too.
        """
        if not query.strip():
            raise BadRequest("q: is empty; give the words to search for")
        if not (phrases := _phrases(query)):
            return Results([], None)
        owner, everybody = caller.name, caller.all_sessions
        rows = await self._store.search.find(phrases, owner, everybody=everybody, agent=agent, limit=limit + 1, before=after)
        if rows is None:
            raise NotSupported(_NO_INDEX)
        following = rows[limit - 1].cursor if len(rows) > limit else None
        return Results(await self._found(rows[:limit], phrases), following)

    async def _found(self, rows: Sequence[SearchRow], phrases: Sequence[Phrase]) -> list[Found]:
        ids = list(dict.fromkeys(row.session_id for row in rows))
        details = await self._store.sessions.details(ids) if ids else {}
        agents = {record.id: record.agent for record in await self._store.sessions.some(ids)} if ids else {}
        # Others were deleted meanwhile.
        there = details.keys() & agents.keys()
        return [_one(row, details[row.session_id], agents[row.session_id], phrases) for row in rows if row.session_id in there]


def _one(row: SearchRow, details: SessionDetails, agent: str, phrases: Sequence[Phrase]) -> Found:
    role: Literal["title", "user", "assistant"] = "title"
    text = details.row.title or ""
    if row.body is not None:
        message = MESSAGE.validate_json(row.body)
        # No other message has words that are searched.
        assert isinstance(message, UserMessage | AssistantMessage)
        role, text = message.role, text_of(message.content)
    title, used_at = displayed_title(details.row), details.row.used_at
    return Found(row.session_id, title, agent, used_at, role, row.position, row.seq, _excerpt(text, phrases))


def _phrases(query: str) -> list[Phrase]:
    found = [(words_of(phrase or word), not word) for phrase, word in _TERM.findall(query)]
    return [phrase for phrase in found if phrase[0]][:MAX_PHRASES]


def _excerpt(text: str, phrases: Sequence[Phrase]) -> list[tuple[str, bool]]:
    """Returns the part of a text around its first match, divided where a match begins or ends."""
    words = list(words_in(text))
    matches = sorted(match for words_of_one, whole in phrases for match in _matches(words, words_of_one.split(" "), whole))
    first = max(0, min(matches[0][0] - EXCERPT_WORDS // 4, len(words) - EXCERPT_WORDS)) if matches else 0
    last = min(len(words), first + EXCERPT_WORDS)
    at = words[first].begin if first else 0
    end = words[last - 1].end if last < len(words) else len(text)
    parts = [("…" if first else "", False)]
    for begin, behind in matches:
        if words[begin].begin >= at and words[behind - 1].end <= end:
            parts += [(text[at : words[begin].begin], False), (text[words[begin].begin : words[behind - 1].end], True)]
            at = words[behind - 1].end
    parts.append((text[at:end] + ("…" if last < len(words) else ""), False))
    return [part for part in parts if part[0]]


def _matches(words: Sequence[Word], phrase: Sequence[str], whole: bool) -> list[tuple[int, int]]:
    """Returns where a phrase is among the words: its first word, and the one behind its last."""
    *beginning, last = phrase
    found = []
    for at, word in enumerate(words):
        first = at - len(beginning)
        if first < 0 or not (word.folded == last if whole else word.folded.startswith(last)):
            continue
        if all(words[first + n].folded == one for n, one in enumerate(beginning)):
            found.append((first, at + 1))
    return found
