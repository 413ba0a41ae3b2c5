"""`GET /v1/drivers`: every driver with its agents, their programs, and why an agent is not available. The gateway's own API."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from drivers.compatibility import Support, support_of
from gateway.agents.discovery import DiscoveredAgent
from gateway.gateway import Gateway
from gateway.protocols.authenticated_routes import authenticated_route
from gateway.protocols.route_metadata import openapi_extra

EXAMPLES = openapi_extra(
    responses={
        200: {
            "drivers": [
                {
                    "driver": "claude",
                    "title": "Claude Code",
                    "install": "npm install -g @anthropic-ai/claude-code",
                    "agents": [
                        {
                            "name": "claude",
                            "offered": True,
                            "installed": True,
                            "program": "/usr/local/bin/claude",
                            "version": "2.1.329",
                            "support": "tested",
                            "notes": [],
                            "logged_in": True,
                            "models": ["sonnet", "opus"],
                            "problem": None,
                        }
                    ],
                }
            ]
        }
    }
)


class AgentState(BaseModel):
    """One agent. `problem` is why it is not available and what to do; `logged_in` is null where its CLI does not report it."""

    name: str
    offered: bool
    installed: bool
    program: str | None = Field(default=None, description="The path of its program; null where the driver brings its own.")
    version: str | None = None
    support: Support | None = Field(
        default=None,
        description="Whether its version is in the range of tested ones, newer, older, or not supported any more; null where "
        "that is not known. An agent with a newer or an unsupported version is offered if its program works.",
    )
    notes: list[str] = Field(default=[], description="What the agent cannot do with this version, and what was noticed with it.")
    logged_in: bool | None = None
    models: list[str] = []
    problem: str | None = None


class DriverState(BaseModel):
    """One driver with its agents."""

    driver: str
    title: str
    install: str | None = Field(default=None, description="The command that installs its CLI.")
    agents: list[AgentState]


class DriversResponse(BaseModel):
    drivers: list[DriverState]


def router(gateway: Gateway) -> APIRouter:
    """Return the route of a gateway."""
    routes = APIRouter(tags=["operations"], route_class=authenticated_route(gateway))

    @routes.get("/v1/drivers", openapi_extra=EXAMPLES)
    async def drivers() -> DriversResponse:
        """List the drivers with their agents: program, version, login state, models, and what to do about problems."""
        by_driver: dict[str, list[AgentState]] = {name: [] for name in gateway.agents.drivers}
        for found in await gateway.discovery.all_agents():
            by_driver[found.agent.settings.driver].append(_state(gateway, found))
        infos = {name: driver.info() for name, driver in gateway.agents.drivers.items()}
        return DriversResponse(
            drivers=[
                DriverState(driver=name, title=infos[name].title, install=infos[name].install or None, agents=agents)
                for name, agents in sorted(by_driver.items())
            ]
        )

    return routes


def _state(gateway: Gateway, found: DiscoveredAgent) -> AgentState:
    probe = found.probe
    return AgentState(
        name=found.agent.name,
        offered=found.problem is None,
        installed=found.agent.problem() is None,
        program=found.program or None,
        version=probe.version,
        support=support_of(found.agent.settings.driver, probe.version),
        notes=[gateway.redactor.clean(note) for note in found.notes],
        logged_in=probe.logged_in,
        models=list(probe.models),
        problem=gateway.redactor.clean(found.problem) if found.problem else None,
    )
