"""Who may come in at all, before keys: the `Host` that is asked for, and the web page (`Origin`) that asks.

A browser runs every page's code on this machine. A page of another site must not reach the gateway, whether directly or by
a name of its own that it lets point here (DNS rebinding); the key does not help where a page finds out or guesses one.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

EXPOSED = ("X-Request-Id", "Retry-After", "Location", "WWW-Authenticate", "Acp-Connection-Id", "Acp-Session-Id")
"""The headers of answers that a page of an allowed origin may read."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""What such a page may do."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@?#\[\]]+)(:\d*)?")
_TOLD = 100
"""How many different refusals are logged: a page can make up any number."""


class HostOriginCheck:
    """ASGI middleware: 403 for a `Host` that is not this gateway's and for pages of origins that are not allowed.

    `hosts` are names and addresses besides loopback ones, `*.NAME` for all below a name, `*` for any. `bind` is the address that
    is listened on; where it is that of all interfaces, any address is this gateway's, since rebinding needs a name. The port
    does not count: a page cannot choose where its own name's port leads, and a tunnel has another one.
    """

    def __init__(self, app: ASGIApp, bind: str, hosts: Iterable[str], origins: re.Pattern[str] | None) -> None:
        self._app, self._origins = app, origins
        self._hosts = frozenset({"localhost", bind.lower(), *(host.lower() for host in hosts)})
        self._parents = tuple(host[1:] for host in self._hosts if host.startswith("*."))
        self._any_address = (address := _address(bind)) is not None and address.is_unspecified
        self._told: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        refusal = self._wrong_host(headers) or self._wrong_page(headers)
        if refusal is None:
            return await self._app(scope, receive, _hardened(send))
        if refusal not in self._told and len(self._told) < _TOLD:
            self._told.add(refusal)
            log.warning("refused: %s", refusal)
        await JSONResponse({"error": refusal}, 403)(scope, receive, _hardened(send))

    def _wrong_host(self, headers: Headers) -> str | None:
        given = headers.getlist("host")
        match = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
        if match is None:
            return "the request has no Host header, or not one that can be read; use an HTTP/1.1 client"
        name = match[1].strip("[]").removesuffix(".")
        if name in self._hosts or "*" in self._hosts or name.endswith(self._parents) or self._own_address(name):
            return None
        return f"this gateway is not {name[:100]!r}; use its address, or name it in server.hosts if it is meant to be known so"

    def _own_address(self, name: str) -> bool:
        address = _address(name)
        return address is not None and (address.is_loopback or self._any_address)

    def _wrong_page(self, headers: Headers) -> str | None:
        given = headers.getlist("origin")
        if not given:
            # What a page loads without asking (images, scripts, frames) has no Origin; browsers tell it so. Links are harmless.
            foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate"
            return "a web page of another origin may not load this" if foreign else None
        if len(given) == 1 and self._origins is not None and self._origins.fullmatch(given[0]):
            return None
        return f"web pages of the origin {given[0][:100]!r} are refused; name it in server.origins if it is a UI of yours"


def origin_pattern(origins: Iterable[str]) -> re.Pattern[str] | None:
    """What the allowed origins look like; None if there are none. `*` as a port is any port or none, as a host any host."""
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


def _hardened(send: Send) -> Send:
    """Answers that no page can take in as something else than data of another origin."""

    async def hardened(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            extra = [(b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin")]
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return hardened
