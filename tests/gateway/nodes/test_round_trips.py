"""How many statements a turn of a node sends to the database, and how many times it waits for an answer: a round trip each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

from gateway.errors import SessionElsewhere
from gateway.security.authentication import request_is_forwarded
from gateway.store.leases import LeaseRepository
from gateway.store.sessions import SessionRepository
from tests.gateway.nodes.three_nodes import run_nodes, say
from tests.support import stores
from tests.support.postgresql import server
from tests.support.postgresql_proxy import Proxy, port_of


@contextmanager
def statements() -> Iterator[list[str]]:
    """Give the list of the statements of all transactions that write inside."""
    found = list[str]()
    execute = psycopg.Cursor.execute

    def executed(self: psycopg.Cursor[Any], statement: str, *parameters: Any, **options: Any) -> Any:
        # Nodes read at any time what the others have written.
        if threading.current_thread().name.startswith("store-writer"):
            found.append(statement)
        return execute(self, statement, *parameters, **options)

    with patch.object(psycopg.Cursor, "execute", executed):
        yield found


async def test_a_turn_has_one_statement_about_leases_for_each_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy(server().port)
    url = server().tcp_url(server().create_database(), port=proxy.port)
    monkeypatch.setattr(stores, "store_url", lambda folder: url)
    async with run_nodes(tmp_path, "a", "b") as (a, _):
        session = await a.create()
        await say(session)
        port = await a.gateway.store._database.write(port_of)
        before = proxy.round_trips[port]
        with statements() as executed:
            await a.get(session.id)
            await say(session)
        of_leases = [one for one in executed if "leases" in one]
        commits = [one for one in executed if "store_writers" in one]
        assert all("FOR SHARE" in one for one in of_leases)
        assert len(of_leases) == len(commits) == 3, "the start of the run, its first events, and its end"
        assert len(executed) <= 19 and executed.count("COMMIT") == 3
        # The lease of each transaction, and its commit, with which everything else is sent.
        assert proxy.round_trips[port] - before == 6
        # Commits of transactions that notify wait for each other.
        assert not any("notify" in one.lower() for one in executed)
    proxy.close()


async def test_a_request_for_a_session_of_another_node_writes_nothing_and_the_next_one_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        with statements() as executed, pytest.raises(SessionElsewhere) as raised:
            await b.get(session.id)
        assert executed == [] and raised.value.node_id == a.id
        monkeypatch.setattr(SessionRepository, "get", None)
        monkeypatch.setattr(LeaseRepository, "get", None)
        with pytest.raises(SessionElsewhere) as raised:
            await b.get(session.id)
        assert raised.value.node_id == a.id


async def test_where_a_session_is_is_read_again_once_its_node_has_refused_it_or_is_out_of_reach(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b", "c") as (a, b, c):
        session = await a.create()
        with pytest.raises(SessionElsewhere):
            await b.get(session.id)
        assert session.lease is not None
        await session.lease.release()
        await c.node.leases.hold(session.id)
        for notice in (b.node.directory.look_again, lambda: b.node.directory.unreachable(a.id)):
            with pytest.raises(SessionElsewhere) as raised:
                await b.get(session.id)
            assert raised.value.node_id == a.id
            if (noticed := notice()) is not None:
                await noticed
            with pytest.raises(SessionElsewhere) as raised:
                await b.get(session.id)
            assert raised.value.node_id == c.id
            b.node.directory.remember(session.id, a.id)
        # A node that gets a forwarded request looks in the store, whatever it remembers.
        a.node.directory.remember(session.id, b.id)
        token = request_is_forwarded.set(True)
        try:
            with pytest.raises(SessionElsewhere) as raised:
                await a.get(session.id)
        finally:
            request_is_forwarded.reset(token)
        assert raised.value.node_id == c.id
