"""What launchers leave behind outside of the processes that they start: it is removed here, whichever launcher has left it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from drivers.runtime import containers

log = logging.getLogger(__name__)


def leaves_behind(marker: str) -> bool:
    """Whether a launcher may have left something behind of the process with this marker, although the process has ended."""
    return containers.runtime_of(marker) is not None


async def remove_left_behind(
    instance: str, markers: Collection[str], runtimes: Collection[containers.Runtime], environ: Mapping[str, str]
) -> list[str]:
    """Remove what an earlier daemon with this data directory left behind. Return the markers of which nothing is left.

    Each of the `runtimes` is searched, and those of processes with the `markers`. A failure is logged. New processes of these
    launchers start afterwards.
    """
    used = {runtime for marker in markers if (runtime := containers.runtime_of(marker))}
    problems = await containers.remove_left_behind(instance, {*runtimes, *used}, environ)
    for runtime, problem in problems.items():
        log.warning("containers that an earlier daemon may have left behind in %s cannot be removed: %s", runtime, problem)
    return [marker for marker in markers if containers.runtime_of(marker) not in problems]


async def end_removals() -> None:
    """End the removals that are tried again in the background. Await it before the event loop ends."""
    await containers.end_removals()
