"""Routes that are built by the first request that needs them."""

from __future__ import annotations

import httpx
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route

from gateway.server.deferred_routes import DeferredRoutes, expand_routes


async def text(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


def app_with(builds: list[Exception | None]) -> FastAPI:
    """An app with a route of its own, and a deferred one. Each attempt to build that takes the next of `builds`."""
    app = FastAPI()
    app.router.routes.append(Route("/first", text))

    def build() -> list[BaseRoute]:
        error = builds.pop(0)
        if error is not None:
            raise error
        return [Route("/second", text), Route("/first", text, methods=["POST"])]

    app.router.routes.append(DeferredRoutes(app, build))
    return app


async def statuses(app: FastAPI, *requests: tuple[str, str]) -> list[int]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return [(await client.request(method, path)).status_code for method, path in requests]


async def test_they_are_built_once_and_by_a_request_that_needs_them() -> None:
    builds: list[Exception | None] = [None]
    app = app_with(builds)
    assert await statuses(app, ("GET", "/first")) == [200] and builds == [None]
    requests = [("POST", "/first"), ("GET", "/second"), ("DELETE", "/second"), ("GET", "/third"), ("GET", "/first")]
    assert await statuses(app, *requests) == [200, 200, 405, 404, 200]
    assert builds == []


async def test_they_are_built_by_the_next_request_after_an_error() -> None:
    app = app_with([OSError("too many open files"), None])
    assert await statuses(app, ("GET", "/second"), ("GET", "/second")) == [500, 200]


async def test_all_are_built_for_a_list_of_them() -> None:
    app = app_with([None])
    expand_routes(app)
    assert [route.path for route in app.routes if isinstance(route, Route)][-2:] == ["/second", "/first"]
