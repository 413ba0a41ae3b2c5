"""The compaction of claude's conversation: a boundary line, and the summary in a synthetic line of the user.

Shapes as printed by claude 2.1.329, by the command `/compact` and when the context is full (tests/transcripts/claude/compact*).
"""

from __future__ import annotations

from typing import Any

from drivers.claude.content import output_of
from drivers.contract.events import Compacted

REMEMBERED = 2000
"""Lines. The CLI keeps the newest messages word for word, of some 10,000 tokens."""


class Compaction:
    """The compactions of one process. `read` takes every line of a message, `begin` the boundaries."""

    def __init__(self) -> None:
        self._message_of: dict[str, str | None] = {}
        self._boundary: dict[str, Any] | None = None

    def begin(self, native: dict[str, Any]) -> None:
        """A `compact_boundary` line; the summary is in the next user's line."""
        self._boundary = dict(native["compact_metadata"])

    def read(self, native: dict[str, Any]) -> list[Compacted]:
        """The event of a line that follows a boundary: it has the summary if it is synthetic."""
        if native.get("parent_tool_use_id") is not None:
            return []
        kind, synthetic = native["type"], bool(native.get("isSynthetic"))
        if kind == "assistant":
            # One line a block, each with an id of its own.
            self._remember(native, native["message"]["id"])
        elif kind == "user" and synthetic:
            self._remember(native, None)
        if kind != "user" or self._boundary is None:
            return []
        return self._compacted(native["message"]["content"] if synthetic else None)

    def end(self) -> list[Compacted]:
        """The turn is over: a boundary without a summary becomes an event too."""
        return self._compacted(None) if self._boundary is not None else []

    def _compacted(self, content: Any) -> list[Compacted]:
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
