"""What is to be started: a session or a task, with its program, folder, environment, options, tools and time limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drivers.contract.client_services import ClientServices
from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.mcp_servers import McpServer
from drivers.contract.messages import Message
from drivers.contract.tool_server import ToolHost, ToolServer


def no_rules(tool: str) -> bool:
    """For sessions without rules about tools."""
    return False


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """Where and as what an agent runs: program and arguments, working folder, and its whole environment.

    `cwd` is a real path: a symbolic link in it has been created since it was checked, and the process is not started there.
    `state` is a folder of its own, for what the CLI keeps of this session or task; it is removed with it. The driver makes
    it if it needs one; None where nothing is to be kept. `confined`: its processes are in the gateway's sandbox.
    """

    program: str
    cwd: Path
    env: Mapping[str, str]
    args: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    state: Path | None = None
    confined: bool = False
    locked: frozenset[str] = frozenset()
    """The options that the configuration locks: no prompt may change them, either."""


@dataclass(frozen=True, slots=True)
class SessionSpec(AgentSpec):
    """A live session to open. `resume` is tried first; `history` is what a fresh native session is seeded with.

    A driver whose CLI takes `app_tools` by MCP opens a `tool_server` for them, by `tool_host`. `additional_directories` are all
    the folders that it may work in besides `cwd`, absolute and real; a native session that is resumed has these and no others.
    `services` handles requests of the CLI to its client, for files and terminals. `modes` are the ids of the CLI's own modes that
    the session may have. In such a mode the CLI decides about calls of tools that are not trusted, but not before the gateway
    has been asked where `ruled` is True for the tool: a rule of the gateway may deny such a call, or ask about it. With
    `ruled_servers` a rule may do so for some tool of the client's MCP servers, whose names are not known before they start.
    With `lasting_choices` the choices of a permission request may change files of the CLI, which apply to other sessions too.
    """

    system: str | None = None
    tools: tuple[ToolGrant, ...] = ()
    app_tools: tuple[ToolSpec, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    resume: str | None = None
    history: tuple[Message, ...] = ()
    tool_host: ToolHost | None = None
    tool_server: ToolServer | None = None
    additional_directories: tuple[Path, ...] = ()
    services: ClientServices | None = None
    modes: frozenset[str] = frozenset()
    ruled: Callable[[str], bool] = no_rules
    ruled_servers: bool = False
    lasting_choices: bool = True


@dataclass(frozen=True, slots=True)
class TaskSpec(AgentSpec):
    """One task, one process, one stream of events."""

    task: str = ""
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of an agent, in seconds; 0 is none. They do not run while the agent waits for the client.

    `start`: from the process' start until it takes a prompt, or until a task's first line. `idle`: without any output.
    `total`: one run. `grace`: between asking a process to end and killing it.
    """

    start: float = 60.0
    idle: float = 900.0
    total: float = 7200.0
    grace: float = 3.0
