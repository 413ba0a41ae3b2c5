"""Authentication of routes by a bearer key, for every protocol. It comes before any other check of a request."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from gateway.protocols.json_bodies import Handler, StrictJsonRoute
from gateway.protocols.route_metadata import SECURITY_REQUIREMENT
from gateway.protocols.sse import until_unauthorized
from gateway.security.authentication import Authenticator, Caller


def authenticated_route(auth: Authenticator) -> type[APIRoute]:
    """Return a route class for `APIRouter`. Its routes answer 401 to requests without a valid key, before anything else."""

    class AuthenticatedRoute(StrictJsonRoute):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(
                *args, **{**kwargs, "openapi_extra": {**SECURITY_REQUIREMENT, **(kwargs.get("openapi_extra") or {})}}
            )

        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def authenticated(request: Request) -> Response:
                header = request.headers.get("authorization")
                caller = request.state.caller = auth.check(header)
                response = await handler(request)
                # Only named keys can be revoked while the daemon runs.
                return response if caller.name is None else until_unauthorized(response, lambda: auth.check(header))

            return authenticated

    return AuthenticatedRoute


def public_route(auth: Authenticator) -> type[APIRoute]:
    """Return a route class for `APIRouter`. Its routes need no key, but answer 401 to a request with one that is not valid."""

    class PublicRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def checked(request: Request) -> Response:
                header = request.headers.get("authorization")
                if header is not None:
                    auth.check(header)
                return await handler(request)

            return checked

    return PublicRoute


async def _caller(request: Request) -> Caller:
    # Async, although it awaits nothing: FastAPI runs a plain function in a thread, which took 0.2 ms of every request.
    found: Caller = request.state.caller
    return found


CurrentCaller = Annotated[Caller, Depends(_caller)]
"""The type of a parameter of an authenticated endpoint that receives the caller."""
