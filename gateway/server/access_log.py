"""Around the whole app: every request, WebSockets too, gets an id, is counted when it is over, and has one line in the log."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.observability.logs import request_id, session_id
from gateway.observability.metrics import Metrics

log = logging.getLogger(__name__)

SANE = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
"""What is taken as the id of a request; with anything else the gateway makes its own."""
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
POLLED = frozenset(("/healthz", "/readyz", "/metrics"))
"""Asked for every few seconds by machines: logged at `debug` only."""


class AccessLog:
    """ASGI middleware, the outermost: it sees every answer, those to failures included."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        answer = _Answer(receive, send, given if SANE.fullmatch(given) else f"req_{secrets.token_hex(8)}", self._metrics)
        in_request, in_session = request_id.set(answer.request_id), session_id.set(None)
        try:
            await self._app(scope, answer.receive, answer.send)
        except Exception:
            # The app's handler has logged it and answered, but not for WebSockets; what was cut off is the server's to end.
            if not answer.whole or scope["type"] == "websocket":
                answer.status = answer.status or 500
                log.exception("%s failed in the middle of its answer", _named(scope))
                raise
        finally:
            answer.over()
            self._note(scope, answer)
            request_id.reset(in_request)
            session_id.reset(in_session)

    def _note(self, scope: Scope, answer: _Answer) -> None:
        method = _method(scope) if _method(scope) in METHODS else "other"
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.requests.labels(method, route, str(answer.status)).inc()
        took = round((time.monotonic() - answer.began) * 1000, 1)
        fields = {"method": method, "route": route, "status": answer.status, "ms": took, "whole": answer.whole}
        level = logging.DEBUG if route in POLLED else logging.INFO
        left = "" if answer.whole else ", cut off"
        log.log(level, "%s: %s in %s ms%s", _named(scope), answer.status, took, left, extra={"fields": fields})


class _Answer:
    """One answer on its way out. That to a WebSocket is a 101, and whole when it is over; or a refusal like any other."""

    def __init__(self, receive: Receive, send: Send, request: str, metrics: Metrics) -> None:
        self.request_id, self.status, self.whole = request, 0, False
        self.began = time.monotonic()
        self._receive, self._send, self._metrics, self._streams = receive, send, metrics, False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            # uvicorn 0.54.0 gives one code to a goodbye without a code and to a connection that was lost.
            self.whole = True
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"].removeprefix("websocket.")
        if kind in ("http.response.start", "accept"):
            self.status = message.get("status", 101)
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.request_id
            self._streams = headers.get("content-type", "").startswith("text/event-stream")
            if self._streams:
                self._metrics.open_streams.inc()
        elif kind == "close":
            # Closed before it was accepted, the server refuses it with this.
            self.status, self.whole = self.status or 403, True
        elif kind == "http.response.body" and not message.get("more_body"):
            self.whole = True
        await self._send(message)

    def over(self) -> None:
        if self._streams:
            self._metrics.open_streams.dec()


def _named(scope: Scope) -> str:
    # As it came, percent signs and all, so that nothing in it breaks a line; never the query, which may hold a secret.
    path = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")
    return f"{_method(scope)} {path[:200]}"


def _method(scope: Scope) -> str:
    # A WebSocket begins as a GET, and its scope does not say so.
    return str(scope.get("method", "GET"))
