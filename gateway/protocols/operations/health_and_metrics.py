"""Health, readiness and metrics, for operators. The gateway's own API."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from drivers.runtime.file_threads import in_thread
from gateway import __version__
from gateway.app import Gateway
from gateway.observability.health import DRAINED
from gateway.protocols.authenticated_routes import NEEDS_KEY, authenticated_router
from gateway.protocols.route_metadata import Responses, errors, operation_id


class Health(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok", "version": __version__}]})

    status: Literal["ok"] = "ok"
    version: str


class Ready(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ready"}]})

    status: Literal["ready"] = "ready"


class NotReady(BaseModel):
    """Why the gateway cannot take work."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "not ready", "reasons": ["the gateway is shutting down"]}]}
    )

    status: Literal["not ready"] = "not ready"
    reasons: list[str]
    drained: bool = Field(False, description="The only reason is that this node of a cluster was drained on purpose.")


NOT_READY: Responses = {
    503: {
        "model": NotReady,
        "description": "It cannot take work now.",
        "headers": {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}},
    }
}
METRICS: Responses = {
    200: {
        "content": {
            "text/plain": {
                "schema": {"type": "string"},
                "example": "# HELP portico_live_agents Agents of sessions that are warm or at work.\n"
                "# TYPE portico_live_agents gauge\nportico_live_agents 1.0\n",
            }
        }
    }
}


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of a gateway."""
    public = APIRouter(tags=["operations"], responses=errors(403, "default"), generate_unique_id_function=operation_id)
    authenticated = authenticated_router(gateway, "operations")
    metrics_routes, needs = (public, []) if gateway.settings.server.open_metrics else (authenticated, [NEEDS_KEY])

    @public.get("/healthz")
    async def health() -> Health:
        """The daemon is up."""
        return Health(version=__version__)

    @public.get("/readyz", response_model=Ready, responses=NOT_READY)
    async def ready() -> Response:
        """Whether the gateway can take work: the store accepts writes, and the daemon is neither drained nor shutting down."""
        reasons = await gateway.problems()
        if reasons:
            return JSONResponse(NotReady(reasons=reasons, drained=reasons == [DRAINED]).model_dump(), 503, {"Retry-After": "5"})
        return JSONResponse(Ready().model_dump())

    @metrics_routes.get("/metrics", dependencies=needs, response_class=Response, responses=METRICS)
    async def metrics() -> Response:
        """The metrics of the gateway, in Prometheus' text format."""
        if not gateway.metrics.exported:
            # Not in the event loop's default threads: file accesses may block all of them.
            await in_thread(lambda: gateway.metrics.registry)
        text = gateway.metrics.text(await gateway.metrics_snapshot())
        return Response(text, headers={"Content-Type": gateway.metrics.registry.content_type})

    public.routes += authenticated.routes
    return public
