"""Drivers for agents that speak the Agent Client Protocol over stdio, one agent process per session.

This module is the API for drivers of such agents (gemini is one). It imports each name on first access: importing the protocol's
package takes 0.5 s and 24 MB (agent-client-protocol 0.12.1), and `python -m drivers.acp.mcp_bridge` needs none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivers.acp.agent_profile import AgentProfile
    from drivers.acp.codec import AcpCodec
    from drivers.acp.content import prompt_blocks, tool_output, unified_diff
    from drivers.acp.driver import AcpDriver, import_protocol, probe_session
    from drivers.acp.handshake import SessionRequest
    from drivers.acp.mcp_servers import bypass_proxy
    from drivers.acp.permissions import Grants
    from drivers.acp.tool_calls import ToolCallState, default_input
else:
    _MODULES = {
        "AcpCodec": "codec",
        "AcpDriver": "driver",
        "AgentProfile": "agent_profile",
        "Grants": "permissions",
        "SessionRequest": "handshake",
        "ToolCallState": "tool_calls",
        "bypass_proxy": "mcp_servers",
        "default_input": "tool_calls",
        "import_protocol": "driver",
        "probe_session": "driver",
        "prompt_blocks": "content",
        "tool_output": "content",
        "unified_diff": "content",
    }

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


__all__ = [
    "AcpCodec",
    "AcpDriver",
    "AgentProfile",
    "Grants",
    "SessionRequest",
    "ToolCallState",
    "bypass_proxy",
    "default_input",
    "import_protocol",
    "probe_session",
    "prompt_blocks",
    "tool_output",
    "unified_diff",
]
