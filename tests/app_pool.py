"""Apps that serve one gateway after the other: building the routes of an app costs 36 ms, and a test run has 1,500 gateways.

An app is built over a `_Current`, which forwards to the gateway that is served at the moment. Two gateways at the same time
have two apps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from starlette.types import ASGIApp

from gateway.gateway import Gateway
from gateway.server.app import create_app


class _Forward:
    """Forwards to one attribute of the current gateway."""

    def __init__(self, current: _Current, name: str) -> None:
        self._current, self._name = current, name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._current.gateway, self._name), name)


class _Current:
    """Forwards to the gateway that is served now. `auth` and `metrics` are forwarded too, since routes keep them."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.auth, self.metrics = _Forward(self, "auth"), _Forward(self, "metrics")
        self.close_last: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gateway, name)


_idle: dict[str, list[tuple[_Current, ASGIApp]]] = defaultdict(list)


@contextmanager
def app_of(gateway: Gateway) -> Iterator[ASGIApp]:
    """Give an app for the gateway; it is free for another gateway afterwards."""
    if gateway.is_node:
        # Its app has a client with connections to other nodes.
        yield create_app(gateway)
        return
    kind = repr(gateway.settings.server.model_dump(exclude={"data_dir", "port"}))
    if _idle[kind]:
        current, app = _idle[kind].pop()
        current.gateway = gateway
    else:
        current = _Current(gateway)
        app = create_app(cast(Gateway, current))
    gateway.close_last += current.close_last
    yield app
    # Not reached where a test fails while its gateway is served: that app is not used again.
    _idle[kind].append((current, app))
