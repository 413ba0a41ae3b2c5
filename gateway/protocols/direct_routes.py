"""Handles valid requests of a few routes without FastAPI, whose routing, dependencies and middleware take a fifth of a turn.

Every other request goes to the app, whose route of the same path has the documentation and responds to what is not valid: each
error response is made by one route only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send

from gateway.errors import GatewayError, SessionElsewhere
from gateway.gateway import Gateway
from gateway.protocols.authenticated_routes import counted_response, pass_on
from gateway.protocols.authorization import authorization
from gateway.protocols.forwarding.passed_on import is_forwarded
from gateway.protocols.json_bodies import is_json
from gateway.security.authentication import Authorization, Caller
from gateway.security.quotas import RequestQuotas

_VALID = "portico.valid_request"
"""The key in the scope of a `_Valid`, until its response is made."""


@dataclass(frozen=True, slots=True)
class DirectRequest:
    """A valid request of a direct route: the variables of its path, its headers by the names of the route, and its body."""

    http: Request
    caller: Caller
    quotas: RequestQuotas
    path: Mapping[str, str]
    headers: Mapping[str, Any]
    body: Any


class DirectRoute:
    """A POST route of the app.

    Parameters:
        routes: The router with the route.
        name: The name of its endpoint, whose parameter `request` is the JSON body, a pydantic model.
        headers: Types of the request headers by their names in lower case. They are validated where the request has them.
        respond: Returns the response to a valid request of a caller.
        elsewhere: Returns the error that passes a request on to another node, by the variables of its path. None if it is not
            known before the request is validated that it is another's.
    """

    def __init__(
        self,
        routes: APIRouter,
        name: str,
        headers: Mapping[str, TypeAdapter[Any]],
        respond: Callable[[DirectRequest], Awaitable[Response]],
        elsewhere: Callable[[Mapping[str, str]], SessionElsewhere | None] = lambda _: None,
    ) -> None:
        self.route = next(route for route in routes.routes if isinstance(route, APIRoute) and route.name == name)
        self.respond, self.elsewhere = respond, elsewhere
        body: type[BaseModel] = get_type_hints(self.route.endpoint)["request"]
        self._match = compile_path(self.route.path)[0].match
        self._headers = tuple((name, adapter.validate_python) for name, adapter in headers.items())
        self._body = body.__pydantic_validator__

    def variables(self, path: str) -> dict[str, str] | None:
        """Return the variables of a path; None if it is not the path of this route."""
        found = self._match(path)
        return None if found is None else found.groupdict()

    def validated_headers(self, headers: Headers) -> dict[str, Any]:
        """Return the values of the headers, None for those that the request lacks. Raises ValidationError."""
        given = ((name, headers.get(name), validate) for name, validate in self._headers)
        return {name: None if value is None else validate(value) for name, value, validate in given}

    def validated_body(self, data: bytes) -> Any:
        """Return the body. Raises ValueError."""
        return self._body.validate_python(from_json(data, allow_inf_nan=False))


@dataclass(frozen=True, slots=True)
class _Authenticated:
    caller: Caller
    quotas: RequestQuotas
    authorization: Authorization


@dataclass(frozen=True, slots=True)
class _Valid:
    route: DirectRoute
    request: DirectRequest
    authorization: Authorization


class DirectRoutes:
    """ASGI app: handles the valid requests of `routes` and passes all others to `app`.

    `handlers` are the exception handlers of the app. A request is passed on as it came, with the part of its body that was
    received. It is valid if it has the key, or a sign-in, in its headers, and the key has a connection left.
    """

    def __init__(
        self, app: ASGIApp, gateway: Gateway, routes: Sequence[DirectRoute], handlers: Mapping[Any, ExceptionHandler]
    ) -> None:
        self._app, self._gateway, self._routes = app, gateway, routes
        handled = {kind: handler for kind, handler in handlers.items() if kind is not Exception}
        self._respond_or_explain = ServerErrorMiddleware(ExceptionMiddleware(self._respond, handled), handlers[Exception])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope.get("root_path"):
            return await self._app(scope, receive, send)
        path = scope["path"]
        for route in self._routes:
            variables = route.variables(path)
            if variables is not None:
                break
        else:
            return await self._app(scope, receive, send)
        http, received = Request(scope, receive), _Received(receive)
        authenticated = self._authenticated(http)
        if authenticated is None:
            return await self._app(scope, receive, send)
        if (elsewhere := route.elsewhere(variables)) is not None:
            # Its node validates it.
            scope["route"] = route.route
            quotas = authenticated.quotas
            return pass_on(self._gateway, scope, elsewhere, authenticated.caller, quotas, authenticated.authorization)
        valid = await self._validated(route, variables, http, authenticated, received)
        if valid is None:
            return await self._app(scope, received.again, send)
        scope[_VALID], scope["route"] = valid, route.route
        # A stream may last for hours. Its request, which may have many megabytes, is not kept meanwhile.
        del http, received, valid
        await self._respond_or_explain(scope, receive, send)

    def _authenticated(self, http: Request) -> _Authenticated | None:
        """Return the caller of a request, which has a connection of its key; None if the app is to respond."""
        headers = http.headers
        given = authorization(headers)
        if not is_json(headers.get("content-type", "")):
            return None
        try:
            caller = self._gateway.authenticate(http.scope, given)
            quotas = RequestQuotas(self._gateway.quotas, caller.name, forwarded=is_forwarded(http.scope))
        except GatewayError:
            return None
        return _Authenticated(caller, quotas, given)

    async def _validated(
        self,
        route: DirectRoute,
        variables: Mapping[str, str],
        http: Request,
        authenticated: _Authenticated,
        received: _Received,
    ) -> _Valid | None:
        """Return the valid request of a caller; None if the app is to respond. It holds what its key's quotas give it then."""
        caller, quotas = authenticated.caller, authenticated.quotas
        valid: _Valid | None = None
        try:
            found = route.validated_headers(http.headers)
            body = route.validated_body(await received.body())
            valid = _Valid(route, DirectRequest(http, caller, quotas, variables, found, body), authenticated.authorization)
        except Exception:
            # What FastAPI's route raises too, where it has a response.
            return None
        finally:
            if valid is None:
                quotas.release()
        return valid

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._response(scope.pop(_VALID))
        await response(scope, receive, send)

    async def _response(self, valid: _Valid) -> ASGIApp:
        request = valid.request
        responding = valid.route.respond(request)
        return await counted_response(
            self._gateway, request.http.scope, request.caller, request.quotas, responding, valid.authorization
        )


class _Received:
    """Reads a body, and gives the same messages to another reader."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = []
        self._error: Exception | None = None

    async def body(self) -> bytes:
        """Read the whole body. Raises what the server raises, or ClientDisconnect."""
        while True:
            try:
                message = await self._receive()
            except Exception as error:
                self._error = error
                raise
            self._messages.append(message)
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            if not message.get("more_body"):
                return b"".join(message.get("body", b"") for message in self._messages)

    async def again(self) -> Message:
        """Return the messages from the first one on, and then those that come. Raises what `body` has raised, once."""
        if self._messages:
            return self._messages.pop(0)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return await self._receive()
