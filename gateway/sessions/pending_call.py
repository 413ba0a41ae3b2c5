"""A call that waits for the client, with all that a person needs to decide about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from drivers.contract.events import PermissionChoice


@dataclass(frozen=True, slots=True)
class PendingCall:
    """`title` is the tool's name for people, None where it has none. `choices` are the answers to a request for permission."""

    id: str
    name: str
    title: str | None = None
    input: Mapping[str, Any] = field(default_factory=dict)
    wants: Literal["result", "permission", "answer"] = "permission"
    optional: bool = False
    choices: Sequence[PermissionChoice] = ()
