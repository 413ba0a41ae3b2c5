"""The driver author's API: everything that a driver needs is named here. docs/writing-a-driver.md walks through one."""

from drivers.base import (
    Agent,
    AgentGone,
    AgentSpec,
    AgentUnavailable,
    DriverError,
    DriverInfo,
    Limits,
    Option,
    PermissionReply,
    Probe,
    Prompt,
    Reply,
    ResumeFailed,
    SessionSpec,
    TaskSpec,
    ToolGrant,
    ToolReply,
    ToolSpec,
)
from drivers.codec import Codec, Command, HostAnswer, HostRequest, Launch
from drivers.driver import CliDriver, Driver
from drivers.process import Spawner

__all__ = [
    "Agent",
    "AgentGone",
    "AgentSpec",
    "AgentUnavailable",
    "CliDriver",
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
    "ToolGrant",
    "ToolReply",
    "ToolSpec",
]
