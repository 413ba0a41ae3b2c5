"""Which addresses only this machine can reach, and the checks of keys for those that others can reach too."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from gateway.errors import ConfigError

MIN_KEY = 16
"""Characters of a key on an address that other machines can reach: they can try keys."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_no_auth(host: str, no_auth: bool) -> None:
    """Raise ConfigError for a gateway without authentication that other machines can reach."""
    if no_auth and not is_loopback(host):
        raise ConfigError(
            f"--no-auth with the host {host} gives everybody on the network a shell on this machine: "
            "listen on 127.0.0.1, or leave --no-auth out"
        )


def check_key_lengths(host: str, keys: Iterable[str]) -> None:
    """Raise ConfigError for a key of less than MIN_KEY characters of a gateway that other machines can reach."""
    if not is_loopback(host) and any(len(key) < MIN_KEY for key in keys):
        raise ConfigError(
            f"with the host {host} other machines can try keys, and a key (PORTICO_API_KEY or auth.keys) has less than "
            f"{MIN_KEY} characters: set a longer one, or listen on 127.0.0.1"
        )
