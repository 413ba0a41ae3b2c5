"""Agent: a live native session. What it is asked (`Prompt`), and how its calls are answered (`Reply`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from drivers.contract.events import OutputEvent
from drivers.contract.messages import Content, text_of


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
