"""What a driver declares (`DriverInfo`: options, tools, capabilities) and what a probe finds of a program (`Probe`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from drivers.contract.events import SlashCommand
from drivers.contract.mcp_servers import Transport

ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"]
"""What a tool does, for clients that show it: the kinds of the Agent Client Protocol (page "Tool Calls")."""
TOOL_KINDS: frozenset[str] = frozenset(get_args(ToolKind))

PlanChange = Literal["replace", "add", "update"]
"""What a call of a planning tool does: its input has the whole plan, one step more, or the change of one step (`taskId`)."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of an agent that a session may give. `choices` makes it a select, `secret` hides it everywhere.

    `sets_others`: its value may set what other options set too. It is locked with any other, and options whose names begin with
    its name and a dot may appear with a probe.
    """

    name: str
    title: str
    description: str
    default: str = ""
    choices: tuple[str, ...] = ()
    secret: bool = False
    sets_others: bool = False


EFFORT_OPTION = "effort"
"""The option with the reasoning effort, of drivers that have one."""
FAST_OPTION = "fast"
"""The option with the fast mode, of drivers that have one: `on`, `off`, or empty for the CLI's own setting."""
MODE_OPTION = "mode"
"""The option with the mode of a session, of drivers with `modes`."""
ASK_MODE = "ask"
"""The value of the option for which the gateway asks about each call of a tool that is not trusted."""


@dataclass(frozen=True, slots=True)
class PermissionMode:
    """A mode of the CLI itself, in which it decides by its own rules what it asks about.

    `unrestricted`: it asks about nothing. Only an agent whose configuration allows it has such a mode.
    """

    id: str
    name: str
    description: str
    unrestricted: bool = False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool: its name, what it does, the JSON schema of its input, and the kind under which clients show its calls."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    title: str | None = None
    kind: ToolKind = "other"


@dataclass(frozen=True, slots=True)
class ToolGrant:
    """One of the agent's own tools, enabled; a trusted one runs without asking."""

    name: str
    trust: bool = False


@dataclass(frozen=True, slots=True)
class Login:
    """A login with the agent's program in a terminal: it is started with these arguments, and asks the user for the rest."""

    id: str
    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """What a driver can do.

    `env` are patterns of variables (as in fnmatch) that its CLI needs from the gateway's own environment, such as the vendor's
    keys. `set_env` are variables that it gets with these values, whatever the gateway's own environment has, unless the
    configuration sets them. `program` is the CLI's usual name on PATH; None for a driver that brings its own. `logins` are the
    ways to log in with it, the usual one first. `seeds`: a fresh native session takes a history; `system`: it takes a system
    prompt. `mcp` are the transports of MCP servers that a client may configure.
    `compaction`: when its CLI compacts the conversation, a `compacted` event has what is left of it. `steers`: it takes
    messages while it works. `slash_option` is the option that has to be `on` for a `/` at the beginning of a prompt to be a
    command; None if it always may be one. `additional_directories`: a session takes folders to work in besides its working
    folder; None where that depends on the program (see Probe). `asks_client`: its CLI learns at its start which requests for
    files and terminals the session's client supports, so that it is restarted for a client that supports others.

    How clients display the tool calls of this driver: `tool_kinds` has the kinds of tools that are not in `tools`, such as
    aliases. A call's title has the title of its tool, or else the name, and the `command` of its input, its `pattern`,
    one of `path_fields` (which name files), or one of `title_fields`. `error_prefixes` begin the stored results of calls that
    have failed. `plan_tools` are the tools whose calls change the agent's plan. `mcp_tool_prefix` begins the names of tools of
    the client's MCP servers; None if they have other names. `mcp_call_id_keys` are the keys in the `_meta` of an MCP `tools/call`
    request under which the CLI sends its own id of the call.

    `modes` are the modes of the CLI itself, which the option `mode` sets; the first one has the CLI's own rules and asks about
    the rest. `question_tools` are the tools whose calls are questions to the user; the answer is their result.
    """

    title: str
    description: str
    program: str | None = None
    install: str = ""
    logins: tuple[Login, ...] = ()
    version: str = "0.0.0"
    tools: tuple[ToolSpec, ...] = ()
    options: tuple[Option, ...] = ()
    env: tuple[str, ...] = ()
    set_env: Mapping[str, str] = field(default_factory=dict)
    image_http: bool = False
    image_data: bool = False
    app_tools: bool = False
    seeds: bool = True
    system: bool = True
    compaction: bool = False
    mcp: frozenset[Transport] = frozenset()
    steers: bool = False
    slash_option: str | None = None
    additional_directories: bool | None = False
    asks_client: bool = False
    tool_kinds: Mapping[str, ToolKind] = field(default_factory=dict)
    path_fields: tuple[str, ...] = ("file_path", "path", "notebook_path", "dir_path", "absolute_path")
    title_fields: tuple[str, ...] = ("query", "url", "subject", "description", "prompt", "title", "skill")
    error_prefixes: tuple[str, ...] = ()
    plan_tools: Mapping[str, PlanChange] = field(default_factory=dict)
    mcp_tool_prefix: str | None = None
    mcp_call_id_keys: tuple[str, ...] = ()
    modes: tuple[PermissionMode, ...] = ()
    question_tools: frozenset[str] = frozenset()

    def tool_title(self, name: str) -> str:
        """The title of the tool of that name; its name where it has none."""
        return next((tool.title for tool in self.tools if tool.name == name and tool.title), name)

    def tool_kind(self, name: str) -> ToolKind:
        """The kind of the tool of that name. A tool whose name is a kind has that kind; one that is not known is `other`."""
        if name in TOOL_KINDS:
            return name  # type: ignore[return-value]
        listed = next((tool.kind for tool in self.tools if tool.name == name), None)
        return listed or self.tool_kinds.get(name, "other")


@dataclass(frozen=True, slots=True)
class ModelName:
    """What the CLI displays for a value of the option `model`."""

    value: str
    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found of an agent's program: its version, or the problem and what to do about it.

    `logged_in` is None where the CLI does not report it. `models` are the values of the option `model`, where the CLI lists
    them. `images` is False where the program takes none, whatever the driver's info has. `commands` are the slash commands that
    it has in every folder, where it lists them without a prompt. `additional_directories` is whether it takes folders besides
    the working folder, None where it does not report it. `options` are settings of the program itself, each with its choices.
    They override the driver's options of the same names. `model_names` are the names of those models that have one, `efforts` the
    values of the option `effort`, of all models together, and `fast_models` the models that have a fast mode.
    """

    version: str | None = None
    problem: str | None = None
    logged_in: bool | None = None
    models: tuple[str, ...] = ()
    images: bool | None = None
    commands: tuple[SlashCommand, ...] = ()
    additional_directories: bool | None = None
    options: tuple[Option, ...] = ()
    model_names: tuple[ModelName, ...] = ()
    efforts: tuple[str, ...] = ()
    fast_models: tuple[str, ...] = ()
