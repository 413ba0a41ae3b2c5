"""Serves every version under its base URL, and names the right base URL to clients that use another version's."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import FastAPI
from starlette.routing import Match

from gateway.app import Gateway
from gateway.protocols.aap import v1, v2, v3

_VERSIONS = {f"v{module.VERSION}": module for module in (v3, v2, v1)}
_ROOT = "v1"
"""The version that the root serves as well."""
MAX_SEGMENTS = 8
"""The segments of a path in which a path of the protocol is searched for."""


def include(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of every version."""
    routers = [_VERSIONS[_ROOT].router(gateway, "", f"AAP {_ROOT} at the root")]
    routers += [module.router(gateway, module.BASE, f"AAP {name}") for name, module in _VERSIONS.items()]
    # Not by `include_router`, which builds each route a second time for the first request.
    for router in routers:
        app.router.routes += router.routes


def base_url_hint(app: FastAPI, method: str, path: str) -> str | None:
    """Return which versions have a route for a request without a route here, with their base URLs. None if none has.

    A path that ends as one of the protocol, such as `/v3/meta`, is of a client with a wrong base URL.
    """
    here = next((name for name, module in _VERSIONS.items() if _below(path, module.BASE)), None)
    rest = path.removeprefix(_VERSIONS[here].BASE) if here else path
    others = [name for name in sorted(_VERSIONS) if name != (here or _ROOT)]
    matching = [name for name in others if _has_route(app, method, _VERSIONS[name].BASE + rest)]
    if matching:
        what = f"{method} {rest} is of AAP {' and '.join(matching)}, this is the base URL of AAP {here or _ROOT}"
        return f"{what}; set the client's base URL to {_bases(matching)}"
    before, versions = _misplaced(app, path)
    if before in versions:
        return f"AAP {before} has the base URL {_bases([before])}; set the client's base URL to it"
    return bases_hint(app, path)


def bases_hint(app: FastAPI, path: str) -> str | None:
    """Return all base URLs for a path that is below none of them, and below /aap or ends as one of the protocol; else None."""
    known = any(_below(path, module.BASE) for module in _VERSIONS.values())
    if not known and (_below(path, "/aap") or _misplaced(app, path)[1]):
        return f"AAP has the base URLs {_bases(_VERSIONS)}"
    return None


def _misplaced(app: FastAPI, path: str) -> tuple[str, list[str]]:
    """Return the versions that have a route for the end of a path, and the segment before that end; ("", []) if none has."""
    segments = path.split("/")[1:][:MAX_SEGMENTS]
    for n in range(1, len(segments)):
        rest = "/" + "/".join(segments[n:])
        versions = [name for name in sorted(_VERSIONS) if _has_route(app, None, _VERSIONS[name].BASE + rest)]
        if versions:
            return segments[n - 1], versions
    return "", []


def _below(path: str, base: str) -> bool:
    return path == base or path.startswith(base + "/")


def _has_route(app: FastAPI, method: str | None, path: str) -> bool:
    """Return whether there is a route for a path; with None, for any method."""
    scope = {"type": "http", "method": method or "GET", "path": path, "root_path": ""}
    matches = (route.matches(scope)[0] for route in app.routes)
    return any(match is Match.FULL or (method is None and match is Match.PARTIAL) for match in matches)


def _bases(names: Iterable[str]) -> str:
    return " or ".join(_VERSIONS[name].BASE for name in names)
