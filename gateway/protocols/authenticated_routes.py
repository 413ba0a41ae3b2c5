"""Authentication of routes by a bearer key, for every protocol. It comes before any other check of a request.

The quotas of the key hold until the response is sent.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.openapi.models import HTTPBearer
from fastapi.routing import APIRoute
from fastapi.security.base import SecurityBase
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.app import Gateway
from gateway.cluster.forwarding.node_request import NODE_REQUEST, ForwardedRequest, NodeRequest, no_response
from gateway.errors import SessionElsewhere, TooMany, Unauthorized
from gateway.protocols.authorization import authorization
from gateway.protocols.json_bodies import Handler, StrictJsonRoute
from gateway.protocols.route_metadata import ANY_REQUEST, Errors, errors, operation_id
from gateway.protocols.sse import until_unauthorized
from gateway.security.authentication import Authorization, Caller, is_forwarded
from gateway.security.quotas import TOO_MANY_BODIES, RequestQuotas
from gateway.security.sign_ins import OfferedSignIn

MAX_UNAUTHENTICATED_BODY = 1024 * 1024
"""Bytes of a body that is read to find a key in it. It is parsed only if it has a valid key, and is nested 200 deep at most."""
UNAUTHENTICATED_BODY_SECONDS = 10.0
"""Seconds in which such a body must arrive, the wait for others included."""
MAX_CANDIDATES = 8
"""Texts of such a body that are compared with the keys."""


class _Key(SecurityBase):
    """Security scheme of the key in the OpenAPI document. As a dependency it returns the authenticated caller.

    The route has authenticated the caller before, because FastAPI reads the body of a request before it solves dependencies.
    """

    def __init__(self) -> None:
        self.scheme_name = "key"
        self.model = HTTPBearer(
            description="`portico key` prints the key. A gateway that was started with `--no-auth` needs none."
        )

    # Async, although it awaits nothing: FastAPI runs a plain function in a thread, which took 0.2 ms of every request.
    async def __call__(self, request: Request) -> Caller:
        found: Caller = request.state.caller
        return found


NEEDS_KEY = Depends(_Key())
"""Dependency of an authenticated route whose endpoint does not receive the caller. It documents that the route needs a key."""


async def _quotas(request: Request) -> RequestQuotas:
    found: RequestQuotas = request.state.quotas
    return found


CurrentCaller = Annotated[Caller, NEEDS_KEY]
"""The type of a parameter of an authenticated endpoint that receives the caller."""
CurrentQuotas = Annotated[RequestQuotas, Depends(_quotas)]
"""The type of a parameter of an authenticated endpoint that receives what the request holds of its key's quotas."""


def authenticated_router(
    gateway: Gateway, tag: str, *, prefix: str = "", body_field: str | None = None, errors: Errors = errors
) -> APIRouter:
    """Return a router whose routes answer 401 to requests without a valid key, before anything else.

    The key is in the Authorization header. Without a valid one there, it may be in the field `body_field` of a small JSON body.
    Each endpoint has a parameter of the type `CurrentCaller`, or the dependency `NEEDS_KEY`, which document that.
    `errors` returns error responses in the format of the API.
    """
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        route_class=_authenticated_route(gateway, body_field),
        responses=errors(*ANY_REQUEST),
        generate_unique_id_function=operation_id,
    )


def public_router(gateway: Gateway, tag: str, *, prefix: str = "") -> APIRouter:
    """Return a router whose routes need no key, but answer 401 to a request with one that is not valid."""
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        route_class=_public_route(gateway),
        responses=errors(403, "default"),
        generate_unique_id_function=operation_id,
    )


def _authenticated_route(gateway: Gateway, body_field: str | None = None) -> type[APIRoute]:
    class AuthenticatedRoute(StrictJsonRoute):
        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def authenticated(request: Request) -> Response:
                header, token = authorization(request.headers), None
                with gateway.wrong_keys_counted(request.scope):
                    try:
                        caller = await gateway.known_caller(request.scope, header)
                    except Unauthorized:
                        if body_field is None:
                            raise
                        body = await unauthenticated_body(gateway, request)
                        await _require_candidate(gateway, header, body, body_field)
                        token = _field(body, body_field)
                        caller = await gateway.known_caller(request.scope, header, token)
                        request = Request(request.scope, with_body(body, request.receive))
                quotas = RequestQuotas(gateway.quotas, caller.name, forwarded=is_forwarded(request.scope))
                request.state.caller, request.state.quotas = caller, quotas
                # FastAPI only calls it.
                return await counted_response(gateway, request.scope, caller, quotas, handler(request), header, token)  # type: ignore[return-value]

            return authenticated

    return AuthenticatedRoute


