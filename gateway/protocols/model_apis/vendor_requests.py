"""What the vendors' clients send and read: the key in `x-api-key`, the id of a request in `request-id`, errors of their shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json, to_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.observability.logs import request_id
from gateway.protocols.route_metadata import errors

Vendor = Literal["openai", "anthropic"]

_NOT_SERVED = ("/v1/completions", "/v1/embeddings", "/v1/images/", "/v1/audio/", "/v1/moderations", "/v1/files")
"""Paths of OpenAI's API that its clients may try, whose errors they can read too."""
_OPENAI = ("/v1/chat/", "/v1/models", "/v1/responses", "/v1/conversations", *_NOT_SERVED)
_ANTHROPIC = ("/v1/messages",)
_OF_GATEWAY = ("/aap/", "/acp", "/console", "/session")
"""The gateway's own paths, whose errors have its own shape."""
_OPENAI_TYPES: Mapping[int, tuple[str, str | None]] = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", None),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}
_FIELD = re.compile(r"([a-z_]+(?:\.\w+)*): ", re.ASCII)
"""The field that an error names at its beginning."""
_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class OpenAIError(BaseModel):
    """`param` is the field that is wrong."""

    model_config = ConfigDict(defer_build=True)

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorResponse(BaseModel):
    """Every error of OpenAI's APIs."""

    model_config = ConfigDict(
        defer_build=True,
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "message": "model: missing; GET /v1/models lists the models",
                        "type": "invalid_request_error",
                        "param": "model",
                        "code": None,
                    }
                }
            ]
        },
    )

    error: OpenAIError


class AnthropicError(BaseModel):
    """`type` tells programs what was wrong, `message` people."""

    model_config = ConfigDict(defer_build=True)

    type: str
    message: str


class AnthropicErrorResponse(BaseModel):
    """Every error of Anthropic's API."""

    model_config = ConfigDict(
        defer_build=True,
        json_schema_extra={
            "examples": [
                {"type": "error", "error": {"type": "invalid_request_error", "message": "messages: empty; send one user message"}}
            ]
        },
    )

    type: Literal["error"]
    error: AnthropicError


openai_errors = partial(errors, models=(OpenAIErrorResponse,))
anthropic_errors = partial(errors, models=(AnthropicErrorResponse,))


_OF_WRONG_BASE = re.compile(
    r"(?:/[^/]+){0,4}?/(?:(?P<openai>chat/completions|responses|models|embeddings|completions)|(?P<anthropic>messages(?:/count_tokens)?))/?"
)
"""Paths that a client requests whose base URL is wrong: what follows it is right."""


def wrong_base(scope: Scope) -> Vendor | None:
    """Return the vendor whose API a request is for that has the path of no API: its client has a wrong base URL."""
    if scope["path"].startswith(_OF_GATEWAY):
        return None
    found = _OF_WRONG_BASE.fullmatch(scope["path"])
    return None if found is None else "openai" if found["openai"] else "anthropic"


def base_url_hint(scope: Scope, host: str) -> str | None:
    """Return the base URL for a request without a route whose client may have another one; None if that is not known."""
    if wrong_base(scope) is None:
        return None
    base = f"{scope['scheme']}://{host}"
    return (
        f"the client has a wrong base URL. That of clients of OpenAI is {base}/v1, that of clients of Anthropic is {base} "
        f"(in some {base}/v1)"
    )


def vendor_of(scope: Scope) -> Vendor | None:
    """Return the vendor whose API a request is for; None for other requests. A client of Anthropic sends `anthropic-version`."""
    path: str = scope["path"]
    if path.startswith(_ANTHROPIC):
        return "anthropic"
    if path.startswith(_OPENAI):
        return "anthropic" if path.startswith("/v1/models") and "anthropic-version" in Headers(scope=scope) else "openai"
    return wrong_base(scope)


def error_body(vendor: Vendor, status: int, text: str, *, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """Return the body of an error response, or the data of an error in a stream.

    OpenAI's has the field that is wrong as `param`: where it is not given, the one that the text begins with.
    """
    if vendor == "anthropic":
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": text}}
    named = _FIELD.match(text) if 400 <= status < 500 else None
    param = param or (named[1] if named else None)
    if status == 404 and param == "model":
        code = code or "model_not_found"
    kind, usual_code = _OPENAI_TYPES.get(status, ("server_error" if status >= 500 else "invalid_request_error", None))
    return {"error": {"message": text, "type": kind, "param": param, "code": code or usual_code}}


class VendorRequests:
    """ASGI middleware: lets requests of the vendors' clients send their key as `x-api-key`, and gives errors their shape.

    Responses to Anthropic's clients have the id of the request in `request-id`. An error response whose body is
    `{"error": "TEXT"}` gets the vendor's; it is not retried, where its client does what `x-should-retry` says, unless the status
    is 429 or 503: a repeated request would run the agent again.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        vendor = vendor_of(scope) if scope["type"] == "http" else None
        if vendor is None:
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        key = headers.get("x-api-key")
        if key is not None and "authorization" not in headers:
            authorization = (b"authorization", b"Bearer " + key.encode("latin-1"))
            # In the same scope: the access log reads from it which route has responded.
            scope["headers"] = [*scope["headers"], authorization]
        await self._app(scope, receive, _ResponseShaper(vendor, send))


class _ResponseShaper:
    """Sends messages of ASGI. Those of an error response are held until it is complete."""

    def __init__(self, vendor: Vendor, send: Send) -> None:
        self._vendor, self._send = vendor, send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._vendor == "anthropic":
                # Beside `X-Request-Id`: Anthropic's clients read this one.
                message = {**message, "headers": [*message["headers"], (b"request-id", (request_id.get() or "").encode())]}
            if message["status"] >= 400:
                self._start = message
            else:
                await self._send(message)
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._send_error(self._start)

    async def _send_error(self, start: Message) -> None:
        body = self._shaped(start["status"])
        headers = MutableHeaders(raw=[*start["headers"]])
        headers["content-length"] = str(len(body))
        if start["status"] not in (429, 503):
            headers["x-should-retry"] = "false"
        await self._send({**start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": body})

    def _shaped(self, status: int) -> bytes:
        try:
            text = from_json(self._body)["error"]
        except (ValueError, KeyError, TypeError):
            return self._body
        return to_json(error_body(self._vendor, status, text)) if isinstance(text, str) else self._body
