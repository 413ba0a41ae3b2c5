"""The check of the other nodes, for a node of a cluster: which there are, and whether their configuration is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.file_threads import ANSWER_SECONDS
from gateway.cluster.configuration_digests import configuration_digests, differences
from gateway.cluster.node import Intervals
from gateway.cluster.node_keys import MAX_CLOCK_DIFFERENCE, node_keys
from gateway.cluster.shared_state import ENCRYPTION
from gateway.config import Settings
from gateway.diagnosis.data_folder import existing_keys
from gateway.diagnosis.report import Check
from gateway.errors import ConfigError, StoreUnavailable
from gateway.security.encryption import SecretEncryption, encryption_key
from gateway.store import Store

NAME = "Nodes"


async def check_nodes(
    settings: Settings, environ: Mapping[str, str], store: Store | None = None, clock: Clock = SYSTEM_CLOCK
) -> list[Check]:
    """Compare this node with those that the store knows. A given store stays open."""
    try:
        async with clock.timeout(ANSWER_SECONDS):
            if store is not None:
                return [await _compared(settings, environ, store, clock)]
            opened = await Store.open_unchanged(settings.store.url)
            try:
                with opened.explained_errors():
                    return [await _compared(settings, environ, opened, clock)]
            finally:
                await opened.close()
    except (ConfigError, StoreUnavailable, OSError) as error:
        return [Check(name=NAME, status="problem", text=str(error))]
    except TimeoutError:
        return [Check(name=NAME, status="problem", text=f"the store does not answer within {ANSWER_SECONDS:g} seconds")]


async def _compared(settings: Settings, environ: Mapping[str, str], store: Store, clock: Clock) -> Check:
    key = encryption_key(settings, environ)
    if (value := await store.shared.values.get(ENCRYPTION)) is not None:
        SecretEncryption(settings.data_dir, key).check(value.encode())
    keys = node_keys(settings.node, environ)
    own = configuration_digests(settings, existing_keys(settings, environ), key or "", keys)
    alive = [record for record in await store.nodes.all() if record.silent_for <= Intervals().silent]
    now = clock.time()
    details = [
        f"{record.report.address}: {' and '.join(found)} of node {record.report.id} differ from this configuration's"
        for record in alive
        if (found := differences(own, record.report.digests))
    ]
    wrong = bool(details)
    for address, count in Counter(record.report.address for record in alive).items():
        if count > 1:
            ids = " and ".join(record.report.id for record in alive if record.report.address == address)
            details.append(f"{address} is the address of the nodes {ids}: give each its own node.address")
    if alive and abs(ahead := now - (alive[0].heartbeat_at + alive[0].silent_for)) > MAX_CLOCK_DIFFERENCE / 2:
        details.append(
            f"the clock of this machine is {abs(ahead):.0f} seconds {'ahead of' if ahead > 0 else 'behind'} the database's; "
            f"nodes refuse each other's requests from {MAX_CLOCK_DIFFERENCE} seconds on: set the clocks, such as by NTP"
        )
    text = f"{len(alive)} running ({', '.join(record.report.address for record in alive)})" if alive else "none is running"
    if wrong:
        text += "; what all nodes should have in common differs: give them the same configuration, and restart them"
    return Check(name=NAME, status="warning" if details else "ok", text=text, details=details)
