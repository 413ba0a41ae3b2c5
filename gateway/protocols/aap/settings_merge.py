"""Merges the options and tools of a request into a session's settings. Raises BadRequest for what the agent does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from drivers.contract.driver_info import ToolGrant, ToolSpec
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.protocols.aap.agent_info import given_values
from gateway.protocols.aap.schema import AgentOverrides, Tool
from gateway.runs.answer_format import AnswerFormat, require_schema
from gateway.security.redaction import HIDDEN
from gateway.sessions.settings import SessionSettings
from gateway.sessions.tool_checks import check_tools


def merge_settings(
    config: SessionSettings,
    agent: ConfiguredAgent,
    overrides: AgentOverrides | None,
    tools: Iterable[Tool] | None,
    agents: Iterable[ConfiguredAgent] = (),
    *,
    any_folder: bool = False,
) -> SessionSettings:
    """Return a session's settings with those of a request: options merge by key, tool lists replace.

    `any_folder` is the caller's right to name folders outside of the agent's own.

    Raises BadRequest. If the agent cannot have a tool, the error names those of `agents` that can.
    """
    if overrides is None and tools is None:
        # The agent may have changed since the session was created.
        check_tools(agent, (), config.app_tools or (), agents)
        return config
    given = given_values(agent, overrides.options or {}) if overrides else {}
    hidden = {option.name for option in agent.options if option.secret}
    # Responses contain `***` for secrets; a client that sends it back has not changed them.
    given = {name: value for name, value in given.items() if not (name in hidden and value == HIDDEN)}
    # A client may send the folder that the session has.
    same_folder = "cwd" in given and given["cwd"] == config.options.get("cwd")
    if config.worktree is not None and "cwd" in given and not same_folder:
        raise BadRequest(
            f"option 'cwd': this session works in its worktree {config.worktree.path}; create a session for another folder"
        )
    agent.check_options(given, config.workspace_key, any_folder=any_folder or same_folder)
    options = {**config.options, **{n: v for n, v in given.items() if n not in hidden}}
    secrets = {**config.secrets, **{n: v for n, v in given.items() if n in hidden}}
    grants = config.tools
    if overrides and overrides.tools is not None:
        grants = tuple(ToolGrant(tool.name, tool.trust) for tool in overrides.tools)
    app_tools = config.app_tools
    if tools is not None:
        app_tools = tuple(ToolSpec(tool.name, tool.description, tool.input_schema, tool.title) for tool in tools)
    # A choice of the client may have trusted a tool that the agent does not list, such as one of an MCP server of its own.
    known = {grant.name for grant in config.tools or ()}
    check_tools(agent, (grant for grant in grants or () if grant.name not in known), app_tools or (), agents)
    return replace(config, options=options, secrets=secrets, tools=grants, app_tools=app_tools)


def with_output_schema(config: SessionSettings, schema: Mapping[str, Any] | None) -> SessionSettings:
    """Return the settings with the schema of the answer, if a request has one. It may take long. Raises BadRequest."""
    if schema is None:
        return config
    require_schema(schema, "output_schema")
    return replace(config, answer=AnswerFormat(schema))