async def counted_response(
    gateway: Gateway,
    scope: Scope,
    caller: Caller,
    quotas: RequestQuotas,
    responding: Awaitable[Response],
    header: Authorization,
    token: str | None = None,
) -> ASGIApp:
    """Return the response to a caller, who was authenticated by the headers (`header`) or by a token in the body.

    It releases the quotas when it is sent, or if there is none. A stream ends once the key is revoked, or the sign-in has ended.
    The middleware of a node responds to a request whose session another node has.
    """
    check = _check(gateway, scope, caller, header, token)
    try:
        response = await responding
    except SessionElsewhere as error:
        if NODE_REQUEST not in scope:
            quotas.release()
            raise
        _forward(scope, error, caller, quotas, check)
        return no_response
    except BaseException:
        quotas.release()
        raise
    return _Counted(response if check is None else until_unauthorized(response, check), quotas)


def _forward(
    scope: Scope, error: SessionElsewhere, caller: Caller, quotas: RequestQuotas, check: Callable[[], Awaitable[object]] | None
) -> None:
    quotas.release_stream()
    node_request: NodeRequest = scope[NODE_REQUEST]
    node_request.forwarded = ForwardedRequest(error.node_id, error.address, caller, quotas, check)


def _check(
    gateway: Gateway, scope: Scope, caller: Caller, header: Authorization, token: str | None = None
) -> Callable[[], Awaitable[object]] | None:
    """What raises Unauthorized once the key of a request is revoked, or its sign-in has ended."""
    if (caller.name is None and not isinstance(header, OfferedSignIn)) or is_forwarded(scope):
        # Default keys cannot be revoked while the daemon runs. The node that has forwarded a request checks its key.
        return None
    return partial(gateway.auth.check, header, token, again=True)


class _Counted:
    """A response that releases the quotas of its request when it is sent."""

    def __init__(self, response: Response, quotas: RequestQuotas) -> None:
        self._response, self._quotas = response, quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._quotas.release()


async def unauthenticated_body(gateway: Gateway, request: Request, limit: int = MAX_UNAUTHENTICATED_BODY) -> bytes:
    """Read a body of `limit` bytes at most whose sender is not known yet. Raises Unauthorized, TooMany or HTTPException."""
    too_large = Unauthorized(
        f"no valid API key in the Authorization header, and without one a body may have {limit} bytes: send "
        "'Authorization: Bearer KEY'; `portico key` prints the key"
    )
    content_length = request.headers.get("content-length", "0")
    if content_length.isdigit() and int(content_length) > limit:
        raise too_large
    body, reading = bytearray(), False
    try:
        async with gateway.clock.timeout(UNAUTHENTICATED_BODY_SECONDS), gateway.unauthenticated_bodies.read():
            reading = True
            while True:
                message = await request.receive()
                body += message.get("body", b"")
                if len(body) > limit:
                    raise too_large
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        if not reading:
            raise TooMany(TOO_MANY_BODIES) from None
        text = (
            f"the body did not arrive within {UNAUTHENTICATED_BODY_SECONDS:g} seconds; send the key in the Authorization header"
        )
        raise HTTPException(408, text, {"Connection": "close"}) from None


async def _require_candidate(gateway: Gateway, header: Authorization, body: bytes, name: str) -> None:
    """Raise Unauthorized if no text of the body looks like the field with a valid key.

    Parsing a body of 1 MiB takes up to 30 ms, and a caller without a key could send one after the other.
    """
    pattern = rb'"%b"\s*:\s*("(?:[^"\\]|\\.){0,4096}+")' % name.encode()
    found = [match[1] for match in islice(re.finditer(pattern, body), MAX_CANDIDATES)]
    for literal in found:
        with suppress(ValueError, Unauthorized):
            await gateway.auth.check(header, from_json(literal))
            return
    await gateway.auth.check(header, "" if found else None)


def _field(body: bytes, name: str) -> str | None:
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError:
        return None
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, str) else None


def with_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that begins with the body that was read."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed


def _public_route(gateway: Gateway) -> type[APIRoute]:
    class PublicRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def checked(request: Request) -> Response:
                header = authorization(request.headers)
                if header is not None:
                    await gateway.authenticated(request.scope, header)
                return await handler(request)

            return checked

    return PublicRoute
