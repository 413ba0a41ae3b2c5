"""Which addresses only this machine can reach, and the checks of keys for those that others can reach too."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from gateway.errors import InvalidSettings

HOSTS = 64
"""Addresses whose answers are kept."""
MIN_KEY = 16
"""Characters of a key on an address that other machines can reach: they can try keys."""


PROXY_HEADERS = frozenset(
    {
        b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"client-ip", b"x-cluster-client-ip",
        b"x-real-port", b"x-original-host", b"x-original-url", b"x-original-uri", b"x-original-forwarded-for",
        b"x-forwarded", b"x-proxyuser-ip", b"x-remote-ip", b"x-remote-addr", b"x-request-start", b"x-scheme",
        b"x-url-scheme", b"front-end-https", b"forwarded-for", b"fastly-client-ip", b"fly-client-ip", b"cdn-loop",
        b"proxy-connection", b"x-arr-log-id", b"x-arr-ssl", b"x-azure-clientip", b"x-azure-socketip",
        b"x-appengine-user-ip", b"x-cloud-trace-context", b"x-amzn-trace-id", b"x-nf-client-connection-ip",
        b"x-vercel-id", b"do-connecting-ip", b"wl-proxy-client-ip", b"proxy-client-ip", b"x-envoy-external-address",
        b"x-envoy-internal",
    }
)  # fmt: skip
"""Headers by which proxies, tunnels and delivery networks mark the requests that they pass on, besides PROXY_PREFIXES."""
PROXY_PREFIXES = (b"x-forwarded-", b"cf-", b"tailscale-", b"ngrok-", b"x-ms-proxy", b"x-amz-cf-", b"x-envoy-", b"x-devtunnels-")
"""The beginnings of further such headers."""


# Cached: each request asks several times about the same few addresses, which takes 20 us in all.
@lru_cache(HOSTS)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_direct_and_local(scope: Mapping[str, Any], bind: str) -> bool:
    """Whether a request (its ASGI scope) comes from a program of this machine, and by no proxy that can be noticed.

    All of these must hold: the server listens on a loopback address (`bind`); the client's address and the name in `Host` are
    loopback; no header is one that proxies add; it is not from a web page of another host.
    """
    client = scope.get("client")
    if not is_loopback(bind) or client is None or not _is_loopback_peer(client[0]):
        return False
    hosts = 0
    for name, value in scope["headers"]:
        if name == b"host":
            hosts += 1
            if not _is_loopback_url(f"//{value.decode('latin-1')}"):
                return False
        elif (
            name in PROXY_HEADERS
            or name.startswith(PROXY_PREFIXES)
            or (name == b"origin" and value.startswith(b"http") and not _is_loopback_url(value.decode("latin-1")))
        ):
            return False
    return hosts == 1


def _is_loopback_peer(address: str) -> bool:
    return is_loopback(address.removeprefix("::ffff:"))


def _is_loopback_url(url: str) -> bool:
    try:
        return is_loopback((urlsplit(url).hostname or "").removesuffix("."))
    except ValueError:
        return False


def check_no_auth(host: str, no_auth: bool) -> None:
    """Raise InvalidSettings for a gateway without authentication that other machines can reach."""
    if no_auth and not is_loopback(host):
        raise InvalidSettings(
            f"--no-auth with the host {host} gives everybody on the network a shell on this machine: "
            "listen on 127.0.0.1, or leave --no-auth out"
        )


def check_key_lengths(host: str, keys: Iterable[str]) -> None:
    """Raise InvalidSettings for a key of less than MIN_KEY characters of a gateway that other machines can reach."""
    if not is_loopback(host) and any(len(key) < MIN_KEY for key in keys):
        raise InvalidSettings(
            f"with the host {host} other machines can try keys, and a key (PORTICO_API_KEY or auth.keys) has less than "
            f"{MIN_KEY} characters: set a longer one, or listen on 127.0.0.1"
        )
