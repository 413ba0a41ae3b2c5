"""The search in titles and messages of sessions: it fills the index of the store in the background, and reads it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import ValidationError

from drivers.contract.messages import MESSAGE, AssistantMessage, UserMessage, text_of
from drivers.runtime.clock import Clock
from gateway.errors import BadRequest, NotSupported, StoreUnavailable
from gateway.runs.session_metadata import displayed_title
from gateway.security.authentication import ADMINISTRATOR, Caller
from gateway.sessions.changes import SessionChanges
from gateway.store import EXECUTION_PREFIX, MessageRow, Store
from gateway.store.search import JOINED, MATCH_BEGIN, MATCH_END, NotIndexed, SearchRow

log = logging.getLogger(__name__)
Result = TypeVar("Result")

START_DELAY = 2.5
"""Seconds after the start of the gateway until it begins to fill the index, unless somebody searches before."""
DELAY = 1.5
"""Seconds after a change until it is in the index, unless somebody searches before: many turns are one transaction then."""
RETRY = 5.0
"""Seconds after which the store is tried again that did not answer, as while a server of PostgreSQL is restarted."""
OTHER_NODE = 1.0
"""Seconds until a node looks again whether another one still fills the index."""
PART_CHARACTERS = 64 * 1024
"""Text that one transaction adds to the index, about: 5 ms of the thread that writes."""
MAX_INDEXED = 64 * 1024
"""Characters of one message that are in the index."""
READ_MESSAGES = 200
SESSIONS = 100
"""Sessions that are looked for at once."""
MAX_WORDS = 32
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f]")
# Words of these scripts have no spaces between them: each character is a word of its own.
_IDEOGRAPH = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f])")
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
    """A page of what was found, and the cursor of the next one. `complete`: the index has all sessions."""

    found: Sequence[Found]
    next: int | None
    complete: bool


class SessionSearch:
    """Call `start` when the gateway is open. Without an index (`kind` of the store) nothing is done in the background.

    On a node of a cluster `used_elsewhere` returns the logs that other nodes use: they may have written what is not in the index.
    """

    def __init__(
        self,
        store: Store,
        changes: SessionChanges,
        clock: Clock,
        used_elsewhere: Callable[[], Awaitable[set[str]]] | None = None,
    ) -> None:
        self._clock, self._used_elsewhere = clock, used_elsewhere
        self._store, self._listener = store, changes.listen(ADMINISTRATOR)
        self._work: asyncio.Task[None] | None = None
        self._wanted, self._prepared = asyncio.Event(), asyncio.Event()
        self._lock = asyncio.Lock()
        self._changed: set[str] = set()
        self._deleted: set[str] = set()
        self._removing: asyncio.Task[None] | None = None
        self._complete = False

    def start(self) -> None:
        """Begin to fill the index in the background."""
        self._work = asyncio.create_task(self._run(), name="search index")

    async def close(self) -> None:
        """Stop. What the index lacks is added after the next start."""
        works = [work for work in (self._work, self._removing) if work is not None]
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works)

    async def search(self, caller: Caller, query: str, *, agent: str | None, limit: int, after: int | None) -> Results:
        """Search the sessions of a caller, the newest session first. Raises BadRequest, NotSupported.

        Each word is the beginning of one in the text; words in quotation marks stand together. Upper and lower case, and accents,
        are the same.
        """
        terms = _terms(query)
        if not query.strip():
            raise BadRequest("q: is empty; give the words to search for")
        self._wanted.set()
        kind = self._store.search.kind or await self._store.search.prepare()
        if kind == "none":
            raise NotSupported(_NO_INDEX)
        if not terms:
            return Results([], None, True)
        owner, everybody = caller.name, caller.all_sessions
        await self._prepared.wait()
        if self._used_elsewhere is not None and after is None:
            # A node adds a session to the index DELAY after a change, and releases it some seconds after that.
            self._changed |= {one for one in await self._used_elsewhere() if not one.startswith(EXECUTION_PREFIX)}
        await self._update()
        phrases = [(_divided(term.text), term.whole) for term in terms]
        rows = await self._store.search.find(phrases, owner, everybody=everybody, agent=agent, limit=limit + 1, before=after)
        following = rows[limit - 1].cursor if len(rows) > limit else None
        return Results(await self._found(rows[:limit]), following, self._complete)

    async def _found(self, rows: Sequence[SearchRow]) -> list[Found]:
        ids = list(dict.fromkeys(row.session_id for row in rows))
        details = await self._store.sessions.details(ids) if ids else {}
        records = {record.id: record for record in await self._store.sessions.some(ids)} if ids else {}
        found: list[Found] = []
        for row in rows:
            about, record = details.get(row.session_id), records.get(row.session_id)
            if about is None or record is None:
                # Deleted meanwhile.
                continue
            role = _text(row.body)[0] if row.body is not None else "title"
            title, used = displayed_title(about.row), about.row.used_at
            found.append(Found(row.session_id, title, record.agent, used, role, row.position, row.seq, _marked(row.excerpt)))
        return found

    # -- the index --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            wanted = asyncio.create_task(self._wanted.wait())
            try:
                await self._clock.wait([wanted], START_DELAY)
            finally:
                wanted.cancel()
            if await self._repeated(self._store.search.prepare) != "index":
                return
            self._prepared.set()
            filling = asyncio.create_task(self._fill_all())
            try:
                while await self._listener.wait():
                    await self._clock.sleep(DELAY)
                    await self._repeated(self._update)
            finally:
                filling.cancel()
                await asyncio.wait([filling])
        except Exception:
            log.exception("the index of the search is not filled any more, until the gateway is started again")
        finally:
            self._listener.close()
            self._prepared.set()

    async def _repeated(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Do a work again until the store answers."""
        failing = False
        while True:
            try:
                return await work()
            except StoreUnavailable as error:
                if not failing:
                    log.warning("the index of the search waits for the store; trying again every %g s: %s", RETRY, error)
                failing = True
                await self._clock.sleep(RETRY)

    async def _fill_all(self) -> None:
        try:
            await self._repeated(self._fill)
            self._complete = True
        except Exception:
            log.exception("the index of the search lacks earlier sessions, until the gateway is started again")

    async def _fill(self) -> None:
        """Add what the index lacks of all sessions, once no other node does that."""
        while True:
            async with self._store.search.filling() as alone:
                if alone:
                    return await self._add_all()
            await self._clock.sleep(OTHER_NODE)

    async def _add_all(self) -> None:
        """A part at a time, with pauses for the turns."""
        for session_id in await self._store.search.deleted():
            await self._store.search.remove(session_id)
        while lacking := await self._store.search.not_indexed(SESSIONS):
            for session in lacking:
                await self._index(session, pause=True)

    async def _update(self) -> None:
        """Add what has changed since it last succeeded. What was deleted is removed later: it is not found any more."""
        async with self._lock:
            changes = self._listener.drain()
            self._deleted |= {one for one, change in changes.items() if change == "deleted"}
            if self._deleted and (self._removing is None or self._removing.done()):
                self._removing = asyncio.create_task(self._remove())
            self._changed |= {one for one, change in changes.items() if change == "changed"}
            while part := list(self._changed)[:SESSIONS]:
                for session in await self._store.search.not_indexed(SESSIONS, part):
                    await self._index(session)
                self._changed.difference_update(part)

    async def _remove(self) -> None:
        try:
            while self._deleted:
                one = next(iter(self._deleted))
                await self._repeated(lambda one=one: self._store.search.remove(one))  # type: ignore[misc]
                self._deleted.discard(one)
        except Exception:
            log.exception("the index of the search has deleted sessions, until the gateway is started again")

    async def _index(self, session: NotIndexed, *, pause: bool = False) -> None:
        position = session.next_position
        title_text = _searched(session.title) if session.title else None
        while True:
            rows = await self._store.messages.numbered(session.session_id, position, READ_MESSAGES)
            texts = await asyncio.to_thread(_indexed, rows)
            for part, end in _parts(texts, position):
                began = self._clock.monotonic()
                await self._store.search.add(session.session_id, part, end, session.title, title_text)
                if pause:
                    # No more than half of the time of the thread that writes.
                    await self._clock.sleep(self._clock.monotonic() - began)
                position = end
            if position >= session.end or not rows:
                return


