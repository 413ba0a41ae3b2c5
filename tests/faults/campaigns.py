"""All campaigns by name, and a process for each that is run."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from tests.faults.campaign import Campaign, Report, run_campaign
from tests.faults.clock import clock
from tests.faults.confinement import confinement
from tests.faults.creation import creation
from tests.faults.descriptors import descriptors
from tests.faults.followers import followers
from tests.faults.kills import kills, start_kills
from tests.faults.pauses import pauses
from tests.faults.process_one import process_one
from tests.faults.rules import rules
from tests.faults.shutdown import shutdown
from tests.faults.storage import disk, lock
from tests.faults.store_faults import store
from tests.faults.trees import trees
from tests.faults.volume import volume

CAMPAIGNS: dict[str, Campaign] = {
    "store": store,
    "kills": kills,
    "store-stored-first": partial(store, durability="stored-first"),
    "kills-stored-first": partial(kills, durability="stored-first"),
    "volume": volume,
    "trees": trees,
    "creation": creation,
    "lock": lock,
    "start": start_kills,
    "disk": disk,
    "followers": followers,
    "pauses": pauses,
    "shutdown": shutdown,
    "clock": clock,
    "confinement": confinement,
    "rules": rules,
    "descriptors": descriptors,
    "process-one": process_one,
}


def run_campaigns(names: Sequence[str], seed: int, *, quick: bool, jobs: int) -> Iterator[Report]:
    """Run campaigns, `jobs` of them at the same time, and yield the report of each as it ends.

    Each has a process of its own: the time limits of one do not depend on the checks of another.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, max_tasks_per_child=1) as processes:
        for finished in as_completed([processes.submit(_run, name, seed, quick) for name in names]):
            yield finished.result()


def _run(name: str, seed: int, quick: bool) -> Report:
    return asyncio.run(run_campaign(name, CAMPAIGNS[name], seed, quick))
