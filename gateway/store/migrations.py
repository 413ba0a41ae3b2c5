"""Migrates a database that an older version has written.

`create_all` creates new tables; a step here changes a table that exists. All steps and the new version number are one
transaction. A step also succeeds if it was executed before: up to version 4 a migration was not one transaction, and a gateway
that was killed during it left some steps without their version number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Connection, Float, String, Text, inspect, select, update

from gateway.store import schema
from gateway.store.rows import UNNUMBERED

if TYPE_CHECKING:
    from alembic.operations import Operations


def _add_owners(op: Operations) -> None:
    _add_column(op, "sessions", Column("owner", String(64)))


def _add_waiting_since(op: Operations) -> None:
    _add_column(op, "runs", Column("waiting_since", Float))
    # Older versions did not store when a wait began: the approval timeout counts from now.
    runs = schema.runs
    op.execute(update(runs).where(runs.c.state == "waiting").values(waiting_since=time.time()))


def _drop_executions(op: Operations) -> None:
    # It held idempotency keys without their callers, which cannot be moved to the table of today.
    op.drop_table("executions", if_exists=True)


def _add_message_numbers(op: Operations) -> None:
    _add_column(op, "messages", Column("seq", BigInteger))
    # Recovery numbers the messages of these when the daemon starts (gateway/runs/store_version_4_recovery.py).
    messages, runs = schema.messages, schema.runs
    unfinished = select(runs.c.log_id).where(runs.c.state != "ended")
    op.execute(update(messages).where(messages.c.session_id.in_(unfinished)).values(seq=UNNUMBERED))


def _add_table(op: Operations) -> None:
    # `create_all` has created it: `failures` in version 6, `session_usage` in version 7, `responses` and `conversations` in
    # version 8, `worktrees` and the tables of a cluster in version 10. Nothing of older runs or sessions is in them.
    pass


def _add_origins_and_titles(op: Operations) -> None:
    # `create_all` has created `search_sessions`. The daemon fills the index in the background.
    _add_column(op, "sessions", Column("forked_from", String(64)))
    _add_column(op, "notes", Column("chosen_title", Text))


def _add_column(op: Operations, table: str, column: Column[Any]) -> None:
    if column.name not in {found["name"] for found in inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


STEPS: Mapping[int, Callable[[Operations], None]] = {
    2: _add_owners,
    3: _add_waiting_since,
    4: _drop_executions,
    5: _add_message_numbers,
    6: _add_table,
    7: _add_table,
    8: _add_table,
    9: _add_origins_and_titles,
    10: _add_table,
}
"""By version: the step to it from the version before."""


def migrate(connection: Connection, found: int) -> None:
    """Executes the steps from the version that was found, in the transaction of the connection."""
    # Takes 0.4 s to import, and is needed once for each version.
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    op = Operations(MigrationContext.configure(connection))
    for version in range(found + 1, schema.VERSION + 1):
        STEPS[version](op)
    for table in schema.metadata.sorted_tables:
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            index.create(connection, checkfirst=True)
    connection.execute(update(schema.schema_version).values(version=schema.VERSION))
