"""What holds for all nodes of a cluster together: the limits of a key, and that all have the same encryption key."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.runtime.clock import Clock
from gateway.cluster.configuration_digests import configuration_digests
from gateway.cluster.node_keys import node_keys
from gateway.cluster.shared_turns import SharedTurns
from gateway.config import Settings
from gateway.security.encryption import SecretEncryption, encryption_key
from gateway.store import Store

ENCRYPTION = "encryption"
"""The name of the shared value that the first node stores, encrypted with the key that all of them must have."""


class SharedState:
    """The part of one node. `await open(...)` before the first request. `keys` are its default keys."""

    def __init__(self, settings: Settings, keys: Sequence[str], clock: Clock) -> None:
        self.turns = SharedTurns(settings.limits.turns_per_key, clock)
        self.digests = configuration_digests(settings, keys, encryption_key(settings) or "", node_keys(settings.node))

    async def open(self, store: Store, node: str, encryption: SecretEncryption) -> None:
        """Begin to use the store. Raises ConfigError if this node encrypts secrets with another key than the others."""
        shared = store.shared
        if await shared.values.get(ENCRYPTION) is None and (secrets := await store.sessions.any_secrets()) is not None:
            # Those of a single daemon whose store this was.
            encryption.check(secrets)
        encryption.check((await shared.values.get_or_add(ENCRYPTION, encryption.checked_value())).encode())
        await self.turns.open(shared.turn_slots, node)

    async def close(self) -> None:
        await self.turns.close()
