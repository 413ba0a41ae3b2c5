"""Responses on claude's control channel about tools: to its hook, its permission requests and its MCP messages. No state.

Shapes as of claude 2.1.329.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivers.claude.content import native_content
from drivers.claude.tools import SERVER, Toolset
from drivers.contract.client_services import METHOD_NOT_FOUND
from drivers.contract.messages import Content, blocks

HOOK = "tool"
HOOK_SECONDS = 864_000
"""How long the CLI waits for its hook. It denies the call then."""
HOOKS = {"PreToolUse": [{"matcher": None, "hookCallbackIds": [HOOK], "timeout": HOOK_SECONDS}]}
"""For `initialize`: the CLI requests a decision before every call, also of sub-agents, whatever its settings allow."""


def success(request_id: str, response: dict[str, Any]) -> dict[str, Any]:
    """The line of a successful response to a control request."""
    return {"type": "control_response", "response": {"subtype": "success", "request_id": request_id, "response": response}}


def failure(request_id: str, error: str) -> dict[str, Any]:
    """The line of an error response to a control request."""
    return {"type": "control_response", "response": {"subtype": "error", "request_id": request_id, "error": error}}


NO_DECISION: dict[str, Any] = {}
"""The response to a hook that leaves the decision to the CLI."""


def hook_answer(denial: str | None) -> dict[str, Any]:
    """The response to a hook: a call may run, or is denied with this text."""
    decision = {"permissionDecision": "allow"}
    if denial is not None:
        decision = {"permissionDecision": "deny", "permissionDecisionReason": denial}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}


def permission_answer(denial: str | None, given: Any, updates: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The response to a permission request: a call may run with the input `given`, or is denied with this text.

    `updates` change what the CLI permits from now on.
    """
    if denial is not None:
        return {"behavior": "deny", "message": denial}
    return {"behavior": "allow", "updatedInput": given, **({"updatedPermissions": list(updates)} if updates else {})}


def denial_answer(subtype: Any, denial: str) -> dict[str, Any] | None:
    """The response that denies a call, by the subtype of the request; None for other requests."""
    return {"hook_callback": hook_answer(denial), "can_use_tool": permission_answer(denial, None)}.get(str(subtype))


def mcp_answer(message: dict[str, Any], tools: Toolset) -> dict[str, Any]:
    """The response of the application's MCP server to any message but a call."""
    method, rpc_id = message.get("method"), message.get("id")
    if rpc_id is None:
        return {"mcp_response": {"jsonrpc": "2.0", "result": {}}}
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        return mcp_result(
            rpc_id,
            {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": SERVER, "version": "1.0.0"}},
        )
    if method == "tools/list":
        return mcp_result(rpc_id, {"tools": tools.mcp_list()})
    if method == "ping":
        return mcp_result(rpc_id, {})
    error = {"code": METHOD_NOT_FOUND, "message": f"no such method: {method}"}
    return {"mcp_response": {"jsonrpc": "2.0", "id": rpc_id, "error": error}}


def mcp_result(rpc_id: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"mcp_response": {"jsonrpc": "2.0", "id": rpc_id, "result": result}}


def call_result(content: Content, *, is_error: bool = False) -> dict[str, Any]:
    """The result of a tool in the form of MCP."""
    found = [_mcp_block(block) for block in native_content(blocks(content)) if isinstance(block, dict)]
    return {"content": [block for block in found if block], **({"isError": True} if is_error else {})}


def _mcp_block(native: dict[str, Any]) -> dict[str, Any] | None:
    if native["type"] != "image":
        return {"type": "text", "text": native["text"]} if native.get("text") else None
    source = native["source"]
    if source["type"] == "base64":
        return {"type": "image", "data": source["data"], "mimeType": source["media_type"]}
    # MCP has no images by URL.
    return {"type": "text", "text": f"[image: {source['url']}]"}
