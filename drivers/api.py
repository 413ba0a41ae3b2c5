"""What a driver and its tests import from `drivers`, in one list. See docs/writing-a-driver.md.

`AcpDriver`, `AcpCodec` and `AgentProfile` are imported on first use: the protocol's package takes 0.5 s to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from drivers.codecs.deduplication import Deduplicator
from drivers.codecs.held_events import HeldEvents
from drivers.codecs.json_lines import JsonLineCodec
from drivers.codecs.json_rpc import JsonRpcPeer, RpcError
from drivers.codecs.output_event_lines import EventLineCodec, open_request, request
from drivers.codecs.tool_calls import Call, CallTracker
from drivers.contract.agent import Agent, PermissionReply, Prompt, Reply, ToolReply
from drivers.contract.agent_specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.contract.capabilities import (
    SupportsClientRequests,
    SupportsClosing,
    SupportsDebounce,
    SupportsMcpTools,
    SupportsModes,
    SupportsSteering,
)
from drivers.contract.client_services import ClientRequest, ClientResponse, ClientServices
from drivers.contract.codec import Codec, Command, Launch
from drivers.contract.driver_info import (
    DriverInfo,
    Login,
    Option,
    PermissionMode,
    PlanChange,
    Probe,
    ToolGrant,
    ToolKind,
    ToolSpec,
)
from drivers.contract.errors import AgentGone, AgentUnavailable, DriverError, ResumeFailed
from drivers.contract.events import (
    AgentToken,
    AwaitedCall,
    Awaiting,
    Commands,
    Compacted,
    ContextUse,
    Error,
    FileChange,
    Hook,
    MessageEnd,
    ModeChanged,
    NativeSession,
    OutputEvent,
    PermissionChoice,
    Plan,
    PlanEntry,
    RateLimit,
    SessionEnd,
    SlashCommand,
    Stderr,
    Stdout,
    Subagent,
    Terminal,
    Thinking,
    Title,
    ToolCall,
    ToolInput,
    ToolOutput,
    ToolResult,
    Usage,
)
from drivers.contract.line_splitter import parse_object, text_line
from drivers.contract.mcp_servers import McpServer
from drivers.contract.messages import (
    AssistantMessage,
    Content,
    ContentBlock,
    ImageBlock,
    Message,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    blocks,
    pending_tool_calls,
    text_of,
)
from drivers.contract.tool_denials import denied
from drivers.contract.tool_server import ToolRequest, ToolResponse, ToolServer
from drivers.runtime.cli_driver import CliDriver, Driver, run_to_end
from drivers.runtime.process import Spawner
from drivers.runtime.turn_process import TurnCodec, TurnProcessDriver

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
    "AgentToken",
    "AgentUnavailable",
    "AssistantMessage",
    "AwaitedCall",
    "Awaiting",
    "Call",
    "CallTracker",
    "CliDriver",
    "ClientRequest",
    "ClientResponse",
    "ClientServices",
    "Codec",
    "Command",
    "Commands",
    "Compacted",
    "Content",
    "ContentBlock",
    "ContextUse",
    "Deduplicator",
    "Driver",
    "DriverError",
    "DriverInfo",
    "Error",
    "EventLineCodec",
    "FileChange",
    "HeldEvents",
    "Hook",
    "ImageBlock",
    "JsonLineCodec",
    "JsonRpcPeer",
    "Launch",
    "Limits",
    "Login",
    "McpServer",
    "Message",
    "MessageEnd",
    "ModeChanged",
    "NativeSession",
    "Option",
    "OutputEvent",
    "PermissionChoice",
    "PermissionMode",
    "PermissionReply",
    "Plan",
    "PlanChange",
    "PlanEntry",
    "Probe",
    "Prompt",
    "RateLimit",
    "Reply",
    "ResumeFailed",
    "RpcError",
    "SessionEnd",
    "SessionSpec",
    "SlashCommand",
    "Spawner",
    "Stderr",
    "Stdout",
    "Subagent",
    "SupportsClientRequests",
    "SupportsClosing",
    "SupportsDebounce",
    "SupportsMcpTools",
    "SupportsModes",
    "SupportsSteering",
    "SystemMessage",
    "TaskSpec",
    "Terminal",
    "TextBlock",
    "Thinking",
    "ThinkingBlock",
    "Title",
    "ToolCall",
    "ToolGrant",
    "ToolInput",
    "ToolKind",
    "ToolMessage",
    "ToolOutput",
    "ToolReply",
    "ToolRequest",
    "ToolResponse",
    "ToolResult",
    "ToolServer",
    "ToolSpec",
    "ToolUseBlock",
    "TurnCodec",
    "TurnProcessDriver",
    "Usage",
    "UserMessage",
    "blocks",
    "denied",
    "open_request",
    "parse_object",
    "pending_tool_calls",
    "request",
    "run_to_end",
    "text_line",
    "text_of",
]


def __getattr__(name: str) -> Any:
    if name not in _FROM_ACP:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("drivers.acp"), name)
