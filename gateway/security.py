"""Who may call: bearer keys, where they come from, and how they are compared."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
from collections.abc import Iterable, Mapping

from gateway.config import Settings
from gateway.errors import ConfigError, Unauthorized
from gateway.vault import read_or_create

WHERE = "send 'Authorization: Bearer KEY'; `portico key` prints the key"


def api_keys(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The keys in force: the config's and PORTICO_API_KEY's, or else one generated into the data directory."""
    given = [*settings.auth.keys]
    if from_env := environ.get("PORTICO_API_KEY", "").strip():
        given.insert(0, from_env)
    return tuple(given) or (read_or_create(settings.data_dir / "api-key", lambda: "pk-" + secrets.token_urlsafe(32)),)


class Authenticator:
    """Checks keys in constant time. With no keys at all, authentication is off."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    @property
    def is_off(self) -> bool:
        return not self._keys

    def check(self, authorization: str | None, token: str | None = None) -> None:
        """Accept a bearer header or a token from the body. Raises Unauthorized that says what to send."""
        if self.is_off:
            return
        scheme, _, key = (authorization or "").partition(" ")
        offered = [key.strip()] if scheme.lower() == "bearer" else []
        if token is not None:
            offered.append(token)
        if not offered:
            raise Unauthorized(f"no API key: {WHERE}")
        # Every key is compared with every offer, so that the time tells nothing.
        if not any([hmac.compare_digest(o.encode(), known) for o in offered for known in self._keys]):
            raise Unauthorized(f"this API key is not known here: {WHERE}")


def is_loopback(host: str) -> bool:
    """Whether a bind address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open_door(host: str, no_auth: bool) -> None:
    """Raises ConfigError for a gateway without keys that others could reach."""
    if no_auth and not is_loopback(host):
        raise ConfigError(
            f"--no-auth with the host {host} would give everybody on the network a shell here: "
            "listen on 127.0.0.1, or leave --no-auth out"
        )
