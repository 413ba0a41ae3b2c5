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
        return replace(general, reported_tool=_opencode_tool, inputs_vary=True)
    if agent == "copilot":
        return replace(general, reported_tool=_copilot_tool)
    if agent == "kimi":
        return replace(general, call_update=_kimi_update, reported_tool=_kimi_tool)
    return general


def _opencode_tool(update: ToolCall | ToolCallUpdate) -> str | None:
    # 1.18.33 reports no other name of the tool than the title of a new call; later titles describe the call.
    return update.title if isinstance(update, ToolCall) else None


def _copilot_tool(update: ToolCall | ToolCallUpdate) -> str | None:
    # 1.0.102 reports no other name of an MCP tool than the title of a new call. The titles of other kinds of calls may be the
    # model's words. It does not ask about tools that a server declares as read-only, so that a question is about another tool.
    if isinstance(update, ToolCall):
        return update.title if update.kind == "read" and not update.locations else None
    return ""


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
