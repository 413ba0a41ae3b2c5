"""The state of every driver and agent, as `GET /v1/drivers` and `portico doctor` report it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from drivers.compatibility import Support
from gateway.agents.configured_agents import Agents
from gateway.agents.discovery import DiscoveredAgent, Discovery
from gateway.security.redaction import Redactor


class AgentState(BaseModel):
    """One agent. `problem` is why it is not available and what to do; `logged_in` is null where its CLI does not report it."""

    name: str
    configured: bool = Field(default=False, description="Whether the configuration has an entry for it.")
    offered: bool
    installed: bool
    program: str | None = Field(default=None, description="The path of its program; null where the driver brings its own.")
    version: str | None = None
    support: Support | None = Field(
        default=None,
        description="Whether its version is in the range of tested ones, newer, older, or not supported any more; null where "
        "that is not known. An agent with an unsupported version is not offered.",
    )
    notes: list[str] = Field(default=[], description="What was noticed with this version.")
    logged_in: bool | None = None
    models: list[str] = []
    probed: bool = Field(default=True, description="False until its program has answered, or has failed to.")
    problem: str | None = None
    login: str | None = Field(default=None, description="The shell command that logs its program in, where the driver names one.")
    run_in: Literal["node", "podman", "docker", "bwrap"] = Field(
        default="node", description="Where its processes run: on this machine as they are, or in a container of that runtime."
    )
    image: str | None = Field(default=None, description="The image of its containers, for podman and docker.")
    sandbox: Literal["off", "workspace-write"] = "off"
    worktree: bool = Field(default=False, description="Whether each new session has a git worktree of its own.")
    command: str | None = Field(default=None, description="The shell command that solves the problem, where one is known.")


class DriverState(BaseModel):
    """One driver with its agents."""

    driver: str
    title: str
    install: str | None = Field(default=None, description="The command that installs its CLI.")
    agents: list[AgentState]


async def driver_states(agents: Agents, discovery: Discovery, redactor: Redactor, *, refresh: bool = False) -> list[DriverState]:
    """Return the drivers by their names, each with its agents. Without a result, or with `refresh`, wait for the probes."""
    by_driver: dict[str, list[AgentState]] = {name: [] for name in agents.drivers}
    for found in await discovery.all_agents(refresh=refresh):
        by_driver[found.agent.settings.driver].append(_state(found, redactor))
    infos = {name: driver.info() for name, driver in agents.drivers.items()}
    return [
        DriverState(driver=name, title=infos[name].title, install=infos[name].program.install or None, agents=states)
        for name, states in sorted(by_driver.items())
    ]


def _state(found: DiscoveredAgent, redactor: Redactor) -> AgentState:
    probe, settings = found.probe, found.agent.settings
    return AgentState(
        name=found.agent.name,
        configured=found.agent.configured,
        offered=found.problem is None,
        installed=found.agent.installed,
        program=found.program or None,
        version=probe.version,
        support=found.support,
        notes=[redactor.clean(note) for note in found.notes],
        logged_in=probe.logged_in,
        models=list(probe.models),
        probed=found.probed,
        problem=redactor.clean(found.problem) if found.problem else None,
        login=found.agent.login_command(),
        run_in=settings.run_in,
        image=settings.container.image,
        sandbox=settings.sandbox,
        worktree=settings.worktree,
        command=found.command,
    )
