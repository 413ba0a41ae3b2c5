"""What claude tells of compacting its conversation: a boundary, and the summary in a user's line that it makes up itself.

Shapes as printed by claude 2.1.329, by the command `/compact` and when the context is full (tests/transcripts/claude/compact*).
"""

from __future__ import annotations

from typing import Any

from drivers.claude.content import output_of
from drivers.contract.events import Compacted

REMEMBERED = 2000
"""Lines: what is kept word for word is the newest messages, of some 10,000 tokens."""


class Compaction:
    """One process. Give it every line of a message, and the boundaries."""

    def __init__(self) -> None:
        self._message_of: dict[str, str | None] = {}
        self._boundary: dict[str, Any] | None = None

    def begin(self, native: dict[str, Any]) -> None:
        """A `compact_boundary` line; the summary is in the next user's line."""
        self._boundary = dict(native["compact_metadata"])

    def read(self, native: dict[str, Any]) -> list[Compacted]:
        """What a line of a message tells: the summary that belongs to the boundary before it."""
        if native.get("parent_tool_use_id") is not None:
            return []
        kind, made_up = native["type"], bool(native.get("isSynthetic"))
        if kind == "assistant":
            # One line a block, each with an id of its own.
            self._remember(native, native["message"]["id"])
        elif kind == "user" and made_up:
            self._remember(native, None)
        if kind != "user" or self._boundary is None:
            return []
        return self._told(native["message"]["content"] if made_up else None)

    def end(self) -> list[Compacted]:
        """The turn is over: a boundary without its summary is told as it is."""
        return self._told(None) if self._boundary is not None else []

    def _told(self, content: Any) -> list[Compacted]:
        boundary, self._boundary = self._boundary or {}, None
        summary = output_of(content)
        before = boundary.get("pre_tokens")
        return [
            Compacted(
                summary=summary if isinstance(summary, str) else None,
                kept=self._kept(boundary),
                trigger=boundary.get("trigger"),
                tokens_before=before if isinstance(before, int) else None,
            )
        ]

    def _kept(self, boundary: dict[str, Any]) -> int:
        preserved = boundary.get("preserved_messages") or {}
        return len({self._message_of.get(uuid, uuid) for uuid in preserved.get("uuids") or []} - {None})

    def _remember(self, native: dict[str, Any], message: str | None) -> None:
        self._message_of[str(native.get("uuid"))] = message
        while len(self._message_of) > REMEMBERED:
            del self._message_of[next(iter(self._message_of))]
