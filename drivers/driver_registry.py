"""Loads drivers by name from the entry-point group `portico.drivers`, in which the built-in ones are registered too."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

from drivers.runtime.cli_driver import Driver

log = logging.getLogger(__name__)

GROUP = "portico.drivers"


def load() -> dict[str, Driver]:
    """Return every driver that loads, by name. One that raises is left out with a warning."""
    drivers: dict[str, Driver] = {}
    for point in entry_points(group=GROUP):
        try:
            drivers[point.name] = point.load()()
        except Exception as error:
            log.warning("the driver %r of %s is left out: %s: %s", point.name, point.value, type(error).__name__, error)
    return drivers
