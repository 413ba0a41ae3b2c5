"""Queries about the slots of turns: how many turns of one key run on all nodes of a cluster."""

from __future__ import annotations

from gateway.store.database import Database
from gateway.store.shared_values import LIMITS, set_value
from gateway.store.sql import Connection, insert

_LEASED_ELSEWHERE = "SELECT log_id FROM leases WHERE log_id = :log_id AND node != :node AND expires_at > 0"
_OTHERS = """
SELECT count(*) FROM turn_slots WHERE owner = :owner AND log_id != :log_id
AND (node = :node OR node IN (SELECT id FROM nodes WHERE heartbeat_at > {now} - :silent))
"""


class TurnSlotRepository:
    """The slots by the logs of their turns. One of a node without a heartbeat for `silent` seconds does not count."""

    def __init__(self, database: Database, silent: float = 10.0) -> None:
        self._database, self._silent = database, silent

    async def take(self, log_id: str, owner: str | None, node: str, limit: int) -> int | None:
        """Stores that a turn of a key runs on a node. Returns None; or, where the key has `limit` others, how many it has, and
        stores nothing. Of turns that begin at the same time on several nodes, no more get one than the limit allows."""
        values = {"log_id": log_id, "owner": owner or "", "node": node}

        def transaction(connection: Connection) -> int | None:
            # Whoever comes second waits here, and counts what the first has stored.
            set_value(connection, LIMITS, "")
            if connection.first(_LEASED_ELSEWHERE, values) is not None:
                # This node was stopped, and another one has the log: the turn, which does not begin, must not replace one there.
                return None
            others = int(connection.value(_OTHERS, {**values, "silent": self._silent}))
            if others >= limit:
                return others
            connection.execute("DELETE FROM turn_slots WHERE log_id = :log_id", values)
            connection.execute(insert("turn_slots", values), values)
            return None

        return await self._database.write(transaction)

    async def count(self, owner: str | None) -> int:
        """Returns how many turns a key has that are stored, also those of nodes without a heartbeat."""
        query, values = "SELECT count(*) FROM turn_slots WHERE owner = :owner", {"owner": owner or ""}
        return await self._database.read(lambda connection: int(connection.value(query, values)))

    async def release(self, log_id: str, node: str) -> None:
        """Deletes the slot of a turn that has ended on a node."""
        statement, values = "DELETE FROM turn_slots WHERE log_id = :log_id AND node = :node", {"log_id": log_id, "node": node}
        await self._database.write(lambda connection: connection.execute(statement, values))

    async def release_left_behind(self, node: str) -> None:
        """Deletes the slots that an earlier process of a node has left, and those of nodes that are no more."""
        statement = "DELETE FROM turn_slots WHERE node NOT IN (SELECT id FROM nodes WHERE id != :node)"
        await self._database.write(lambda connection: connection.execute(statement, {"node": node}))
