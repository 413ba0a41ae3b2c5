"""Apps that serve one gateway after the other: building the routes of an app costs 36 ms, and a test run has 1,500 gateways.

An app is built over a `_Current`, which forwards to the gateway that is served at the moment. Two gateways at the same time
have two apps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from gateway.app import Gateway
from gateway.cluster.forwarding.node_client import NodeClient
from gateway.cluster.forwarding.node_requests import NodeRequests
from gateway.server.app import create_app


class _Forward:
    """Forwards to one attribute of the current gateway."""

    def __init__(self, current: _Current, name: str) -> None:
        self._current, self._name = current, name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._current.gateway, self._name), name)


class _Current:
    """Forwards to the gateway that is served now, and so do `auth`, `metrics` and `clock`, which routes and middleware keep."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.auth, self.metrics = _Forward(self, "auth"), _Forward(self, "metrics")
        self.clock = _Forward(self, "clock")
        self.close_last: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gateway, name)


_idle: dict[str, list[tuple[_Current, ASGIApp]]] = defaultdict(list)


def _renew(app: Any, gateway: Gateway) -> None:
    """Give the middleware of a node what it has of one gateway only: connections to other nodes, and a metric."""
    while not isinstance(app, NodeRequests):
        app = app.__dict__.get("_app") or app.app
    app._client, app._count = NodeClient(), gateway.metrics.forwarded_requests()
    app._open.clear()
    gateway.on_node_lost.append(app.end_requests_to)


@contextmanager
def app_of(gateway: Gateway) -> Iterator[ASGIApp]:
    """Give an app for the gateway; it is free for another gateway afterwards."""
    host = urlsplit(gateway.settings.node.address).hostname if gateway.is_node else None
    kind = repr((gateway.settings.server.model_dump(exclude={"data_dir", "port"}), gateway.is_node, host))
    if _idle[kind]:
        current, app = _idle[kind].pop()
        current.gateway = gateway
        if gateway.is_node:
            _renew(app, gateway)
    else:
        current = _Current(gateway)
        app = create_app(cast(Gateway, current))
    gateway.close_last += current.close_last
    yield app
    # Not reached where a test fails while its gateway is served: that app is not used again.
    _idle[kind].append((current, app))
