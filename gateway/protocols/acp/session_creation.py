"""Creates the session of a `session/new` without the `acp` package.

The agent of the first session of a connection starts while that is imported.
Protocol page: https://agentclientprotocol.com/protocol/session-setup
"""

from __future__ import annotations

from functools import partial
from typing import Any

from drivers.contract.driver_info import MODE_OPTION, SLASH_OPTION, ToolGrant
from drivers.contract.mcp_servers import McpServer
from gateway.agents.configured_agents import CWD, ConfiguredAgent
from gateway.agents.folder_access import FOLDER_OF_SESSION, in_time, notice_update
from gateway.app import Gateway
from gateway.errors import AgentProblem
from gateway.protocols.acp.client_options import system_messages, with_client_options, with_system_prompt
from gateway.protocols.acp.directories import require_string_directories, with_directories
from gateway.protocols.acp.mcp_servers import mcp_servers_for
from gateway.protocols.acp.rpc import AUTH_REQUIRED, RpcError
from gateway.protocols.acp.session_requests import AnySessionRequest, NewSessionRequest
from gateway.security.authentication import Caller
from gateway.sessions.session import Session
from gateway.sessions.settings import SessionSettings


async def create_session(
    gateway: Gateway, agent: ConfiguredAgent, caller: Caller, slash_commands: str | None, params: Any, *, here: bool = False
) -> Session:
    """Create the session that the parameters of `session/new` describe. Its agent is not started yet.

    `slash_commands` is `on` or `off` if the connection asks for it. `here`: no other node of a cluster creates it, however loaded
    this one is, unless this one is drained or has not the folder. Raises ValidationError and GatewayError for what cannot be,
    and RpcError if the agent's program is not logged in.
    """
    require_string_directories(params)
    request = NewSessionRequest.model_validate(params)
    await notice_update(agent)
    if (problem := agent.installation.problem) is not None:
        raise AgentProblem(problem)
    await refuse_without_login(gateway, agent)
    settings = SessionSettings(
        options=_command_option(agent, slash_commands) | _initial_mode(agent),
        tools=_all_tools(agent),
        mcp_servers=await checked_servers(gateway, agent, request),
        workspace_key=agent.workspace_key(caller.name),
    )
    meta = with_system_prompt(request.field_meta, request.system_prompt)
    settings = with_client_options(agent, settings, meta)
    prompt = system_messages(agent, meta)
    with_folders = partial(with_directories, settings, agent, request, any_folder=caller.any_folder)
    config = await in_time(with_folders, FOLDER_OF_SESSION)
    if here:
        await gateway.sessions.place(agent.name, config.options.get(CWD.name), here=True)
    return await gateway.sessions.create(caller, agent, config, prompt, here=here)


async def refuse_without_login(gateway: Gateway, agent: ConfiguredAgent, *, anew: bool = False) -> None:
    """Raise RpcError if the agent's program is not logged in, and AgentProblem if it is older than the oldest supported version.

    With `anew`, the program is asked in any case.
    """
    finding = await gateway.discovery.probe(agent, refresh=anew)
    await gateway.discovery.check_supported(agent)
    if finding.probe.logged_in is False and not anew:
        # The user may have logged in since.
        finding = await gateway.discovery.probe(agent, refresh=True)
    if finding.probe.logged_in is False:
        raise RpcError(AUTH_REQUIRED, finding.problem or f"agent {agent.name!r} is not logged in")


async def checked_servers(
    gateway: Gateway, agent: ConfiguredAgent, request: AnySessionRequest, session_id: str = ""
) -> tuple[McpServer, ...]:
    """Return the MCP servers of a request. `session_id` is empty for a new session. Raises BadRequest and Forbidden."""
    servers = mcp_servers_for(request.mcp_servers or (), agent)
    await gateway.sessions.check_mcp_servers(agent, servers, session_id)
    return servers


def _all_tools(agent: ConfiguredAgent) -> tuple[ToolGrant, ...]:
    """Return all tools of the agent, none of them trusted: an ACP client expects that they are enabled and need permission."""
    return tuple(ToolGrant(tool.name) for tool in agent.info.tools)


def _initial_mode(agent: ConfiguredAgent) -> dict[str, str]:
    """Return the option of a new session that sets the mode for editors; empty if the configuration decides."""
    mode = agent.editor_mode
    return {} if mode == agent.mode({}) else {MODE_OPTION: mode}


def _command_option(agent: ConfiguredAgent, requested: str | None) -> dict[str, str]:
    """Return the option of a new session that turns slash commands on or off; empty if the configuration decides.

    `requested` is what the connection asks for, `on` or `off`. Without a request they are on, unless the configuration sets the
    option, or locks any option but `cwd`: a command of the CLI may change what is locked.
    """
    if SLASH_OPTION in agent.locked or not any(option.name == SLASH_OPTION for option in agent.info.options):
        return {}
    if requested is not None:
        return {SLASH_OPTION: requested}
    return {} if SLASH_OPTION in agent.settings.options or agent.locked - {CWD.name} else {SLASH_OPTION: "on"}
