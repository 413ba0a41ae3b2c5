"""What only the nodes of a cluster ask of the store."""

from __future__ import annotations

from gateway.store.database import Database
from gateway.store.shared_values import SharedValueRepository
from gateway.store.turn_slots import TurnSlotRepository


class SharedRepositories:
    """The repositories of what all nodes share: `Store.shared`."""

    def __init__(self, database: Database) -> None:
        self.values = SharedValueRepository(database)
        self.turn_slots = TurnSlotRepository(database)
