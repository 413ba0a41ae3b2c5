"""An agent that this node of a cluster has not. It stands for that in a session which is only read or deleted here."""

from __future__ import annotations

from pathlib import Path

from drivers.contract.agent import Agent
from drivers.contract.agent_specs import Limits, SessionSpec, TaskSpec
from drivers.contract.driver_info import Capabilities, DriverInfo
from drivers.contract.errors import AgentUnavailable
from drivers.runtime.cli_driver import Driver
from drivers.runtime.process import Spawner
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.config import AgentSettings
from gateway.errors import AgentProblem


class AbsentAgent(ConfiguredAgent):
    """An agent of which only the name is known. It cannot be started. Its folder is the folder that the session has chosen.

    Both histories of its sessions can be read, because it is not known whether its CLI compacts conversations.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, AgentSettings(driver=_NoDriver.name), _NoDriver(), Path(), {}, any_directory=False)

    def program(self) -> str:
        raise AgentProblem(f"agent {self.name!r} is not in the configuration of this node; use a node that has it")

    def working_directory(self, chosen: str | None, workspace_key: str | None = None, *, any_folder: bool = False) -> Path:
        """Return the session's own choice. It is not resolved, because the folder is on another machine."""
        return Path(chosen or "")


class _NoDriver(Driver):
    name = "absent"

    def info(self) -> DriverInfo:
        return DriverInfo("", "", capabilities=Capabilities(seeds=True, system=True, compaction=True))

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        raise AgentUnavailable("this node has not the agent")

    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        raise AgentUnavailable("this node has not the agent")
