"""Loads drivers by name: those of the entry-point group `portico.drivers`, in which the built-in ones are registered too, and one
for each agent of the catalogue."""

from __future__ import annotations

import logging
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from drivers.acp.catalogue import catalogue
from drivers.acp.driver import AcpDriver
from drivers.runtime.cli_driver import Driver

log = logging.getLogger(__name__)

GROUP = "portico.drivers"


def load() -> dict[str, Driver]:
    """Return every driver that loads, by name. One that raises is left out with a warning."""
    drivers: dict[str, Driver] = {}
    for point in _registered(tuple(sys.path)):
        try:
            drivers[point.name] = point.load()()
        except Exception as error:
            log.warning("the driver %r of %s is left out: %s: %s", point.name, point.value, type(error).__name__, error)
    # A driver of another package is preferred to the catalogue's.
    return {**{name: AcpDriver(agent) for name, agent in catalogue().items()}, **drivers}


@cache
def _registered(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    # Reading the metadata of a hundred packages takes 8 ms, and each command and gateway of a process needs it.
    return tuple(entry_points(group=GROUP))
