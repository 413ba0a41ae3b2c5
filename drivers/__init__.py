"""The driver author's API: everything that a driver needs is named here. docs/writing-a-driver.md walks through one."""

from drivers.contract.agent import Agent, PermissionReply, Prompt, Reply, ToolReply
from drivers.contract.capabilities import (
    SupportsClientRequests,
    SupportsClosing,
    SupportsDebounce,
    SupportsMcpTools,
    SupportsSteering,
)
from drivers.contract.client_services import ClientRequest, ClientResponse, ClientServices
from drivers.contract.codec import Codec, Command, Launch
from drivers.contract.errors import AgentGone, AgentUnavailable, DriverError, ResumeFailed
from drivers.contract.info import DriverInfo, Option, Probe, ToolGrant, ToolSpec
from drivers.contract.specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.contract.tool_server import ToolRequest, ToolResponse, ToolServer
from drivers.runtime.cli_driver import CliDriver, Driver
from drivers.runtime.process import Spawner

__all__ = [
    "Agent",
    "AgentGone",
    "AgentSpec",
    "AgentUnavailable",
    "CliDriver",
    "ClientRequest",
    "ClientResponse",
    "ClientServices",
    "Codec",
    "Command",
    "Driver",
    "DriverError",
    "DriverInfo",
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
    "SupportsClientRequests",
    "SupportsClosing",
    "SupportsDebounce",
    "SupportsMcpTools",
    "SupportsSteering",
    "TaskSpec",
    "ToolGrant",
    "ToolReply",
    "ToolRequest",
    "ToolResponse",
    "ToolServer",
    "ToolSpec",
]
