"""`/v1/keys`: the named keys of clients. For administrators. The gateway's own API."""

from __future__ import annotations

import logging
import re

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from gateway.app import Gateway
from gateway.config import AGENT_NAME
from gateway.errors import BadRequest, ConfigError, Conflict, Forbidden, NotFound
from gateway.protocols.aap.schema import iso_time
from gateway.protocols.authenticated_routes import authenticated_router
from gateway.protocols.operations.administrators import CurrentAdministrator
from gateway.protocols.operations.api_model import ApiModel
from gateway.protocols.route_metadata import BODY, errors

log = logging.getLogger(__name__)


class KeyInfo(ApiModel):
    """A named key. `last_used_at` is null before its first use, and at most a minute late."""

    name: str
    created_at: str
    last_used_at: str | None = None


class KeysResponse(ApiModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"keys": [{"name": "phone", "createdAt": "2026-11-20T09:30:00.000Z", "lastUsedAt": "2026-11-22T18:04:11.000Z"}]}
            ]
        }
    )

    keys: list[KeyInfo]


class NewKey(ApiModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "phone"}]})

    name: str = Field(min_length=1, max_length=64)


class CreatedKey(ApiModel):
    """The key itself. It is not shown again: only its hash is stored."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "phone", "key": "pk-3q2-EXAMPLE-0rH7b0u5nWq9sXv1cY4zA6tE8mK2dJ"}]}
    )

    name: str
    key: str


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of a gateway."""
    routes = authenticated_router(gateway, "operations")

    @routes.get("/v1/keys")
    async def list_keys(administrator: CurrentAdministrator) -> KeysResponse:
        """List the named keys, the oldest first. Default keys are not among them."""
        found = await gateway.credentials.keys()
        return KeysResponse(
            keys=[
                KeyInfo(
                    name=key.name,
                    created_at=iso_time(key.created_at),
                    last_used_at=None if key.used_at is None else iso_time(key.used_at),
                )
                for key in found
            ]
        )

    @routes.post("/v1/keys", status_code=201, responses=errors(*BODY))
    async def add_key(administrator: CurrentAdministrator, request: NewKey, response: Response) -> CreatedKey:
        """Create a key for a client, which sees its own sessions only. It is valid at once."""
        _require_authentication(gateway)
        if not re.fullmatch(AGENT_NAME, request.name):
            raise BadRequest("name: letters, digits, '.', '_' and '-', 64 at most, and a letter or digit first")
        try:
            key = await gateway.credentials.add_key(request.name)
        except ConfigError as error:
            raise Conflict(str(error)) from error
        log.info("a key %r was created by an administrator", request.name)
        response.headers["Cache-Control"] = "no-store"
        return CreatedKey(name=request.name, key=key)

    @routes.delete("/v1/keys/{name}", status_code=204, responses=errors(404))
    async def remove_key(administrator: CurrentAdministrator, name: str) -> Response:
        """Revoke a key: its next request gets a 401, and its open streams end. Its sessions stay."""
        _require_authentication(gateway)
        try:
            await gateway.credentials.remove_key(name)
        except ConfigError as error:
            raise NotFound(f"there is no key {name[:64]!r}; GET /v1/keys lists those there are") from error
        log.info("the key %r was removed by an administrator", name)
        return Response(status_code=204)

    return routes


def _require_authentication(gateway: Gateway) -> None:
    """Raise Forbidden where any caller is an administrator: a key would stay valid when authentication is on again."""
    if gateway.auth.is_off:
        raise Forbidden("authentication is off (--no-auth), so keys cannot be changed here; use `portico key`")
