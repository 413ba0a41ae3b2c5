"""What a driver declares (`DriverInfo`) and what a probe finds of a program (`Probe`). By default a driver claims nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from drivers.contract.events import SlashCommand
from drivers.contract.mcp_servers import Transport

ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"]
"""What a tool does, for clients that show it: the kinds of the Agent Client Protocol (page "Tool Calls")."""
TOOL_KINDS: frozenset[str] = frozenset(get_args(ToolKind))

TakesSchema = Literal["with_prompt", "with_session"]
"""Where a CLI takes the JSON schema of its answers: `Prompt.output_schema`, or `SessionSpec.output_schema`, which needs a new
process for another schema."""
PlanChange = Literal["replace", "add", "update"]
"""What a call of a planning tool does: its input has the whole plan, one step more, or the change of one step (`taskId`)."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of an agent that a session may give. The gateway knows the meaning of the names below (`EFFORT_OPTION` …)."""

    name: str
    """A word, unique in the driver."""
    title: str
    """Its name for people."""
    description: str
    """What it does, for people."""
    default: str = ""
    """Its value if neither the configuration nor the session sets it."""
    choices: tuple[str, ...] = ()
    """The possible values, for a select. Empty for any text."""
    secret: bool = False
    """The value is stored encrypted and shown nowhere."""
    sets_others: bool = False
    """The value may set what other options set too. The option is locked with any other, and options whose names begin with its
    name and a dot may appear with a probe."""


EFFORT_OPTION = "effort"
"""The option with the reasoning effort."""
FAST_OPTION = "fast"
"""The option with the fast mode: `on`, `off`, or empty for the CLI's own setting."""
SLASH_OPTION = "slash_commands"
"""The option that has to be `on` for a `/` at the beginning of a prompt to be a command. Without it a `/` may begin one."""
MODE_OPTION = "mode"
"""The option with the mode of a session, of drivers with `Permissions.modes`."""
ASK_MODE = "ask"
"""The value of MODE_OPTION for which the gateway asks about each call of a tool that is not trusted."""


@dataclass(frozen=True, slots=True)
class PermissionMode:
    """A mode of the CLI itself, in which it decides by its own rules what it asks about."""

    id: str
    """The value of MODE_OPTION."""
    name: str
    """Its name for people."""
    description: str
    """What the CLI does without asking in this mode, for people."""
    unrestricted: bool = False
    """The CLI asks about nothing. Only an agent whose configuration allows it has such a mode."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool: one of the CLI's own, or one of the application."""

    name: str
    """The name by which sessions, rules and events know it."""
    description: str
    """What it does, for people and models."""
    input_schema: Mapping[str, Any]
    """The JSON schema of its input, which is an object."""
    title: str | None = None
    """Its name for people."""
    kind: ToolKind = "other"
    """What it does, by which clients show its calls and group permissions."""


@dataclass(frozen=True, slots=True)
class ToolGrant:
    """One of the agent's own tools, enabled in a session."""

    name: str
    """The name of the tool."""
    trust: bool = False
    """Whether it runs without asking."""


@dataclass(frozen=True, slots=True)
class Login:
    """A login with the agent's program in a terminal."""

    id: str
    """A word by which clients name it."""
    name: str
    """The account, for people."""
    arguments: tuple[str, ...] = ()
    """The program is started with these arguments, and asks the user for the rest."""


@dataclass(frozen=True, slots=True)
class Program:
    """The CLI that a driver starts. Without a name the driver brings its own program."""

    name: str | None = None
    """Its usual name on PATH."""
    install: str = ""
    """A command that installs it."""
    logins: tuple[Login, ...] = ()
    """The ways to log in with it, the usual one first."""
    env: tuple[str, ...] = ()
    """Patterns (fnmatch) of the variables that it gets from the gateway's own environment, such as the vendor's keys."""
    set_env: Mapping[str, str] = field(default_factory=dict)
    """Variables that it gets with these values, whatever the gateway's own environment has. The configuration may set others."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a session of the agent can do. A request for anything else is refused."""

    seeds: bool = False
    """A fresh native session takes a history (`SessionSeed.history`)."""
    system: bool = False
    """A session takes a system prompt (`SessionSeed.system`)."""
    image_http: bool = False
    """A prompt may have images by their `https:` address."""
    image_data: bool = False
    """A prompt may have images as `data:` URIs."""
    app_tools: bool = False
    """The model can call application-side tools (`SessionSpec.app_tools`)."""
    steers: bool = False
    """The CLI takes messages while it works. Its codec has the base class `SupportsSteering`."""
    compaction: bool = False
    """When the CLI compacts the conversation, a `compacted` event has what is left of it."""
    additional_directories: bool | None = False
    """A session takes folders to work in besides its working folder. None if that depends on the program (see Probe)."""
    asks_client: bool = False
    """The CLI learns at its start which requests for files and terminals the session's client supports (`SessionSpec.services`).
    It is restarted for a client that supports others."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """How the CLI itself decides about the calls of its tools (docs/who-decides.md)."""

    modes: tuple[PermissionMode, ...] = ()
    """The modes of the CLI itself, which MODE_OPTION sets. The first one has the CLI's own rules, and asks about the rest."""
    question_tools: frozenset[str] = frozenset()
    """Tools whose calls are questions to the user. The answer is their result."""


