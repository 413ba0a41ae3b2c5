"""Which addresses only this machine can reach, and the check that authentication is off only there."""

from __future__ import annotations

import ipaddress

from gateway.errors import ConfigError


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