@dataclass(frozen=True, slots=True)
class _Term:
    """A word, the beginning of one in the text, or with `whole` words that stand together."""

    text: str
    whole: bool


def _terms(query: str) -> list[_Term]:
    found = [_Term(phrase or word, not word) for phrase, word in _TERM.findall(_CONTROLS.sub(" ", query))]
    return [term for term in found if any(character.isalnum() for character in term.text)][:MAX_WORDS]


def _divided(text: str) -> str:
    return _IDEOGRAPH.sub(f"{JOINED}\\1{JOINED}", text)


def _indexed(rows: Sequence[tuple[int, MessageRow]]) -> list[tuple[int, str]]:
    """The text of messages for the index, with their positions; empty for those that are not searched."""
    return [(position, _searched(_text(row.body)[1][:MAX_INDEXED])) for position, row in rows]


def _searched(text: str) -> str:
    """A text as it is in the index: control characters are separators and marks there."""
    return _divided(_CONTROLS.sub(" ", text))


def _text(body: str) -> tuple[Literal["title", "user", "assistant"], str]:
    """The role and the text of a message of a user or an assistant; no text for others."""
    try:
        message = MESSAGE.validate_json(body)
    except ValidationError:
        return "assistant", ""
    if isinstance(message, UserMessage | AssistantMessage):
        return message.role, text_of(message.content)
    return "assistant", ""


def _parts(texts: Sequence[tuple[int, str]], position: int) -> Iterator[tuple[list[tuple[int, str]], int]]:
    """Parts of about PART_CHARACTERS, at least one, and the position behind each."""
    part, size = list[tuple[int, str]](), 0
    for at, body in texts:
        position = at + 1
        if body:
            part.append((at, body))
            size += len(body)
        if size >= PART_CHARACTERS:
            yield part, position
            part, size = [], 0
    if part or not size:
        yield part, position


def _marked(excerpt: str) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    for n, part in enumerate(excerpt.replace(JOINED, "").split(MATCH_BEGIN)):
        matching, end, rest = part.partition(MATCH_END) if n else ("", "", part)
        found += [(matching, True)] if end else []
        found += [(rest if end or not n else matching, False)]
    return [(text, match) for text, match in found if text]
