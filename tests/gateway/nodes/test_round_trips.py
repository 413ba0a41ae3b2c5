"""How many statements a turn of a node sends to the database, and how many of them it waits for: a round trip each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from gateway.errors import SessionElsewhere
from tests.gateway.nodes.three_nodes import run_nodes, say


@contextmanager
def statements() -> Iterator[list[tuple[str, bool]]]:
    """Give the list of the statements of all transactions that write inside, and whether each is waited for."""
    found: list[tuple[str, bool]] = []

    def listener(_connection: Any, _cursor: Any, statement: str, _parameters: Any, context: Any, _many: bool) -> None:
        # Nodes read at any time what the others have written.
        if threading.current_thread().name.startswith("store-writer"):
            found.append((statement, "deferred" not in context.execution_options))

    event.listen(Engine, "before_cursor_execute", listener)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", listener)


async def test_a_turn_has_one_statement_about_leases_for_each_commit(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, _):
        session = await a.create()
        await say(session)
        with statements() as executed:
            await a.get(session.id)
            await say(session)
        found = [statement for statement, _ in executed]
        of_leases = [one for one in found if "leases" in one]
        commits = [one for one in found if "store_writers" in one]
        assert all("FOR SHARE" in one for one in of_leases)
        assert len(of_leases) == len(commits) == 3, "the start of the run, its first events, and its end"
        assert len(found) <= 16 and found.count("COMMIT") == 3
        # The lease of each transaction, and its commit, with which everything else is sent.
        assert sum(awaited for _, awaited in executed) == 6
        # Commits of transactions that notify wait for each other.
        assert not any("notify" in one.lower() for one in found)


async def test_a_request_for_a_session_of_another_node_writes_nothing(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        with statements() as executed, pytest.raises(SessionElsewhere) as raised:
            await b.get(session.id)
        assert executed == [] and raised.value.node_id == a.id
