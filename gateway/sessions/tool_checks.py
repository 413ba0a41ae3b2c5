"""Checks the tools of a request against its agent: those of the agent, and those of the application."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drivers.contract.driver_info import ToolGrant, ToolSpec
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.text_limits import MAX_NAME, MAX_TEXT, MAX_TOOLS, check_count, check_length


def check_tools(
    agent: ConfiguredAgent,
    grants: Iterable[ToolGrant],
    app_tools: Iterable[ToolSpec],
    agents: Iterable[ConfiguredAgent],
    *,
    fixed: bool = False,
) -> None:
    """Raise BadRequest for a tool that the agent does not have, and for an application-side tool that it cannot have.

    The error names those of `agents` that can. An application-side tool has another name than the agent's own tools; where those
    that are granted are `fixed` for the session, it may have the name of one that is not.
    """
    exposed, grants = {tool.name for tool in agent.info.tools}, tuple(grants)
    taken = {grant.name for grant in grants} if fixed else exposed
    for grant in grants:
        check_length("agent.tools", grant.name, MAX_NAME)
        if grant.name not in exposed:
            known = f"its tools are {', '.join(sorted(exposed))}" if exposed else "it has none"
            having = _names(other for other in agents if any(tool.name == grant.name for tool in other.info.tools))
            others = f"; agents with a tool of that name: {having}" if having else ""
            raise BadRequest(f"agent.tools: agent {agent.name!r} has no tool {grant.name!r}; {known}{others}")
    seen: set[str] = set()
    for tool in _with_lengths_checked(tuple(app_tools)):
        if not agent.info.capabilities.app_tools:
            taking = _names(other for other in agents if other.info.capabilities.app_tools)
            instead = f"leave {tool.name!r} out" + (f", or use an agent that takes them: {taking}" if taking else "")
            raise BadRequest(f"tools: agent {agent.name!r} takes no application-side tools; {instead}")
        if tool.name in taken:
            raise BadRequest(
                f"tools: the name {tool.name!r} is taken by a tool of agent {agent.name!r} itself, which GET /meta "
                "lists; tool names must be unique"
            )
        if tool.name in seen:
            raise BadRequest(
                f"tools: the name {tool.name!r} is taken by an earlier tool of this request; tool names must be unique"
            )
        seen.add(tool.name)


def _with_lengths_checked(tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
    check_count("tools", len(tools), MAX_TOOLS)
    for n, tool in enumerate(tools):
        check_length(f"tools.{n}.name", tool.name, MAX_NAME)
        check_length(f"tools.{n}.title", tool.title or "", MAX_NAME)
        check_length(f"tools.{n}.description", tool.description, MAX_TEXT)
    return tools


def _names(agents: Iterable[ConfiguredAgent]) -> str:
    return ", ".join(agent.name for agent in agents if agent.usable)
