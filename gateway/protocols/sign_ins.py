"""Sign-ins of the console's page: a code, which is used once, or a key is exchanged for a cookie and a token."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from gateway.app import Gateway
from gateway.errors import BadRequest, Conflict, Forbidden, NotFound, Unauthorized
from gateway.protocols.authenticated_routes import NEEDS_KEY, CurrentCaller, authenticated_router, unauthenticated_body, with_body
from gateway.protocols.authorization import authorization, cookie_name, is_from_own_page
from gateway.protocols.json_bodies import Handler, StrictJsonRoute
from gateway.protocols.route_metadata import ANY_REQUEST, BODY, errors, operation_id
from gateway.security.sign_ins import CODE_SECONDS, KeyIdentity, OfferedSignIn

MAX_BODY = 4096
"""Bytes of the body of a request to sign in."""
COOKIE_SECONDS = 400 * 24 * 3600
"""Seconds for which a browser keeps the cookie, the most that browsers allow. An unused sign-in ends earlier."""

_SIGNED_IN: JsonDict = {"name": "phone", "administrator": False, "expiresAt": "2026-12-24T12:00:00Z", "open": False}


class SignInCode(BaseModel):
    """A code, and the address of the console with it. Without authentication there is no code."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"code": "wZJ2Pq…", "expiresIn": 60, "url": "http://127.0.0.1:7700/console/#code=wZJ2Pq…"}]
        }
    )

    code: str | None
    expires_in: int = Field(serialization_alias="expiresIn", description="Seconds.")
    url: str


class SignInRequest(BaseModel):
    """Either a code or a key."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"code": "wZJ2Pq…"}, {"key": "pk-…"}]})

    code: str | None = None
    key: str | None = None


class SignInState(BaseModel):
    """Who is signed in. `name` is that of the key, null for a default key. `open`: no authentication is needed."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SIGNED_IN]})

    name: str | None
    administrator: bool
    expires_at: str | None = Field(serialization_alias="expiresAt", description="If it is not used until then.")
    open: bool


class NewSignIn(SignInState):
    """`token` is the value of the header `X-Portico-Sign-In`, which is needed besides the cookie."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**_SIGNED_IN, "token": "q9Xv…"}]})

    token: str


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of a gateway."""
    authenticated = authenticated_router(gateway, "operations")
    public = APIRouter(
        tags=["operations"],
        route_class=_sign_in_route(gateway),
        responses=errors(*ANY_REQUEST, *BODY),
        generate_unique_id_function=operation_id,
    )

    @authenticated.post("/v1/sign-in-codes", dependencies=[NEEDS_KEY])
    async def make_sign_in_code(request: Request) -> SignInCode:
        """Make a code that signs a browser in, once and within a minute, with the key of this request."""
        base = f"{request.url.scheme}://{request.headers['host']}/console/"
        if gateway.auth.is_off:
            return SignInCode(code=None, expires_in=int(CODE_SECONDS), url=base)
        code = await gateway.credentials.make_code(await gateway.auth.identity(authorization(request.headers)))
        return SignInCode(code=code, expires_in=int(CODE_SECONDS), url=f"{base}#code={code}")

    @public.post("/v1/sign-ins", status_code=201)
    async def sign_in(body: SignInRequest, request: Request, response: Response) -> NewSignIn:
        """Sign a browser in: it gets a cookie, and a token for the header `X-Portico-Sign-In`; both are needed."""
        identity = await _identity(gateway, body, request)
        secrets = await gateway.credentials.begin_sign_in(identity)
        _set_cookie(response, request, secrets.cookie, COOKIE_SECONDS)
        response.headers["Cache-Control"] = "no-store"
        offered = OfferedSignIn((secrets.cookie,), secrets.token)
        return NewSignIn(**_state(gateway, offered, identity.name), token=secrets.token)

    @authenticated.get("/v1/sign-ins/current")
    async def current_sign_in(caller: CurrentCaller, request: Request, response: Response) -> SignInState:
        """Who this request is authenticated as, and until when."""
        response.headers["Cache-Control"] = "no-store"
        return SignInState(**_state(gateway, authorization(request.headers), caller.name))

    @authenticated.delete(
        "/v1/sign-ins/current", status_code=204, dependencies=[NEEDS_KEY], response_class=Response, responses=errors(404)
    )
    async def sign_out(request: Request) -> Response:
        """End the sign-in of this request, also for its streams."""
        found = gateway.auth.sign_in(authorization(request.headers))
        if found is None:
            raise NotFound("this request is not authenticated by a sign-in, which could end")
        await gateway.credentials.end_sign_in(found.secrets)
        response = Response(status_code=204)
        _set_cookie(response, request, "", 0)
        return response

    authenticated.routes += public.routes
    return authenticated


def _sign_in_route(gateway: Gateway) -> type[StrictJsonRoute]:
    """Return a route class: who sends the body is not known before it is read, so that it must be small."""

    class SignInRoute(StrictJsonRoute):
        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def limited(request: Request) -> Response:
                body = await unauthenticated_body(gateway, request, MAX_BODY)
                return await handler(Request(request.scope, with_body(body, request.receive)))

            return limited

    return SignInRoute


async def _identity(gateway: Gateway, body: SignInRequest, request: Request) -> KeyIdentity:
    if gateway.auth.is_off:
        raise Conflict("this gateway was started with --no-auth: it needs no sign-in")
    if not is_from_own_page(request.headers):
        # A page of an allowed origin (server.origins) has a key of its own. Nobody is signed in by the page of somebody else.
        raise Forbidden("only the console's own page may sign in")
    if (body.code is None) == (body.key is None):
        raise BadRequest("the body has either `code` or `key`")
    if body.code is not None:
        # Wrong codes are not counted: nobody guesses 192 random bits.
        found = await gateway.credentials.use_code(body.code)
        if found is None:
            raise Unauthorized("this code was used before, or is older than a minute: `portico open` makes a new one")
        return found
    with gateway.wrong_keys_counted(request.scope):
        return await gateway.auth.identity(f"Bearer {body.key}")


def _state(gateway: Gateway, given: Any, name: str | None) -> dict[str, Any]:
    found = None if gateway.auth.is_off else gateway.auth.sign_in(given)
    expires = None if found is None else datetime.fromtimestamp(found.expires_at, UTC).isoformat(timespec="seconds")
    expires_at = expires.replace("+00:00", "Z") if expires else None
    return {"name": name, "administrator": name is None, "expires_at": expires_at, "open": gateway.auth.is_off}


def _set_cookie(response: Response, request: Request, value: str, seconds: int) -> None:
    # Behind a proxy with TLS, the scheme of the request may be that of the proxy's own connection.
    secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")
    response.set_cookie(
        cookie_name(request.headers), value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict"
    )
