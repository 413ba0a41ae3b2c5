"""The guard: the one ASGI middleware that each request passes, before its protocol and its key are known.

It gives the request an id, a line in the access log and its place in the metrics, refuses other hosts and origins, limits the
size and the time of a body, and ends WebSockets whose client does not read. Connections and streams of a key are counted where
the key is known (`gateway/security/quotas.py`).
"""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drivers.runtime.clock import Clock
from gateway.http.decoded_body import decoded
from gateway.http.request_body import RequestBody
from gateway.http.request_head import RequestHead, request_arrived
from gateway.observability.logs import request_id, session_id
from gateway.observability.metrics import Metrics
from gateway.security.authentication import FORWARDED_BY, FORWARDED_TO
from gateway.security.redaction import redactor_of_session
from gateway.server.host_origin import HostOrigin

log = logging.getLogger("gateway.access_log")

VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
"""A client's `X-Request-Id` that is accepted. The gateway generates an id instead of any other."""
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
POLLED = frozenset(("/healthz", "/readyz", "/metrics"))
"""Requested every few seconds by monitoring: logged at `debug` only."""
MAX_BODY = "server.max_body"
"""The name of the limit of bodies, for errors."""
UNREAD_SECONDS = 60.0
"""Seconds that a WebSocket client may read nothing while a message waits for it."""


class Guard:
    """The middleware. It refuses requests with 403 (host, origin), and lets the app refuse their bodies with 408 and 413."""

    def __init__(self, app: ASGIApp, allowed: HostOrigin, max_body: int, metrics: Metrics, clock: Clock) -> None:
        self._app, self._allowed, self._max_body, self._metrics, self._clock = app, allowed, max_body, metrics, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        with request_arrived() as connection:
            response = _Response(
                given if VALID_REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(8)}", receive, send, self._metrics
            )
            in_request, in_session = request_id.set(response.request_id), session_id.set(None)
            redactor = redactor_of_session.set(None)
            try:
                await self._handle(scope, response, connection)
            except Exception:
                # The app's handler has logged it and responded, except for WebSockets. uvicorn closes an incomplete response.
                if not response.whole or scope["type"] == "websocket":
                    response.status = response.status or 500
                    log.exception("%s failed in the middle of its response", _request_line(scope))
                    raise
            finally:
                response.close()
                self._log(scope, response)
                request_id.reset(in_request)
                session_id.reset(in_session)
                redactor_of_session.reset(redactor)

    async def _handle(self, scope: Scope, response: _Response, connection: RequestHead | None) -> None:
        refusal = self._allowed.refusal(Headers(scope=scope))
        if scope["type"] == "websocket":
            if refusal is not None:
                return await JSONResponse({"error": refusal}, 403)(scope, response.receive, response.send)
            return await self._app(scope, response.receive, self._read_in_time(response, connection))
        body = RequestBody(scope, response.receive, response.send, self._max_body, MAX_BODY, self._clock)
        if refusal is not None:
            return await JSONResponse({"error": refusal}, 403)(scope, body.receive, body.send)
        await self._app(scope, decoded(scope, body.receive, self._max_body, MAX_BODY), body.send)
        if connection is not None and response.status and not response.whole:
            await connection.cut_off(response.receive)

    def _read_in_time(self, response: _Response, connection: RequestHead | None) -> Send:
        if connection is None:
            return response.send

        async def send(message: Message) -> None:
            # uvicorn (0.54.0) closes a WebSocket without a pong, but only once its client has read everything.
            timer = self._clock.call_later(UNREAD_SECONDS, connection.abort)
            try:
                await response.send(message)
            finally:
                timer.cancel()

        return send

    def _log(self, scope: Scope, response: _Response) -> None:
        method = _method(scope) if _method(scope) in METHODS else "other"
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.requests.labels(method, route, str(response.status)).inc()
        took = round((time.monotonic() - response.began) * 1000, 1)
        fields = {"method": method, "route": route, "status": response.status, "ms": took, "whole": response.whole}
        level = logging.DEBUG if route in POLLED else logging.INFO
        left = "" if response.whole else ", cut off"
        if FORWARDED_TO in scope:
            fields["forwarded_to"] = scope[FORWARDED_TO]
            left += f", by the node {scope[FORWARDED_TO]}"
        elif FORWARDED_BY in scope:
            fields["forwarded_by"] = scope[FORWARDED_BY]
            left += f", for the node {scope[FORWARDED_BY]}"
        log.log(level, "%s: %s in %s ms%s", _request_line(scope), response.status, took, left, extra={"fields": fields})


class _Response:
    """Observes one response. An accepted WebSocket has the status 101 and is complete when it is closed."""

    def __init__(self, request: str, receive: Receive, send: Send, metrics: Metrics) -> None:
        self.request_id, self.status, self.whole = request, 0, False
        self.began = time.monotonic()
        self._receive, self._send, self._metrics, self._streams = receive, send, metrics, False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            # uvicorn 0.54.0 reports the same code for a close frame without a code and for a lost connection.
            self.whole = True
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"].removeprefix("websocket.")
        if kind in ("http.response.start", "accept"):
            self.status = message.get("status", 101)
            headers = MutableHeaders(raw=[*message.get("headers", ())])
            headers["X-Request-Id"] = self.request_id
            if kind == "http.response.start":
                # They keep pages of other origins from loading the response as a script, style or image.
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
            message = {**message, "headers": headers.raw}
            self._streams = headers.get("content-type", "").startswith("text/event-stream")
            if self._streams:
                self._metrics.open_streams.inc()
        elif kind == "close":
            # A WebSocket that is closed before it is accepted is rejected with 403.
            self.status, self.whole = self.status or 403, True
        elif kind == "http.response.body" and not message.get("more_body"):
            self.whole = True
        await self._send(message)

    def close(self) -> None:
        if self._streams:
            self._metrics.open_streams.dec()


def _request_line(scope: Scope) -> str:
    # Percent-encoded as received, so that it has no line break; without the query, which may hold a secret.
    path = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")
    return f"{_method(scope)} {path[:200]}"


def _method(scope: Scope) -> str:
    # The scope of a WebSocket has no method; its handshake is a GET.
    return str(scope.get("method", "GET"))
