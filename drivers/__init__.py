"""The driver author's API: everything that a driver needs is named here. docs/writing-a-driver.md walks through one."""

from drivers.contract.agent import Agent, PermissionReply, Prompt, Reply, ToolReply
from drivers.contract.client_services import ClientServices, HostAnswer, HostRequest
from drivers.contract.codec import Codec, Command, Launch
from drivers.contract.errors import AgentGone, AgentUnavailable, DriverError, ResumeFailed
from drivers.contract.info import DriverInfo, Option, Probe, ToolGrant, ToolSpec
from drivers.contract.specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.contract.tool_server import ToolAnswer, ToolRequest, ToolServer
from drivers.runtime.cli_driver import CliDriver, Driver
from drivers.runtime.process import Spawner

__all__ = [
    "Agent",
    "AgentGone",
    "AgentSpec",
    "AgentUnavailable",
    "CliDriver",
    "ClientServices",
    "Codec",
    "Command",
    "Driver",
    "DriverError",
    "DriverInfo",
    "HostAnswer",
    "HostRequest",
    "Launch",
    "Limits",
    "Option",
    "PermissionReply",
    "Probe",
    "Prompt",
    "Reply",
    "ResumeFailed",
    "SessionSpec",
    "Spawner",
    "TaskSpec",
    "ToolAnswer",
    "ToolGrant",
    "ToolReply",
    "ToolRequest",
    "ToolServer",
    "ToolSpec",
]
