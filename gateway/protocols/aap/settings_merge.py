"""Merges the options and tools of a request into a session's settings. Raises BadRequest for what the agent does not have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from drivers.contract.driver_info import ToolGrant, ToolSpec
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.protocols.aap.schema import (
    AgentOverrides,
    Tool,
)
from gateway.security.redaction import HIDDEN
from gateway.sessions.settings import SessionSettings


def merge_settings(
    config: SessionSettings, agent: ConfiguredAgent, overrides: AgentOverrides | None, tools: Iterable[Tool] | None
) -> SessionSettings:
    """Return a session's settings with those of a request: options merge by key, tool lists replace. Raises BadRequest."""
    if overrides is None and tools is None:
        # The agent may have changed since the session was created.
        _check_tools(agent, config.tools or (), config.app_tools or ())
        return config
    given = dict(overrides.options or {}) if overrides else {}
    hidden = {option.name for option in agent.options if option.secret}
    # Responses contain `***` for secrets; a client that sends it back has not changed them.
    given = {name: value for name, value in given.items() if not (name in hidden and value == HIDDEN)}
    agent.check_options(given, config.workspace_key)
    options = {**config.options, **{n: v for n, v in given.items() if n not in hidden}}
    secrets = {**config.secrets, **{n: v for n, v in given.items() if n in hidden}}
    grants = config.tools
    if overrides and overrides.tools is not None:
        grants = tuple(ToolGrant(tool.name, tool.trust) for tool in overrides.tools)
    app_tools = config.app_tools
    if tools is not None:
        app_tools = tuple(ToolSpec(tool.name, tool.description, tool.input_schema, tool.title) for tool in tools)
    _check_tools(agent, grants or (), app_tools or ())
    return replace(config, options=options, secrets=secrets, tools=grants, app_tools=app_tools)


def _check_tools(agent: ConfiguredAgent, grants: Iterable[ToolGrant], app_tools: Iterable[ToolSpec]) -> None:
    exposed = {tool.name for tool in agent.info.tools}
    for grant in grants:
        if grant.name not in exposed:
            known = f"its tools are {', '.join(sorted(exposed))}" if exposed else "it has none"
            raise BadRequest(f"agent.tools: agent {agent.name!r} has no tool {grant.name!r}; {known}")
    seen: set[str] = set()
    for tool in app_tools:
        if not agent.info.app_tools:
            raise BadRequest(f"tools: agent {agent.name!r} takes no application-side tools; leave {tool.name!r} out")
        if tool.name in exposed or tool.name in seen:
            raise BadRequest(f"tools: the name {tool.name!r} is taken by another tool; tool names must be unique in a request")
        seen.add(tool.name)
