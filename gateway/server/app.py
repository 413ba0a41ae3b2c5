"""Builds the ASGI app: the routes of all protocols over one gateway, the middleware, and error responses as JSON."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from gateway import __version__
from gateway.app import Gateway
from gateway.config import ServerSettings
from gateway.console import routes as console
from gateway.errors import ConfigError, GatewayError
from gateway.http.doubt_limit import DoubtLimit
from gateway.installation import command_for_extra
from gateway.protocols import execute, sign_ins
from gateway.protocols.aap import versions
from gateway.protocols.acp import routes as acp
from gateway.protocols.authenticated_routes import authenticated_router
from gateway.protocols.authorization import authorization
from gateway.protocols.model_apis import anthropic_messages, chat_completions, models, responses
from gateway.protocols.model_apis.vendor_requests import VendorRequests, base_url_hint
from gateway.protocols.operations import (
    audit,
    diagnosis,
    driver_list,
    health_and_metrics,
    keys,
    live_agents,
    nodes,
    policy,
    session_frames,
)
from gateway.security.redaction import current_redactor
from gateway.server.guard import Guard
from gateway.server.host_origin import EXPOSED, METHODS, HostOrigin, origin_pattern
from gateway.server.openapi import LICENSE, SERVERS, SUMMARY, TAGS, openapi_document

log = logging.getLogger(__name__)

PROTOCOLS = (
    execute, chat_completions, responses, anthropic_messages, driver_list, models, acp, health_and_metrics,
    live_agents, keys, nodes, audit, policy, diagnosis, session_frames, sign_ins,
)  # fmt: skip
"""What has routes of its own, beside the versions of AAP and the console."""
ALL_ENDPOINTS = "/openapi.json lists every endpoint"


def create_app(gateway: Gateway) -> ASGIApp:
    """Return the app with the guard around it. The app's lifespan opens and closes the gateway."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.open()
        try:
            yield
        finally:
            await gateway.close()

    app = FastAPI(
        title="Portico",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        summary=SUMMARY,
        license_info=LICENSE,
        servers=SERVERS,
        openapi_tags=TAGS,
        # The metrics and the access log are the gateway's own.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    versions.include(app, gateway)
    # Not by `include_router`, which builds each route a second time for the first request.
    for protocol in PROTOCOLS:
        app.router.routes += protocol.router(gateway).routes
    app.router.routes += _openapi_routes(app, gateway).routes
    if gateway.settings.server.console:
        app.router.routes += console.router().routes
    _add_error_handlers(app, gateway)
    return _guarded(app, gateway, gateway.settings.server)


def _openapi_routes(app: FastAPI, gateway: Gateway) -> APIRouter:
    document = cache(lambda: openapi_document(app))
    router = authenticated_router(gateway, "operations")

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        return JSONResponse(document())

    return router


def _guarded(app: ASGIApp, gateway: Gateway, server: ServerSettings) -> ASGIApp:
    """Return the app behind the guard, CORS, what nodes forward, and the limit of doubt, in this order."""
    app = DoubtLimit(app, lambda: gateway.unanswered)
    origins = origin_pattern(server.origins)
    hosts = server.hosts
    if gateway.is_node:
        hosts = (*hosts, urlsplit(gateway.settings.node.address).hostname or "localhost")
        try:
            # It imports aiohttp, which only an extra installs: 0.1 s.
            from gateway.cluster.forwarding.node_requests import NodeRequests
        except ImportError as error:
            raise ConfigError(
                f"a node needs aiohttp, which the extra `nodes` installs ({error}). Run: {command_for_extra('nodes')}"
            ) from None
        app = NodeRequests(app, gateway)
    if origins is not None:
        app = CORSMiddleware(
            app,
            allow_origin_regex=origins.pattern,
            allow_methods=METHODS,
            allow_headers=["*"],
            expose_headers=EXPOSED,
            allow_private_network=True,
        )
    allowed = HostOrigin(server.host, hosts, origins, own_pages=server.console)
    # The errors of the guard have the shape that a vendor's client reads, too.
    return VendorRequests(Guard(app, allowed, server.max_body, gateway.metrics, gateway.clock))


def _add_error_handlers(app: FastAPI, gateway: Gateway) -> None:
    def error_response(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": current_redactor(gateway.redactor).clean(text)}, status, headers)

    @app.exception_handler(GatewayError)
    async def gateway_error(_: Request, error: GatewayError) -> JSONResponse:
        return error_response(error.status, str(error), error.headers)

    @app.exception_handler(RequestValidationError)
    async def validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(400, "; ".join(_problem(item) for item in error.errors()))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        text = str(error.detail)
        if error.status_code in (404, 405):
            text = await _no_route(request, text.lower())
        return error_response(error.status_code, text, dict(error.headers or {}))

    async def _no_route(request: Request, problem: str) -> str:
        base = base_url_hint(request.scope, request.headers.get("host", ""))
        try:
            await gateway.authenticated(request.scope, authorization(request.headers))
        except GatewayError:
            # Not the path: redaction would show whether it contains a secret.
            return f"{problem} here; {base or versions.bases_hint(app, request.url.path) or ALL_ENDPOINTS}"
        where = base or versions.base_url_hint(app, request.method, request.url.path) or ALL_ENDPOINTS
        return f"{request.method} {request.url.path}: {problem} here; {where}"

    @app.exception_handler(Exception)
    async def unexpected_error(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(500, "the gateway failed on this request; its log has the reason")


def _problem(item: Any) -> str:
    # The path and the reason, never the input: it may hold a secret.
    if item["type"] == "json_invalid":
        return f"the body is not JSON: {item.get('ctx', {}).get('error', 'syntax error')}"
    where = item["loc"][1:] if item["loc"] and item["loc"][0] in ("body", "query", "path", "header") else item["loc"]
    path = ".".join(str(part) for part in where)
    if not path and item["type"] != "missing":
        return "the body must be a JSON object, sent with Content-Type: application/json"
    if item["type"] == "union_tag_invalid":
        return f"{path}: {item['ctx']['discriminator'].strip(chr(39))} must be one of {item['ctx']['expected_tags']}"
    return f"{path or 'the body'}: {str(item['msg'])[:1].lower()}{str(item['msg'])[1:]}"
