"""AdmissionControl: how many agents may live and how many turns may run, of sessions and of tasks alike, in all and by key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from gateway.config import LimitSettings
from gateway.errors import TooMany


class EvictableSessions(Protocol):
    """The sessions, whose agents stay between turns. Ids are those of their logs."""

    def at_work(self) -> Mapping[str, str | None]:
        """The sessions whose runs are at work, with their owners."""

    def with_agents(self) -> Collection[str]:
        """The sessions that have an agent."""

    def make_room(self, newcomer: str) -> bool:
        """Put the agent to sleep that was idle for the longest; False if none is idle."""


class AdmissionControl:
    """Everything is known by the id of its log. Whoever may not pass gets TooMany, and has changed nothing."""

    evictable: EvictableSessions

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._tasks: dict[str, str | None] = {}
        self._entering: dict[str, str | None] = {}

    @contextmanager
    def turn(self, log_id: str, owner: str | None) -> Iterator[None]:
        """A place among the turns that run, kept until what was begun here counts by itself. Raises TooMany."""
        self._refuse_if_full(log_id, owner)
        inner = log_id in self._entering
        self._entering[log_id] = owner
        try:
            yield
        finally:
            if not inner:
                del self._entering[log_id]

    def take_agent(self, newcomer: str) -> None:
        """A place for an agent. Raises TooMany."""
        taken = {*self.evictable.with_agents(), *self._tasks, *self._entering} - {newcomer}
        allowed = self._limits.live_agents
        if len(taken) >= allowed and not self.evictable.make_room(newcomer):
            raise TooMany(f"all {allowed} places for live agents are taken by running turns (limits.live_agents); try again")

    def task_began(self, log_id: str, owner: str | None) -> None:
        """A task has an agent and a turn from here until it has ended."""
        self._tasks[log_id] = owner

    def task_ended(self, log_id: str) -> None:
        self._tasks.pop(log_id, None)

    def _refuse_if_full(self, log_id: str, owner: str | None) -> None:
        limits = self._limits
        if not (limits.running_turns or limits.turns_per_key):
            return
        running = {**self.evictable.at_work(), **self._tasks, **self._entering}
        running.pop(log_id, None)
        if limits.running_turns and len(running) >= limits.running_turns:
            raise TooMany(f"{limits.running_turns} turns are running, and no more may (limits.running_turns); try again")
        own = sum(other == owner for other in running.values())
        if limits.turns_per_key and own >= limits.turns_per_key:
            raise TooMany(f"this key has {own} turns running, and no more may (limits.turns_per_key); try again")
