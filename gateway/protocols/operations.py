"""For those who run the gateway: is it up, can it take work, and its figures. The gateway's own."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from gateway import __version__
from gateway.gateway import Gateway
from gateway.protocols.authentication import authenticated_route
from gateway.protocols.openapi import openapi_extra

RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}
READY = openapi_extra(
    answers={200: {"status": "ready"}, 503: {"status": "not ready", "reasons": ["the gateway is shutting down"]}}
)
FIGURES = """# HELP portico_live_agents Agents of sessions that are warm or at work.
# TYPE portico_live_agents gauge
portico_live_agents 1.0
"""


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    version: str


class Ready(BaseModel):
    status: Literal["ready"] = "ready"


class NotReady(BaseModel):
    """What keeps the gateway from taking work."""

    status: Literal["not ready"] = "not ready"
    reasons: list[str]


def router(gateway: Gateway) -> APIRouter:
    """The endpoints over a gateway."""
    everybody = APIRouter()
    figures = everybody if gateway.settings.server.open_metrics else APIRouter(route_class=authenticated_route(gateway.auth))

    @everybody.get("/healthz", openapi_extra=openapi_extra(answers={200: {"status": "ok", "version": __version__}}))
    async def health() -> Health:
        """The daemon is up."""
        return Health(version=__version__)

    @everybody.get(
        "/readyz",
        response_model=Ready,
        responses={503: {"model": NotReady, "description": "It cannot take work now.", "headers": RETRY}},
        openapi_extra=READY,
    )
    async def ready() -> Response:
        """Whether it can take work: the store takes writes, and the daemon is not going down."""
        reasons = await gateway.problems()
        if reasons:
            return JSONResponse(NotReady(reasons=reasons).model_dump(), 503, {"Retry-After": "5"})
        return JSONResponse(Ready().model_dump())

    @figures.get("/metrics", response_class=Response, openapi_extra=openapi_extra(text=FIGURES))
    async def metrics() -> Response:
        """The gateway's figures, in Prometheus' text format."""
        return Response(gateway.metrics.text(await gateway.metrics_snapshot()), headers={"Content-Type": CONTENT_TYPE_LATEST})

    routes = APIRouter(tags=["operations"])
    routes.include_router(everybody)
    if figures is not everybody:
        routes.include_router(figures)
    return routes
