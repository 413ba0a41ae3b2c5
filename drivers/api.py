"""What a driver and its tests import from `drivers`, in one list. See docs/writing-a-driver.md.

`events` is the module with all events: `from drivers import events`. `AcpDriver`, `AcpCodec` and `AgentProfile` are imported on
first use: the protocol's package takes 0.5 s to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from drivers.codecs.json_lines import JsonLineCodec
from drivers.codecs.json_rpc import JsonRpcPeer, RpcError
from drivers.codecs.output_event_lines import EventLineCodec, open_request, request
from drivers.codecs.tool_calls import Call, CallTracker
from drivers.codecs.turn_codec import TurnCodec
from drivers.contract import events
from drivers.contract.agent import Agent, PermissionReply, Prompt, Reply, ToolReply
from drivers.contract.agent_specs import AgentSpec, Limits, SessionPermissions, SessionSeed, SessionSpec, TaskSpec
from drivers.contract.capabilities import (
    SupportsClientRequests,
    SupportsClosing,
    SupportsDebounce,
    SupportsMcpTools,
    SupportsModes,
    SupportsSteering,
)
from drivers.contract.client_services import ClientRequest, ClientResponse
from drivers.contract.codec import Codec, Command, Launch
from drivers.contract.driver_info import (
    Capabilities,
    Display,
    DriverInfo,
    Login,
    Mcp,
    Option,
    PermissionMode,
    Permissions,
    Probe,
    Program,
    ToolGrant,
    ToolSpec,
)
from drivers.contract.errors import AgentGone, AgentUnavailable, DriverError, ResumeFailed
from drivers.contract.messages import Content, Message, blocks, pending_tool_calls, text_of
from drivers.contract.tool_denials import denied
from drivers.contract.tool_server import ToolRequest, ToolResponse
from drivers.runtime.cli_driver import CliDriver, Driver, run_to_end
from drivers.runtime.process import Spawner
from drivers.runtime.turn_process import TurnProcessDriver

if TYPE_CHECKING:
    from drivers.acp import AcpCodec, AcpDriver, AgentProfile

_FROM_ACP = ("AcpCodec", "AcpDriver", "AgentProfile")

__all__ = [
    "AcpCodec",
    "AcpDriver",
    "Agent",
    "AgentGone",
    "AgentProfile",
    "AgentSpec",
    "AgentUnavailable",
    "Call",
    "CallTracker",
    "Capabilities",
    "CliDriver",
    "ClientRequest",
    "ClientResponse",
    "Codec",
    "Command",
    "Content",
    "Display",
    "Driver",
    "DriverError",
    "DriverInfo",
    "EventLineCodec",
    "JsonLineCodec",
    "JsonRpcPeer",
    "Launch",
    "Limits",
    "Login",
    "Mcp",
    "Message",
    "Option",
    "PermissionMode",
    "PermissionReply",
    "Permissions",
    "Probe",
    "Program",
    "Prompt",
    "Reply",
    "ResumeFailed",
    "RpcError",
    "SessionPermissions",
    "SessionSeed",
    "SessionSpec",
    "Spawner",
    "SupportsClientRequests",
    "SupportsClosing",
    "SupportsDebounce",
    "SupportsMcpTools",
    "SupportsModes",
    "SupportsSteering",
    "TaskSpec",
    "ToolGrant",
    "ToolReply",
    "ToolRequest",
    "ToolResponse",
    "ToolSpec",
    "TurnCodec",
    "TurnProcessDriver",
    "blocks",
    "denied",
    "events",
    "open_request",
    "pending_tool_calls",
    "request",
    "run_to_end",
    "text_of",
]


def __getattr__(name: str) -> Any:
    if name not in _FROM_ACP:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("drivers.acp"), name)
