"""What is known about agents of the catalogue that the protocol does not transmit, each with the version that it was seen in."""

from __future__ import annotations

from dataclasses import replace

from acp.schema import ContentToolCallContent, TextContentBlock, ToolCall, ToolCallUpdate

from drivers.acp.agent_profile import AgentProfile
from drivers.contract.line_splitter import parse_object


def profile_of(agent: str, general: AgentProfile) -> AgentProfile:
    """The profile of an agent of the catalogue, by its name: `general`, with what is known about that agent."""
    if agent == "opencode":
        # 1.18.33 reports `command`, `description` and `cwd` and asks about `command`; it reports `filePath` and `content` and
        # asks about `filepath` and `diff`. Some updates arrive after the request.
        return replace(general, inputs_vary=True)
    if agent == "qwen":
        return replace(general, reported_tool=_qwen_tool)
    if agent == "vibe":
        return replace(general, reported_tool=_vibe_tool)
    if agent == "kimi":
        return replace(general, call_update=_kimi_update, reported_tool=_kimi_tool)
    return general


def _qwen_tool(update: ToolCall | ToolCallUpdate) -> str | None:
    # In 0.24.4 the title of a permission request for an MCP tool is the call's input.
    name = (update.field_meta or {}).get("toolName")
    return name if isinstance(name, str) else None


def _vibe_tool(update: ToolCall | ToolCallUpdate) -> str | None:
    # 3.0.2 asks about a call by its id alone, before it calls an MCP tool.
    name = (update.field_meta or {}).get("tool_name")
    return name if isinstance(name, str) else None


def _kimi_update(update: ToolCall | ToolCallUpdate) -> ToolCall | ToolCallUpdate:
    # 2.1.0 has the input of a pending call as JSON in its text, and in its `rawInput` when it runs, after its permission request.
    content = update.content or []
    if update.raw_input is not None or update.status not in (None, "pending") or len(content) != 1:
        return update
    item = content[0]
    if not isinstance(item, ContentToolCallContent) or not isinstance(item.content, TextContentBlock):
        return update
    given = parse_object(item.content.text.encode())
    return update if given is None else update.model_copy(update={"raw_input": given, "content": []})


def _kimi_tool(update: ToolCall | ToolCallUpdate) -> str | None:
    # In 2.1.0 the title of a pending call and of a permission request is the name of its tool; later it describes the call.
    return update.title if update.status in (None, "pending") else None
