"""Health, readiness and metrics, for operators. The gateway's own API."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from drivers.runtime.file_threads import in_thread
from gateway import __version__
from gateway.gateway import Gateway
from gateway.observability.health import DRAINED
from gateway.protocols.authenticated_routes import authenticated_route
from gateway.protocols.route_metadata import openapi_extra

RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}
READY = openapi_extra(
    responses={200: {"status": "ready"}, 503: {"status": "not ready", "reasons": ["the gateway is shutting down"]}}
)
METRICS_EXAMPLE = """# HELP portico_live_agents Agents of sessions that are warm or at work.
# TYPE portico_live_agents gauge
portico_live_agents 1.0
"""


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    version: str


class Ready(BaseModel):
    status: Literal["ready"] = "ready"


class NotReady(BaseModel):
    """Why the gateway cannot take work."""

    status: Literal["not ready"] = "not ready"
    reasons: list[str]
    drained: bool = Field(False, description="The only reason is that this node of a cluster was drained on purpose.")


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of a gateway."""
    public = APIRouter(tags=["operations"])
    authenticated = APIRouter(tags=["operations"], route_class=authenticated_route(gateway))
    metrics_routes = public if gateway.settings.server.open_metrics else authenticated

    @public.get("/healthz", openapi_extra=openapi_extra(responses={200: {"status": "ok", "version": __version__}}))
    async def health() -> Health:
        """The daemon is up."""
        return Health(version=__version__)

    @public.get(
        "/readyz",
        response_model=Ready,
        responses={503: {"model": NotReady, "description": "It cannot take work now.", "headers": RETRY}},
        openapi_extra=READY,
    )
    async def ready() -> Response:
        """Whether the gateway can take work: the store accepts writes, and the daemon is neither drained nor shutting down."""
        reasons = await gateway.problems()
        if reasons:
            return JSONResponse(NotReady(reasons=reasons, drained=reasons == [DRAINED]).model_dump(), 503, {"Retry-After": "5"})
        return JSONResponse(Ready().model_dump())

    @metrics_routes.get("/metrics", response_class=Response, openapi_extra=openapi_extra(text=METRICS_EXAMPLE))
    async def metrics() -> Response:
        """The metrics of the gateway, in Prometheus' text format."""
        if not gateway.metrics.exported:
            # Not in the event loop's default threads: file accesses may block all of them.
            await in_thread(lambda: gateway.metrics.registry)
        text = gateway.metrics.text(await gateway.metrics_snapshot())
        return Response(text, headers={"Content-Type": gateway.metrics.registry.content_type})

    public.routes += authenticated.routes
    return public
