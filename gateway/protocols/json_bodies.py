"""Strict JSON request bodies: everything that is accepted can be stored and returned unchanged.

Other content types are rejected, because a form on any web page can send them without a CORS preflight.
"""

from __future__ import annotations

import codecs
import json
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic.warnings import UnsupportedFieldAttributeWarning
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

# FastAPI gives a body an alias that its model does not use. It hides pydantic's warning about that while it makes the routes, but
# models with `defer_build` are built later: by the first request.
warnings.filterwarnings("ignore", category=UnsupportedFieldAttributeWarning)

_OTHER_ENCODINGS = (
    # The mark of UTF-16 is the beginning of that of UTF-32.
    ((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "UTF-32"),
    ((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "UTF-16"),
)
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictJsonRoute(APIRoute):
    """A route that answers 415 to bodies other than JSON, and 400 to JSON with NaN, lone surrogates or too deep nesting."""

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if _has_body(request.headers) and not is_json(request.headers.get("content-type", "")):
                raise HTTPException(415, "the body must be a JSON object, sent with Content-Type: application/json")
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict


class _StrictRequest(Request):
    async def json(self) -> Any:
        # Some programs of Windows write a byte order mark.
        body = (await self.body()).removeprefix(codecs.BOM_UTF8)
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(_encoding_problem(body) or str(error), "", 0) from error


def _encoding_problem(body: bytes) -> str | None:
    """What is wrong with the encoding of a text; None if nothing is."""
    start = body[:4]
    for marks, name in _OTHER_ENCODINGS:
        if start.startswith(marks):
            return f"it is {name}; send it as UTF-8"
    if b"\0" in start:
        return "it is UTF-16 or UTF-32, or no text; send it as UTF-8"
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8, by the byte 0x{body[error.start]:02x} at position {error.start}; send it as UTF-8"
    return None


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def is_json(content_type: str) -> bool:
    """Whether a Content-Type is that of JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
