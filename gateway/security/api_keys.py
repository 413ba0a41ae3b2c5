"""API keys: the default keys, which are those of the configuration or one that is generated. Named keys are in named_keys.py."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from gateway.config import Settings
from gateway.errors import InvalidSettings
from gateway.security.secret_files import read_or_create


def default_api_keys(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return PORTICO_API_KEY and the keys of the configuration. Without either, return the key in the data directory.

    That key is generated at the first call. Raises InvalidSettings without either on a node of a cluster: each node would have
    another one.
    """
    given = [*settings.auth.keys]
    if from_env := environ.get("PORTICO_API_KEY", "").strip():
        given.insert(0, from_env)
    if not given and settings.node.address:
        raise InvalidSettings(
            "a node needs a default key that all nodes have: set PORTICO_API_KEY, or auth.keys in the configuration, to the same "
            "on each of them; make one with `openssl rand -hex 32`"
        )
    return tuple(given) or (read_or_create(settings.data_dir / "api-key", random_key),)


def random_key() -> str:
    """Return a new key."""
    return "pk-" + secrets.token_urlsafe(32)
