"""Migrates a database that an older version has written.

`create_all` creates new tables; a step here changes a table that exists. All steps and the new version number are one
transaction. As nodes of a cluster, programs of older versions may run meanwhile and go on with the new tables, if the steps allow
that: CONTRIBUTING.md. A step also succeeds if it was executed before: up to version 4 a migration was not one transaction, and a
gateway that was killed during it left some steps without their version number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Connection, Float, Integer, String, Text, inspect, select, update

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


def _add_compatible_from(op: Operations) -> None:
    _add_column(op, "schema_version", Column("compatible_from", Integer))
    _add_column(op, "leases", Column("compatible_from", Integer))


def _add_column(op: Operations, table: str, column: Column[Any]) -> None:
    if column.name not in {found["name"] for found in inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


@dataclass(frozen=True, slots=True)
class Step:
    """A step to a version from the version before. `change` executes it.

    `compatible_from` is the oldest version of a program that can use the tables after it. That is the version of an earlier step,
    where this one adds only what older programs need not know: tables, indexes, and columns that are null or have a default of
    the server. It is a later one where the step removes or changes something that programs before that version use.
    """

    change: Callable[[Operations], None]
    compatible_from: int


STEPS: Mapping[int, Step] = {
    2: Step(_add_owners, 2),
    3: Step(_add_waiting_since, 3),
    4: Step(_drop_executions, 4),
    5: Step(_add_message_numbers, 5),
    6: Step(_add_table, 6),
    7: Step(_add_table, 7),
    8: Step(_add_table, 8),
    9: Step(_add_origins_and_titles, 9),
    # Programs before version 11 refuse all newer versions when they start. Those that run go on.
    10: Step(_add_table, 10),
    11: Step(_add_compatible_from, 10),
}
"""By version."""
COMPATIBLE_FROM = max(step.compatible_from for step in STEPS.values())
"""The oldest version of a program that can use the tables of today."""


def load() -> None:
    """Imports what `migrate` needs, which takes 0.4 s: before the transaction, in which others may wait for its locks."""
    import alembic.operations
    import alembic.runtime.migration  # noqa: F401


def migrate(connection: Connection, found: int) -> None:
    """Executes the steps from the version that was found, in the transaction of the connection."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    op = Operations(MigrationContext.configure(connection))
    # Before the steps, whose locks others wait for: a query for each index takes 0.1 s.
    found_indexes = {index["name"] for indexes in inspect(connection).get_multi_indexes().values() for index in indexes}
    for version in range(found + 1, schema.VERSION + 1):
        STEPS[version].change(op)
    for table in schema.metadata.sorted_tables:
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.name not in found_indexes:
                index.create(connection, checkfirst=True)
    values = {"version": schema.VERSION, "compatible_from": COMPATIBLE_FROM}
    connection.execute(update(schema.schema_version).values(values))
