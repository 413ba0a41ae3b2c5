"""The contract of a driver: what the gateway asks of it, in plain data. No HTTP, no sessions, no protocols here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivers.events import OutputEvent, SlashCommand
from drivers.mcp_servers import McpServer, Transport
from drivers.messages import Content, Message, text_of
from drivers.services import ClientServices

# DriverError            something outside the gateway is not as it must be; the text says what to do
# ├── AgentUnavailable   the agent cannot start here: no program, no login, a broken folder
# ├── AgentGone          its process has ended; a fresh one is needed
# └── ResumeFailed       the native session to resume is not there any more


class DriverError(Exception):
    """A failure of an agent, told for people."""


class AgentUnavailable(DriverError):
    """The agent cannot be started: its program or its login is missing."""


class AgentGone(DriverError):
    """The agent's process has ended."""


class ResumeFailed(DriverError):
    """The native session that was to be resumed does not exist any more."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of an agent that a session may give. `choices` makes it a select, `secret` hides it everywhere."""

    name: str
    title: str
    description: str
    default: str = ""
    choices: tuple[str, ...] = ()
    secret: bool = False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool: its name, what it does, and the JSON schema of its input."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    title: str | None = None


@dataclass(frozen=True, slots=True)
class ToolGrant:
    """One of the agent's own tools, enabled; a trusted one runs without asking."""

    name: str
    trust: bool = False


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """What a driver can do. Nothing stands here that is not so.

    `env` are patterns of variables (as in fnmatch) that its CLI needs from the gateway's own environment, such as the
    vendor's keys. `program` is the CLI's usual name on PATH; None for a driver that brings its own. `seeds`: a fresh native
    session can be given a history; `system`: it can be given a system prompt. `mcp` are the kinds of MCP servers that a client
    may bring along. `compaction`: when its CLI compacts the conversation, a `compacted` event says what is left of it.
    `steers`: it can be told something while it is at work. `slash_option` is the option that has to be `on` for a `/` at the
    beginning of a prompt to be a command; None if it always may be one. `additional_directories`: a session can be given folders
    to work in besides its working folder; None where only the program itself can say so (see Probe). `asks_client`: its CLI is
    told at its start which files and terminals the session's client does, so that it is started anew for one that offers others.
    """

    title: str
    description: str
    program: str | None = None
    install: str = ""
    version: str = "0.0.0"
    tools: tuple[ToolSpec, ...] = ()
    options: tuple[Option, ...] = ()
    env: tuple[str, ...] = ()
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


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found of an agent's program: its version, or the problem and what to do about it.

    `logged_in` is None where the CLI cannot say; `models` are the values that the option `model` may have, where it can.
    `images` is False where the program says that it takes none, whatever the driver's info says. `commands` are the slash
    commands that it has in every folder, where it tells them without being prompted. `additional_directories` is whether it
    takes folders besides the working folder, None where it does not say. `options` are settings that the program itself
    offers, each with its choices: over the driver's option of that name, or beside those.
    """

    version: str | None = None
    problem: str | None = None
    logged_in: bool | None = None
    models: tuple[str, ...] = ()
    images: bool | None = None
    commands: tuple[SlashCommand, ...] = ()
    additional_directories: bool | None = None
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of an application-side tool that an agent makes by MCP. `call_id` is the agent's own id of it, if it says so."""

    id: str
    name: str
    input: Mapping[str, Any]
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What comes of a ToolRequest, for the model."""

    id: str
    content: Content
    is_error: bool = False


class ToolServer(ABC):
    """An MCP server on loopback that offers one agent's process its application-side tools, to whoever has the token."""

    url: str
    token: str

    @abstractmethod
    def listen(self, called: Callable[[ToolRequest], None], withdrawn: Callable[[str], None]) -> None:
        """Who hears of the calls, and by their ids of those that the agent gave up."""

    @abstractmethod
    def answer(self, answer: ToolAnswer) -> None:
        """Answer a call; one that was given up is passed over."""

    @abstractmethod
    async def close(self) -> None:
        """Take no more calls; the token is of no more use. Idempotent."""


ToolHost = Callable[[Sequence[ToolSpec]], Awaitable[ToolServer]]
"""Opens a ToolServer for these tools."""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """Where and as what an agent runs: program and arguments, working folder, and its whole environment.

    `state` is a folder of its own, for what the CLI keeps of this session or task; it is removed with it. The driver makes
    it if it needs one; None where nothing is to be kept.
    """

    program: str
    cwd: Path
    env: Mapping[str, str]
    args: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    state: Path | None = None


@dataclass(frozen=True, slots=True)
class SessionSpec(AgentSpec):
    """A live session to open. `resume` is tried first; `history` is what a fresh native session is seeded with.

    A driver whose CLI takes `app_tools` by MCP opens a `tool_server` for them, by `tool_host`. `additional_directories` are all
    the folders that it may work in besides `cwd`, absolute and real; a native session that is resumed has these and no others.
    `services` is what the session's client does itself for a CLI that asks its client for files and terminals.
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


@dataclass(frozen=True, slots=True)
class TaskSpec(AgentSpec):
    """One task, one process, one stream of events."""

    task: str = ""
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the user says: text, or blocks with images.

    With `go_on` it is not the user who speaks: the agent is to go on from the tool results that its history ends in. A driver
    may know a better way to say so than this text.
    """

    content: Content
    go_on: bool = False

    @property
    def text(self) -> str:
        return text_of(self.content)


GO_ON = Prompt("Continue from where you left off.", go_on=True)


@dataclass(frozen=True, slots=True)
class PermissionReply:
    """The client's word on one of the agent's own calls."""

    call_id: str
    granted: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The client's result of one application-side call."""

    call_id: str
    content: Content


Reply = PermissionReply | ToolReply


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of an agent, in seconds; 0 is none. They rest while the agent waits for the client.

    `start`: from the process' start until it takes a prompt, or until a task's first line. `idle`: without any output.
    `total`: one run. `grace`: between asking a process to end and killing it.
    """

    start: float = 60.0
    idle: float = 900.0
    total: float = 7200.0
    grace: float = 3.0


class Agent(ABC):
    """A live native session. One prompt at a time; `receive` gives that prompt's events, `session_end` last."""

    native_id: str | None = None

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it can take a prompt."""

    @abstractmethod
    async def prompt(self, prompt: Prompt) -> None:
        """Start a run. Raises AgentGone if the process has ended."""

    @abstractmethod
    async def receive(self) -> Sequence[OutputEvent]:
        """The next events, at least one, as many as are ready. Safe to cancel: nothing is lost."""

    @abstractmethod
    async def reply(self, reply: Reply) -> None:
        """Answer a call that was announced as awaiting."""

    async def steer(self, prompt: Prompt) -> bool:
        """Say something to the agent at work, which it takes up when it can. False if it cannot be told now, or never can."""
        return False

    @abstractmethod
    async def interrupt(self, grace: float | None = None) -> None:
        """Stop the run; its `session_end` still comes, within the grace time: `grace` seconds, or as long as the limits say."""

    @abstractmethod
    async def close(self, grace: float | None = None) -> None:
        """End the native process with everything that it started; a run under way still gets its `session_end`.

        `grace` is how many seconds it may take to end by itself; None is as long as the limits say. Idempotent.
        """
