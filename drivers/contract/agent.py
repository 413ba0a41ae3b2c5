"""The contract of an agent: a live native session, its prompts, and the client's replies to its calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from drivers.contract.events import Commands, OutputEvent
from drivers.contract.messages import Content, text_of


@dataclass(frozen=True, slots=True)
class Prompt:
    """A message for the agent."""

    content: Content
    """Text, or blocks with images."""
    go_on: bool = False
    """The message is not the user's: the agent is to continue from the tool results that its history ends in. A driver may send
    something else than this text."""
    output_schema: Mapping[str, Any] | None = None
    """The JSON schema of the answer, if the driver takes it with a prompt (`Driver.takes_schema`)."""

    @property
    def text(self) -> str:
        return text_of(self.content)


GO_ON = Prompt("Continue from where you left off.", go_on=True)
AFTER_LIMIT = Prompt("The usage limit that stopped this task has been reset. Go on with it.", go_on=True)
"""Continues a session whose last run has ended because of a usage limit."""


Decision = Literal["allow", "deny", "leave"]
"""`leave`: the gateway has no objection, and the CLI decides by its own rules. Only for a call that is `decided_by` the CLI."""


@dataclass(frozen=True, slots=True)
class PermissionReply:
    """The decision on one of the agent's own calls: of the client, a rule or the trust in its tool."""

    call_id: str
    """The id of the call in `Awaiting`."""
    decision: Decision
    """Whether the call runs."""
    reason: str | None = None
    """Why the call is denied, for the model."""
    choice: str | None = None
    """The id of the `PermissionChoice` that the client has chosen, if it was one of the CLI's."""

    @property
    def allowed(self) -> bool:
        """Whether the gateway does not deny the call."""
        return self.decision != "deny"


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The client's result of an application-side call, or the user's answer to the questions of a call."""

    call_id: str
    """The id of the call in `Awaiting`."""
    content: Content
    """The result, for the model."""


Reply = PermissionReply | ToolReply


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What the process of an agent takes, with everything that it has started."""

    pid: int
    """The number of the process that the gateway has started."""
    processes: int
    """How many there are."""
    memory: int
    """Bytes, resident: what processes share counts for each."""
    cpu: float
    """The percentage of one processor at this moment."""
    started_at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class DeniedCall:
    """A tool call that a driver has denied without asking the client."""

    call_id: str
    """The CLI's id of the call."""
    tool: str
    """The name of the tool."""
    input: Any
    """The input of the call."""
    reason: str
    """Why, for the audit."""


class Agent(ABC):
    """A live native session. One prompt at a time; `receive` gives that prompt's events, `session_end` last."""

    native_id: str | None = None
    resumable = True
    """Whether another process can resume the native session."""

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
        """Send a message to the running agent, which reads it when it can. False if it takes none now, or never does.

        Raises InputFull while the agent has not read earlier messages.
        """
        return False

    async def set_mode(self, mode: str) -> bool:
        """Change the mode of the native session, also during a run. False if that needs a new process."""
        return False

    def watch_commands(self, reported: Callable[[Commands], None]) -> bool:
        """Call `reported` with the slash commands that the CLI has listed since its start, and lists between runs from now on.

        The next run reports them too. False if the agent lists none outside of a run.
        """
        return False

    def watch_denials(self, denied: Callable[[DeniedCall], None]) -> None:
        """Call `denied` with each call that the CLI has made outside of a run, and makes from now on.

        No client sees such a call, so its driver denies it, even if its tool is trusted.
        """
        return

    async def process_use(self) -> ProcessUse | None:
        """What its process takes; None while it has none, or where that is not known. Takes a tenth of a second."""
        return None

    @abstractmethod
    async def interrupt(self, grace: float | None = None) -> None:
        """Stop the run. Its `session_end` still comes, within `grace` seconds; None is the grace time of the limits."""

    @abstractmethod
    async def close(self, grace: float | None = None) -> None:
        """End the native process with everything that it started; a run under way still gets its `session_end`.

        `grace` is how many seconds it may take to end by itself; None is the grace time of the limits. Idempotent.
        """
