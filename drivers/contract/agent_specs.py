"""What is to be started: a session or a task, with its program, folder, environment, options, tools and time limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivers.contract.client_services import ClientServices
from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.mcp_servers import McpServer
from drivers.contract.messages import Message
from drivers.contract.tool_server import ToolHost, ToolServer


def no_rules(tool: str) -> bool:
    """Return False, for sessions without rules about tools."""
    return False


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """Where and as what an agent runs."""

    program: str
    """The program to start."""
    cwd: Path
    """The working folder. It is a real path: the process is not started if a part of it has become a symbolic link."""
    env: Mapping[str, str]
    """The whole environment."""
    args: tuple[str, ...] = ()
    """Arguments of the configuration, which go before the driver's own."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The values of the driver's options, with their defaults."""
    state: Path | None = None
    """A folder of its own, for what the CLI keeps of this session or task. The driver creates it if it needs one; it is removed
    with the session. None if nothing is to be kept."""
    confined: bool = False
    """Its processes are kept from files of their user, in the gateway's sandbox or in a container."""
    locked: frozenset[str] = frozenset()
    """The options that the configuration locks: no prompt may change them, either."""


@dataclass(frozen=True, slots=True)
class SessionSeed:
    """What a session begins with. All three are empty for a new session."""

    resume: str | None = None
    """The CLI's own id of the session to resume. There is no history then."""
    history: tuple[Message, ...] = ()
    """The messages that a fresh native session is seeded with."""
    system: str | None = None
    """The system prompt, also of a session that is resumed."""


@dataclass(frozen=True, slots=True)
class SessionPermissions:
    """What the driver has to know of the gateway's decisions about calls (docs/who-decides.md)."""

    modes: frozenset[str] = frozenset()
    """The ids of the CLI's own modes that the session may have. In such a mode the CLI decides about calls of tools that are not
    trusted."""
    ruled: Callable[[str], bool] = no_rules
    """Whether a rule of the gateway may deny a call of the tool, or ask about it: the gateway has to be asked before the CLI
    decides. A name that ends with `*` stands for all tools whose names begin so."""
    lasting_choices: bool = True
    """Whether the choices of a permission request may change files of the CLI, which apply to other sessions too."""


@dataclass(frozen=True, slots=True)
class SessionSpec(AgentSpec):
    """A live session to open."""

    seed: SessionSeed = SessionSeed()
    """The native session to resume, or the history, and the system prompt."""
    tools: tuple[ToolGrant, ...] = ()
    """The CLI's own tools that the session enables. Tools that are not listed must not run."""
    permissions: SessionPermissions = SessionPermissions()
    """What the CLI itself may decide about calls."""
    app_tools: tuple[ToolSpec, ...] = ()
    """The tools that the application runs."""
    tool_host: ToolHost | None = None
    """Opens `tool_server`, for drivers with `tools_by_mcp`."""
    tool_server: ToolServer | None = None
    """The MCP server of `app_tools`, for drivers with `tools_by_mcp`: the CLI is given its `url` and `token`."""
    mcp_servers: tuple[McpServer, ...] = ()
    """The MCP servers of the session's client, for the CLI's own MCP client. They hold secrets."""
    additional_directories: tuple[Path, ...] = ()
    """All folders to work in besides `cwd`, absolute and real. A resumed native session has these and no others."""
    services: ClientServices | None = None
    """Handles requests of the CLI to its client, for files and terminals."""
    output_schema: Mapping[str, Any] | None = None
    """The JSON schema of each answer, if the driver takes it with a session (`Driver.takes_schema`)."""


@dataclass(frozen=True, slots=True)
class TaskSpec(AgentSpec):
    """One task, one process, one stream of events."""

    task: str = ""
    """The prompt."""
    model: str | None = None
    """The model of this task, before that of the options."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of an agent, in seconds; 0 is none. They do not run while the agent waits for the client."""

    start: float = 60.0
    """From the process' start until it takes a prompt, or until a task's first line."""
    idle: float = 900.0
    """Without any output."""
    total: float = 7200.0
    """One run."""
    grace: float = 3.0
    """Between asking a process to end and killing it."""
