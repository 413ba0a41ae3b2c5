"""Queries about the slots of turns: how many turns of one key run on all nodes of a cluster."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select

from gateway.store import schema
from gateway.store.clock import DatabaseTime
from gateway.store.database import Database
from gateway.store.shared_values import LIMITS, set_value

_TABLE = schema.turn_slots
_LEASED_ELSEWHERE = select(schema.leases.c.log_id).where(
    schema.leases.c.log_id == bindparam("of_log"), schema.leases.c.node != bindparam("of_node"), schema.leases.c.expires_at > 0.0
)


class TurnSlotRepository:
    """The slots by the logs of their turns. One of a node without a heartbeat for `silent` seconds does not count."""

    def __init__(self, database: Database, silent: float = 10.0) -> None:
        self._database = database
        nodes = schema.nodes
        beating = select(nodes.c.id).where(nodes.c.heartbeat_at > DatabaseTime() - silent)
        counted = or_(_TABLE.c.node == bindparam("of_node"), _TABLE.c.node.in_(beating))
        self._count = (
            select(func.count())
            .select_from(_TABLE)
            .where(_TABLE.c.owner == bindparam("of_owner"), _TABLE.c.log_id != bindparam("of_log"), counted)
        )

    async def take(self, log_id: str, owner: str | None, node: str, limit: int) -> int | None:
        """Stores that a turn of a key runs on a node. Returns None; or, where the key has `limit` others, how many it has, and
        stores nothing. Of turns that begin at the same time on several nodes, no more get one than the limit allows."""

        def transaction(connection: Connection) -> int | None:
            # Whoever comes second waits here, and counts what the first has stored.
            set_value(connection, LIMITS, "")
            parameters = {"of_owner": owner or "", "of_log": log_id, "of_node": node}
            if connection.execute(_LEASED_ELSEWHERE, parameters).first() is not None:
                # This node was stopped, and another one has the log: the turn, which does not begin, must not replace one there.
                return None
            others = int(connection.execute(self._count, parameters).scalar_one())
            if others >= limit:
                return others
            connection.execute(delete(_TABLE).where(_TABLE.c.log_id == log_id)).close()
            connection.execute(insert(_TABLE).values(log_id=log_id, owner=owner or "", node=node)).close()
            return None

        return await self._database.write(transaction)

    async def count(self, owner: str | None) -> int:
        """Returns how many turns a key has that are stored, also those of nodes without a heartbeat."""
        query = select(func.count()).select_from(_TABLE).where(_TABLE.c.owner == (owner or ""))
        return await self._database.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def release(self, log_id: str, node: str) -> None:
        """Deletes the slot of a turn that has ended on a node."""
        statement = delete(_TABLE).where(_TABLE.c.log_id == log_id, _TABLE.c.node == node)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def release_left_behind(self, node: str) -> None:
        """Deletes the slots that an earlier process of a node has left, and those of nodes that are no more."""
        others = select(schema.nodes.c.id).where(schema.nodes.c.id != node)
        statement = delete(_TABLE).where(_TABLE.c.node.not_in(others))
        await self._database.write(lambda connection: connection.execute(statement).close())
