"""What is said on claude's control channel about tools: answers to its hook, its permission requests and its MCP messages; pure.

Shapes as of claude 2.1.329.
"""

from __future__ import annotations

from typing import Any

from drivers.claude.content import native_content
from drivers.claude.tools import SERVER, Toolset
from drivers.contract.messages import Content, blocks

HOOK = "tool"
HOOK_SECONDS = 864_000
"""How long the CLI waits for its hook; then it refuses the call."""
HOOKS = {"PreToolUse": [{"matcher": None, "hookCallbackIds": [HOOK], "timeout": HOOK_SECONDS}]}
"""For `initialize`: the CLI asks before every call, sub-agents' too, whatever its settings allow."""
NO_SUCH_METHOD = -32601


def success(request_id: str, response: dict[str, Any]) -> dict[str, Any]:
    """The line that answers a control request."""
    return {"type": "control_response", "response": {"subtype": "success", "request_id": request_id, "response": response}}


def failure(request_id: str, error: str) -> dict[str, Any]:
    """The line that refuses one."""
    return {"type": "control_response", "response": {"subtype": "error", "request_id": request_id, "error": error}}


def hook_answer(refusal: str | None) -> dict[str, Any]:
    """A call may run, or not and why."""
    decision = {"permissionDecision": "allow"} if refusal is None else _deny(refusal)
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}


def _deny(refusal: str) -> dict[str, Any]:
    return {"permissionDecision": "deny", "permissionDecisionReason": refusal}


def permission_answer(refusal: str | None, given: Any) -> dict[str, Any]:
    """The same, for a permission request."""
    return {"behavior": "allow", "updatedInput": given} if refusal is None else {"behavior": "deny", "message": refusal}


def refusal(subtype: Any, why: str) -> dict[str, Any] | None:
    """A no to a question about a call, by the question's subtype; None for other questions."""
    return {"hook_callback": hook_answer(why), "can_use_tool": permission_answer(why, None)}.get(str(subtype))


def mcp_answer(message: dict[str, Any], tools: Toolset) -> dict[str, Any]:
    """The application's server answers anything but a call."""
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
    error = {"code": NO_SUCH_METHOD, "message": f"no such method: {method}"}
    return {"mcp_response": {"jsonrpc": "2.0", "id": rpc_id, "error": error}}


def mcp_result(rpc_id: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"mcp_response": {"jsonrpc": "2.0", "id": rpc_id, "result": result}}


def call_result(content: Content, *, is_error: bool = False) -> dict[str, Any]:
    """A tool's result as MCP has it."""
    found = [_mcp_block(block) for block in native_content(blocks(content)) if isinstance(block, dict)]
    return {"content": [block for block in found if block], **({"isError": True} if is_error else {})}


def _mcp_block(native: dict[str, Any]) -> dict[str, Any] | None:
    if native["type"] != "image":
        return {"type": "text", "text": native["text"]} if native.get("text") else None
    source = native["source"]
    if source["type"] == "base64":
        return {"type": "image", "data": source["data"], "mimeType": source["media_type"]}
    # MCP has no images by address.
    return {"type": "text", "text": f"[image: {source['url']}]"}
