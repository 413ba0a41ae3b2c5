"""Host and Origin checks: rejects requests for other hosts and from web pages of other origins, before authentication.

A browser on this machine runs the code of every page that is open. A page of another site must not reach the gateway, neither
directly nor by a name that resolves to this machine (DNS rebinding). The key does not protect if a page learns or guesses it.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Iterable

from starlette.datastructures import Headers

log = logging.getLogger(__name__)

EXPOSED = (
    "X-Request-Id", "Retry-After", "Location", "WWW-Authenticate", "Acp-Connection-Id", "Acp-Session-Id", "X-Portico-Session",
    "X-Portico-Ignored", "x-should-retry",
)  # fmt: skip
"""Response headers that a page of an allowed origin may read."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""Methods that such a page may use."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@?#\[\]]+)(:\d*)?")
_MAX_LOGGED = 100
"""How many different rejections are logged: a page can cause any number of them."""


class HostOrigin:
    """Which `Host` is this gateway's, and which `Origin` is allowed.

    `hosts` are names and addresses besides loopback ones, `*.NAME` for all names below a domain, `*` for any. `bind` is the
    address that the server listens on. If that is the address of all interfaces, any IP address is accepted, since rebinding
    needs a name. The port is not checked: it does not help an attacker, and tunnels use other ports.

    With `own_pages` the gateway serves pages itself, whose origin is allowed: a scheme with the `Host` of the request. Not if
    only `*` accepts that, which also accepts names that were rebound to this machine.
    """

    def __init__(self, bind: str, hosts: Iterable[str], origins: re.Pattern[str] | None, *, own_pages: bool = False) -> None:
        self._origins, self._own_pages = origins, own_pages
        self._hosts = frozenset({"localhost", bind.lower(), *(host.lower() for host in hosts)})
        self._parents = tuple(host[1:] for host in self._hosts if host.startswith("*."))
        self._any_address = (address := _address(bind)) is not None and address.is_unspecified
        self._logged: set[str] = set()

    def refusal(self, headers: Headers) -> str | None:
        """Return why a request with these headers is refused; None if it is not. The first refusals are logged, each once."""
        refusal = self._check_host(headers) or self._check_origin(headers)
        if refusal is not None and refusal not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(refusal)
            log.warning("rejected: %s", refusal)
        return refusal

    def _check_host(self, headers: Headers) -> str | None:
        given = headers.getlist("host")
        match = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
        if match is None:
            return "the request has no valid Host header; use an HTTP/1.1 client"
        name = match[1].strip("[]").removesuffix(".")
        if "*" in self._hosts or self._is_own(name):
            return None
        return f"this gateway is not {name[:100]!r}; use its address, or add the name to server.hosts"

    def _is_own(self, name: str) -> bool:
        return name in self._hosts or name.endswith(self._parents) or self._own_address(name)

    def _own_address(self, name: str) -> bool:
        address = _address(name)
        return address is not None and (address.is_loopback or self._any_address)

    def _check_origin(self, headers: Headers) -> str | None:
        given = headers.getlist("origin")
        if not given:
            # Images, scripts and frames are loaded without an Origin; browsers mark them by Sec-Fetch-*. Links are harmless.
            foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate"
            return "a web page of another origin may not load this" if foreign else None
        if len(given) == 1:
            if self._origins is not None and self._origins.fullmatch(given[0]):
                return None
            if self._own_pages and self._is_own_page(given[0], headers["host"].lower()):
                return None
        return f"web pages of the origin {given[0][:100]!r} are rejected; add it to server.origins to allow it"

    def _is_own_page(self, origin: str, host: str) -> bool:
        match = _HOST.fullmatch(host)
        name = match[1].strip("[]").removesuffix(".") if match else ""
        return origin in (f"http://{host}", f"https://{host}") and self._is_own(name)


def origin_pattern(origins: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern that matches the allowed origins; None if there are none. `*` is any host, or any port or none."""
    parts = [_one_origin(origin.lower()) for origin in origins]
    return re.compile("|".join(parts)) if parts else None


def _one_origin(origin: str) -> str:
    scheme, _, rest = origin.partition("://")
    if rest == "*":
        return re.escape(f"{scheme}://") + r"[^\s/]+"
    name, any_port, _ = rest.partition(":*")
    return re.escape(f"{scheme}://{name}") + (r"(:\d+)?" if any_port else "")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
