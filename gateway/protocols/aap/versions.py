"""Serves every version under its base URL, and names the right base URL to clients that use another version's."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import FastAPI
from starlette.routing import Match

from gateway.gateway import Gateway
from gateway.protocols.aap import v1, v2, v3

_VERSIONS = {f"v{module.VERSION}": module for module in (v3, v2, v1)}
_ROOT = "v1"
"""The version that the root serves as well."""


def include(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of every version."""
    routers = {name: module.router(gateway) for name, module in _VERSIONS.items()}
    app.include_router(routers[_ROOT], tags=[f"AAP {_ROOT} at the root"])
    for name, module in _VERSIONS.items():
        app.include_router(routers[name], prefix=module.BASE, tags=[f"AAP {name}"])


def base_url_hint(app: FastAPI, method: str, path: str) -> str | None:
    """Return which versions have a route for a request without a route here, with their base URLs. None if none has."""
    here = next((name for name, module in _VERSIONS.items() if _below(path, module.BASE)), None)
    rest = path.removeprefix(_VERSIONS[here].BASE) if here else path
    others = [name for name in sorted(_VERSIONS) if name != (here or _ROOT)]
    matching = [name for name in others if _has_route(app, method, _VERSIONS[name].BASE + rest)]
    if matching:
        what = f"{method} {rest} is of AAP {' and '.join(matching)}, this is the base URL of AAP {here or _ROOT}"
        return f"{what}; set the client's base URL to {_bases(matching)}"
    return bases_hint(path)


def bases_hint(path: str) -> str | None:
    """Return all base URLs for a path below /aap that is below none of them; None for any other path."""
    known = any(_below(path, module.BASE) for module in _VERSIONS.values())
    return f"AAP has the base URLs {_bases(_VERSIONS)}" if _below(path, "/aap") and not known else None


def _below(path: str, base: str) -> bool:
    return path == base or path.startswith(base + "/")


def _has_route(app: FastAPI, method: str, path: str) -> bool:
    scope = {"type": "http", "method": method, "path": path, "root_path": ""}
    return any(route.matches(scope)[0] is Match.FULL for route in app.routes)


def _bases(names: Iterable[str]) -> str:
    return " or ".join(_VERSIONS[name].BASE for name in names)
