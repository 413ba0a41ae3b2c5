"""`GET /v1/drivers`: every driver with its agents, their programs, and why an agent is not available. The gateway's own API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from gateway.agents.driver_states import DriverState, driver_states
from gateway.app import Gateway
from gateway.protocols.authenticated_routes import NEEDS_KEY, authenticated_router


class DriversResponse(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "drivers": [
                        {
                            "driver": "claude",
                            "title": "Claude Code",
                            "install": "npm install -g @anthropic-ai/claude-code",
                            "agents": [
                                {
                                    "name": "claude",
                                    "configured": True,
                                    "offered": True,
                                    "installed": True,
                                    "program": "/usr/local/bin/claude",
                                    "version": "2.1.329",
                                    "support": "tested",
                                    "notes": [],
                                    "logged_in": True,
                                    "models": ["sonnet", "opus"],
                                    "probed": True,
                                    "problem": None,
                                    "login": "claude auth login --claudeai",
                                    "run_in": "podman",
                                    "image": "localhost/claude:1",
                                    "sandbox": "off",
                                    "worktree": True,
                                    "command": None,
                                }
                            ],
                        }
                    ]
                }
            ]
        }
    )

    drivers: list[DriverState]


Refresh = Annotated[bool, Query(description="Probe the programs now, and wait for the results, up to 10 seconds.")]


def router(gateway: Gateway) -> APIRouter:
    """Return the route of a gateway."""
    routes = authenticated_router(gateway, "operations")

    @routes.get("/v1/drivers", dependencies=[NEEDS_KEY])
    async def drivers(refresh: Refresh = False) -> DriversResponse:
        """List the drivers with their agents: program, version, login state, models, and what to do about problems."""
        found = await driver_states(gateway.agents, gateway.discovery, gateway.redactor, refresh=refresh)
        return DriversResponse(drivers=found)

    return routes
