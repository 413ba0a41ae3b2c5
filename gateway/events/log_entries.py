"""The entries of a session's log: the output of its agent (`OutputEvent`), and between that the messages of its clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from drivers.contract.events import Event, OutputEvent
from drivers.contract.messages import ToolMessage, UserMessage


class ClientPermission(BaseModel):
    """The client's decision on a call that waited for its permission."""

    model_config = ConfigDict(frozen=True)
    call_id: str
    granted: bool
    reason: str | None = None
    choice: str | None = None
    """The id of the `PermissionChoice` that the client has chosen, if it was one of the CLI's."""


class TurnStart(Event):
    """A turn begins: with the user's message, or with the client's answers to the pending calls."""

    kind: Literal["turn_start"] = "turn_start"
    messages: tuple[Annotated[UserMessage | ToolMessage, Field(discriminator="role")], ...] = ()
    permissions: tuple[ClientPermission, ...] = ()


class Steered(Event):
    """The user sent a message to the agent at work."""

    kind: Literal["steered"] = "steered"
    message: UserMessage


LogEvent = OutputEvent | TurnStart | Steered
_EVENT: TypeAdapter[LogEvent] = TypeAdapter(Annotated[LogEvent, Field(discriminator="kind")])


def decode(data: bytes) -> LogEvent:
    """The event that `encode()` wrote. Raises pydantic.ValidationError for anything else."""
    return _EVENT.validate_json(data)
