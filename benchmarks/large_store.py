"""Fills the data directory of a daemon with rows of many sessions, as its turns would have stored them, by plain SQL."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.store import Store
from gateway.store.sqlite import sqlite_url
from gateway.store.words import words_of

TURNS, EVENTS_PER_TURN = 6, 15
"""Turns of an ordinary session, and events of each: the start and the end of the turn, and what the agent sends."""
LONG_EVENTS = 100_000
LONG_SESSION = "sess_" + "f" * 32
"""A session with one turn of LONG_EVENTS events, each in a row of its own, as a slow agent leaves them."""
CREATED = 1_700_000_000.0
INSERTS = {
    "sessions": "INSERT INTO sessions (id, agent, config, created_at) VALUES (?, 'echo', ?, ?)",
    "runs": "INSERT INTO runs (id, log_id, state, stop_reason, first_seq, started_at, ended_at) "
    "VALUES (?, ?, 'ended', 'end_turn', ?, ?, ?)",
    "histories": "INSERT INTO histories (session_id) VALUES (?) RETURNING number",
    "messages": "INSERT INTO messages (number, session_id, position, body, seq, words) VALUES (?, ?, ?, ?, ?, ?)",
    "events": "INSERT INTO events (log_id, first, last, body) VALUES (?, ?, ?, ?)",
}
CONFIG = '{"options": {}, "tools": null, "app_tools": null}'


@dataclass(frozen=True)
class Rows:
    """How much a store has: sessions of TURNS turns each, ended executions of one turn, and perhaps the long session."""

    sessions: int
    long: bool = False
    executions: int = 0

    @property
    def events(self) -> int:
        turns = self.sessions * TURNS + self.executions
        return turns * EVENTS_PER_TURN + (LONG_EVENTS if self.long else 0)


def fill(data_dir: Path, rows: Rows) -> None:
    """Create the store of a data directory and fill it. Call it in a thread."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    asyncio.run(_create(data_dir))
    with closing(sqlite3.connect(data_dir / "portico.db")) as database, database:
        # Runs have random ids, and so do sessions: their rows are inserted all over the indexes, as with real ones.
        for n in range(rows.sessions):
            _insert_turns(database, f"sess_{uuid.uuid4().hex}", CREATED + n, TURNS, EVENTS_PER_TURN, whole_rows=True)
        for n in range(rows.executions):
            _insert_turns(database, f"exec_{uuid.uuid4().hex}", CREATED + n, 1, EVENTS_PER_TURN, whole_rows=True)
        if rows.long:
            _insert_turns(database, LONG_SESSION, CREATED - 1, 1, LONG_EVENTS, whole_rows=False)
    database.close()


async def _create(data_dir: Path) -> None:
    await (await Store.open(sqlite_url(data_dir))).close()


def _insert_turns(
    database: sqlite3.Connection, log_id: str, created: float, turns: int, events: int, *, whole_rows: bool
) -> None:
    is_session = log_id.startswith("sess_")
    if is_session:
        database.execute(INSERTS["sessions"], (log_id, CONFIG, created))
        [(number,)] = database.execute(INSERTS["histories"], (log_id,)).fetchall()
    for turn in range(turns):
        first = turn * events + 1
        last = first + events - 1
        began = created + turn * 60
        database.execute(INSERTS["runs"], (f"run_{uuid.uuid4().hex}", log_id, first, began, began + 1))
        if is_session:
            asked = {"role": "user", "content": f"message {turn} of a client"}
            answered = {"role": "assistant", "content": "".join(_text(n) for n in range(first + 1, last))}
            messages = [(2 * turn, asked, first), (2 * turn + 1, answered, last)]
            rows = [
                ((number << 32) + 1 + at, log_id, at, _json(body), seq, words_of(body["content"])) for at, body, seq in messages
            ]
            database.executemany(INSERTS["messages"], rows)
        database.executemany(INSERTS["events"], _event_rows(log_id, first, last, whole_rows))


def _event_rows(log_id: str, first: int, last: int, whole_rows: bool) -> Iterator[tuple[str, int, int, bytes]]:
    start = {"kind": "turn_start", "messages": [{"role": "user", "content": "message of a client"}], "permissions": []}
    yield log_id, first, first, _json(start).encode()
    tokens = [(n, _json({"kind": "agent_token", "text": _text(n)}).encode()) for n in range(first + 1, last)]
    if whole_rows:
        yield log_id, first + 1, last - 1, b"\n".join(data for _, data in tokens)
    else:
        yield from ((log_id, n, n, data) for n, data in tokens)
    end = {"kind": "session_end", "exit_code": 0, "duration_ms": 0, "stop_reason": "end_turn"}
    yield log_id, last, last, _json(end).encode()


def _text(n: int) -> str:
    return f"event {n} "


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
