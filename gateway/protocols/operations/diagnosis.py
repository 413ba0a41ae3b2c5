"""`GET /v1/diagnosis`: what `portico doctor` checks, by the daemon itself. For administrators. The gateway's own API."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from gateway.app import Gateway
from gateway.protocols.authenticated_routes import authenticated_router
from gateway.protocols.operations.administrators import CurrentAdministrator
from gateway.protocols.route_metadata import example

if TYPE_CHECKING:
    from gateway.diagnosis.report import Report

EXAMPLE = example(
    {
        "problems": 1,
        "version": "0.1.0",
        "daemon": None,
        "checks": [
            {"name": "Daemon", "status": "ok", "text": "running, version 0.1.0, process 4711", "command": None, "details": []}
        ],
        "agents": [
            {
                "check": {
                    "name": "claude",
                    "status": "problem",
                    "text": "claude is not logged in",
                    "command": "claude auth login --claudeai",
                    "details": [],
                },
                "driver": "claude",
                "state": {},
                "trial": None,
            }
        ],
    }
)
Try = Annotated[bool, Query(alias="try", description="Let each agent that can be used answer a short task, for some tokens.")]


def router(gateway: Gateway) -> APIRouter:
    """Return the route of a gateway."""
    routes = authenticated_router(gateway, "operations")

    @routes.get("/v1/diagnosis", response_model=dict[str, Any], responses={200: EXAMPLE})
    async def diagnosis(administrator: CurrentAdministrator, tried: Try = False) -> JSONResponse:
        """What `portico doctor --json` prints: checks of the daemon and its agents, with the commands that solve problems.

        The programs of the agents are probed now, which takes up to 20 seconds.
        """
        report = await _report(gateway, tried=tried)
        return JSONResponse({"problems": report.problems, **report.model_dump()})

    return routes


async def _report(gateway: Gateway, *, tried: bool) -> Report:
    # 10 ms and 0.6 MB that most daemons never need.
    from gateway.diagnosis import daemon, diagnosis

    settings = gateway.settings
    portico = daemon.quoted_command("portico", {"--config": settings.file, "--data-dir": settings.data_dir})
    return await diagnosis.diagnose_running(gateway, os.environ, portico, tried=tried)
