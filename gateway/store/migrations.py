"""Brings a store that an older version has written up to today's tables.

New tables are made by `create_all`; a step here is for what changes in a table that is there already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, Float, String, update

from gateway.store import schema

if TYPE_CHECKING:
    from alembic.operations import Operations


def _owners(op: Operations) -> None:
    op.add_column("sessions", Column("owner", String(64)))


def _waits(op: Operations) -> None:
    op.add_column("runs", Column("waiting_since", Float))
    # Since when a run has waited nobody wrote down: its client has the whole time from now on.
    runs = schema.runs
    op.execute(update(runs).where(runs.c.state == "waiting").values(waiting_since=time.time()))


def _one_table_of_keys(op: Operations) -> None:
    # The keys of earlier tasks are forgotten with it: they did not say who had asked.
    op.drop_table("executions", if_exists=True)


STEPS: Mapping[int, Callable[[Operations], None]] = {2: _owners, 3: _waits, 4: _one_table_of_keys}
"""What leads to each version from the one before."""


def migrate(connection: Connection, found: int) -> None:
    """Take every step from the version that was found, in the connection's transaction."""
    # 0.4 s to import, and needed once a version.
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    op = Operations(MigrationContext.configure(connection))
    for version in range(found + 1, schema.VERSION + 1):
        STEPS[version](op)
    connection.execute(update(schema.schema_version).values(version=schema.VERSION))