@dataclass(frozen=True, slots=True)
class Mcp:
    """The CLI's own MCP client."""

    transports: frozenset[Transport] = frozenset()
    """The transports of MCP servers that a session's client may configure (`SessionSpec.mcp_servers`)."""
    tool_prefix: str | None = None
    """How the names of the tools of such servers begin. None if they have other names."""
    call_id_keys: tuple[str, ...] = ()
    """The keys in the `_meta` of a `tools/call` request under which the CLI sends its own id of the call."""


@dataclass(frozen=True, slots=True)
class Display:
    """How clients display the calls of the CLI's tools.

    The title of a call has the title of its tool, or else the name, and the `command` of its input, its `pattern`, one of
    `path_fields`, or one of `title_fields`.
    """

    tool_kinds: Mapping[str, ToolKind] = field(default_factory=dict)
    """The kinds of tools that are not in `DriverInfo.tools`, such as aliases."""
    path_fields: tuple[str, ...] = ("file_path", "path", "notebook_path", "dir_path", "absolute_path")
    """The fields of an input that name files."""
    title_fields: tuple[str, ...] = ("query", "url", "subject", "description", "prompt", "title", "skill")
    """The fields of an input that describe the call."""
    error_prefixes: tuple[str, ...] = ()
    """How the stored results of failed calls begin."""
    plan_tools: Mapping[str, PlanChange] = field(default_factory=dict)
    """The tools whose calls change the agent's plan."""


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """What a driver can do. It is always the same; a probe reports what is installed."""

    title: str
    """The name of the agent for people."""
    description: str
    """What the agent is, for people."""
    version: str = "0.0.0"
    """The version of a program that the driver brings. Others are asked for theirs (see Probe)."""
    program: Program = Program()
    """The CLI that the driver starts."""
    tools: tuple[ToolSpec, ...] = ()
    """The CLI's own tools that a session may enable."""
    options: tuple[Option, ...] = ()
    """The settings that a session may give."""
    capabilities: Capabilities = Capabilities()
    """What a session can do."""
    permissions: Permissions = Permissions()
    """How the CLI itself decides about calls."""
    mcp: Mcp = Mcp()
    """The CLI's own MCP client."""
    display: Display = Display()
    """How clients display calls."""

    def tool_title(self, name: str) -> str:
        """Return the title of the tool of that name, or the name if it has none."""
        return next((tool.title for tool in self.tools if tool.name == name and tool.title), name)

    def tool_kind(self, name: str) -> ToolKind:
        """Return the kind of the tool of that name. A tool whose name is a kind has that kind; an unknown one is `other`."""
        if name in TOOL_KINDS:
            return name  # type: ignore[return-value]
        listed = next((tool.kind for tool in self.tools if tool.name == name), None)
        return listed or self.display.tool_kinds.get(name, "other")


@dataclass(frozen=True, slots=True)
class ModelName:
    """What the CLI displays for a value of the option `model`."""

    value: str
    """The value of the option."""
    name: str
    """Its name for people."""
    description: str = ""
    """What the CLI says of the model."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found of an agent's program."""

    version: str | None = None
    """The version that is installed."""
    problem: str | None = None
    """Why it cannot be used, and what to do about it."""
    logged_in: bool | None = None
    """None if the CLI does not report it."""
    models: tuple[str, ...] = ()
    """The values of the option `model`, if the CLI lists them."""
    images: bool | None = None
    """False if the program takes none, whatever the driver's info has."""
    commands: tuple[SlashCommand, ...] = ()
    """The slash commands that it has in every folder, if it lists them without a prompt."""
    additional_directories: bool | None = None
    """Whether it takes folders besides the working folder. None if it does not report it."""
    options: tuple[Option, ...] = ()
    """Settings of the program itself, each with its choices. They override the driver's options of the same names."""
    model_names: tuple[ModelName, ...] = ()
    """The names of those models that have one."""
    efforts: tuple[str, ...] = ()
    """The values of EFFORT_OPTION, of all models together."""
    fast_models: tuple[str, ...] = ()
    """The models that have a fast mode."""
