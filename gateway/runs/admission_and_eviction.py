"""AdmissionControl: how many agents may live and how many turns may run, in all and for one key; sessions and tasks count alike.

Where all agent slots are taken, it chooses the idle agent that makes way. It starts and ends nothing itself. Of a session it
knows whether a turn runs, and whether its agent is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from drivers.runtime.process import unfinished_ends
from gateway.config import LimitSettings
from gateway.errors import ShuttingDown, TooMany

CLOSING = "the gateway is shutting down; try again when it is back"


EvictionOrder = tuple[bool, bool, float]
"""Whether only a text would be left of the conversation, whether the agent waits for its client, and when it was used last."""


class Occupant(Protocol):
    """A session or a task that may hold a slot for an agent and one for a turn."""

    @property
    def owner(self) -> str | None:
        """The name of the API key that it belongs to."""

    @property
    def busy(self) -> bool:
        """Whether a turn runs."""

    @property
    def has_agent(self) -> bool:
        """Whether it has a live agent that is not being ended."""

    @property
    def eviction_order(self) -> EvictionOrder | None:
        """The lowest is evicted first; None where the agent is needed."""

    def evict(self) -> None:
        """End the agent soon. The turn and the history are kept."""


class SharedTurns(Protocol):
    """The turns of each key on all nodes of a cluster."""

    async def take(self, log_id: str, owner: str | None) -> None:
        """Count a turn of this log. Raises TooMany if its key may have no more, or StoreUnavailable; then it does not count."""

    def release(self, log_id: str) -> None:
        """Count it no more, soon. A log that has none is ignored."""


class AdmissionControl:
    """The slots of the daemon. Occupants are known by the id of their log, from `add` to `remove`.

    Of a node of a cluster, `shared` has what holds for all nodes: the turns of a key. The other limits are of this machine.
    """

    def __init__(self, limits: LimitSettings, shared: SharedTurns | None = None) -> None:
        self._limits, self._shared = limits, shared
        self._occupants: dict[str, Occupant] = {}
        self._starting: dict[str, str | None] = {}
        self._closing = False

    @property
    def sessions_per_key(self) -> int:
        """How many stored sessions one key may have; 0 for any number."""
        return self._limits.sessions_per_key

    @property
    def occupants(self) -> list[Occupant]:
        """All that hold something."""
        return list(self._occupants.values())

    def add(self, log_id: str, occupant: Occupant) -> None:
        """Count what an occupant holds from now on."""
        self._occupants[log_id] = occupant
        self._settle(log_id)

    def remove(self, log_id: str) -> None:
        """An occupant holds nothing any more."""
        self._occupants.pop(log_id, None)
        self._settle(log_id)

    def close(self) -> None:
        """Admit nothing any more."""
        self._closing = True

    def refuse_if_closing(self) -> None:
        """Raises ShuttingDown once `close` was called."""
        if self._closing:
            raise ShuttingDown(CLOSING)

    @asynccontextmanager
    async def turn(self, log_id: str, owner: str | None, *, new_agent: bool) -> AsyncIterator[None]:
        """Hold a slot for a turn and, with `new_agent`, one for its agent, until what starts here counts as an occupant's.

        Raises TooMany, ShuttingDown, on a node also StoreUnavailable; then nothing has changed.
        """
        self.refuse_if_closing()
        self._take_turn(log_id, owner)
        self._starting[log_id] = owner
        try:
            if self._shared is not None:
                await self._shared.take(log_id, owner)
                self.refuse_if_closing()
            if new_agent:
                self._take_agent(log_id)
            yield
        finally:
            del self._starting[log_id]
            self._settle(log_id)

    def _settle(self, log_id: str) -> None:
        """Release the turn of a log on all nodes once it does not run here."""
        if self._shared is None or log_id in self._starting:
            return
        occupant = self._occupants.get(log_id)
        if occupant is None or not occupant.busy:
            self._shared.release(log_id)

    def has_free_agent_slot(self, log_id: str) -> bool:
        """Whether this occupant could have an agent without the end of another's. False once `close` was called."""
        return not self._closing and self._agents_beside(log_id) < self._limits.live_agents

    def _agents_beside(self, log_id: str) -> int:
        with_agents = {key for key, one in self._occupants.items() if one.has_agent}
        # An agent whose processes are still searched for is closed already, and uses the machine.
        return len((with_agents | self._starting.keys()) - {log_id}) + unfinished_ends()

    def _take_turn(self, log_id: str, owner: str | None) -> None:
        limits = self._limits
        if not (limits.running_turns or limits.turns_per_key):
            return
        running = {**{key: one.owner for key, one in self._occupants.items() if one.busy}, **self._starting}
        running.pop(log_id, None)
        if limits.running_turns and len(running) >= limits.running_turns:
            raise TooMany(f"{limits.running_turns} turns are running, and no more may (limits.running_turns); try again")
        own = sum(other == owner for other in running.values())
        if limits.turns_per_key and own >= limits.turns_per_key:
            raise TooMany(f"this key has {own} turns running, and no more may (limits.turns_per_key); try again")

    def _take_agent(self, log_id: str) -> None:
        if self._agents_beside(log_id) < self._limits.live_agents:
            return
        with_agents = {key: one for key, one in self._occupants.items() if one.has_agent and key != log_id}
        # The agent that was idle for the longest; if none is idle, the one that has waited for its client for the longest.
        idle = [(order, key) for key, one in with_agents.items() if (order := one.eviction_order) is not None]
        if not idle:
            allowed = self._limits.live_agents
            raise TooMany(f"all {allowed} slots for live agents are taken by running turns (limits.live_agents); try again")
        with_agents[min(idle)[1]].evict()
