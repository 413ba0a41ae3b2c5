"""The entries of a session's log: the output of its agent (`OutputEvent`), and between that the messages of its clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from drivers.contract.agent import PermissionReply
from drivers.contract.events import KINDS, Event, OutputEvent
from drivers.contract.messages import ToolMessage, UserMessage


class TurnStart(Event):
    """A turn begins: with the user's message, or with the client's answers to the pending calls."""

    kind: Literal["turn_start"] = "turn_start"
    messages: tuple[Annotated[UserMessage | ToolMessage, Field(discriminator="role")], ...] = ()
    permissions: tuple[PermissionReply, ...] = ()


class Steered(Event):
    """The user sent a message to the agent at work. `key` is the hash of the request's idempotency key, if it has one."""

    kind: Literal["steered"] = "steered"
    message: UserMessage
    key: str | None = None


class UnknownEvent(Event):
    """An event of a kind that only newer programs know, one of which has stored it. Clients get it from the log only, as JSON."""

    kind: str


_KNOWN = Annotated[OutputEvent | TurnStart | Steered, Field(discriminator="kind")]
LogEvent = OutputEvent | TurnStart | Steered | UnknownEvent
_EVENT: TypeAdapter[OutputEvent | TurnStart | Steered] = TypeAdapter(_KNOWN)
_KINDS = KINDS | {"turn_start", "steered"}


def decode(data: bytes) -> LogEvent:
    """The event that `encode()` wrote. Raises pydantic.ValidationError for anything else that is of a known kind, or of none."""
    try:
        return _EVENT.validate_json(data)
    except ValidationError:
        found = _unknown(data)
        if found is None:
            raise
        return found


def _unknown(data: bytes) -> UnknownEvent | None:
    try:
        found = from_json(data)
    except ValueError:
        return None
    kind = found.get("kind") if isinstance(found, dict) else None
    return UnknownEvent(kind=kind) if isinstance(kind, str) and kind not in _KINDS else None
