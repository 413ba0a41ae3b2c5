"""What of the configuration should be the same on all nodes of a cluster, as digests that they report to each other."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from pydantic_core import to_json

from gateway.config import Settings

_OF_POLICY = {"policy", "allow_bypass", "locked", "sandbox", "mcp", "mcp_servers"}
"""Settings of an agent that decide what it may do."""
_LIMITS = {"turns_per_key", "sessions_per_key"}
"""Limits that hold for all nodes together. The others are of one machine."""
NODE_KEYS = "node keys"
"""The name of the digests of node keys, one for each key."""


def configuration_digests(
    settings: Settings, keys: Sequence[str], encryption_key: str, node_keys: Sequence[str] = ()
) -> dict[str, str]:
    """Return the digests of the configuration of a node, by what people call it. `keys` are its default keys."""
    # Without defaults, and without agents that have defaults only: another node need not have these.
    chosen = sorted(settings.agents.items())
    agents = {name: agent.model_dump(mode="json", include=_OF_POLICY, exclude_defaults=True) for name, agent in chosen}
    # A plain hash of a key that a person has chosen could be found out by guessing.
    secret = encryption_key.encode()
    known = hmac.digest(secret, to_json(sorted(keys)), "sha256").hex()
    # Of each: all nodes need not have the same while keys are replaced.
    of_nodes = " ".join(hmac.digest(secret, key.encode(), "sha256").hex() for key in node_keys)
    limits = settings.limits.model_dump(mode="json", include=_LIMITS)
    agents = {name: policy for name, policy in agents.items() if policy}
    found = {"policy": _digest(agents), "default keys": known, "limits of a key": _digest(limits)}
    return {**found, NODE_KEYS: of_nodes} if of_nodes else found


def differences(own: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return what differs between the digests of two nodes. What only one of them reports is not compared."""
    return [name for name, digest in own.items() if _differ(name, digest, other.get(name, digest))]


def _differ(name: str, own: str, other: str) -> bool:
    if name != NODE_KEYS:
        return own != other
    # The first key signs, and each of the receiver's is accepted.
    here, there = own.split(), other.split()
    return here[0] not in there or there[0] not in here


def _digest(data: object) -> str:
    return hashlib.sha256(to_json(data)).hexdigest()
