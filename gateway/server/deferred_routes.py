"""Routes that are built when they are first needed, so that the start does not wait for their modules and models."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastapi import FastAPI
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send


class DeferredRoutes(BaseRoute):
    """Stands in the list of an app's routes for those that `build` returns. It must be the last of them.

    A request that no route before it matches wholly has them built: they follow in the list, and the search goes on with them.
    """

    def __init__(self, app: FastAPI, build: Callable[[], Iterable[BaseRoute]]) -> None:
        self._app, self._build = app, build
        self._built = False

    def expand(self) -> None:
        """Build the routes. Idempotent; after an error the next request tries again."""
        if not self._built:
            self._app.router.routes.extend(self._build())
            self._built = True

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http":
            self.expand()
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it matches nothing")


def expand_routes(app: FastAPI) -> None:
    """Build all routes of an app that are not built yet."""
    for route in list(app.routes):
        if isinstance(route, DeferredRoutes):
            route.expand()
