"""The rows as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as stored. `config` is JSON data without secrets; `secrets` is ciphertext."""

    id: str
    agent: str
    config: Mapping[str, Any] = field(default_factory=dict)
    secrets: bytes | None = None
    native_id: str | None = None
    created_at: float = 0.0
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class EventRow:
    """The events first..last of a log, one JSON a line."""

    log_id: str
    first: int
    last: int
    body: bytes


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An idempotency key, hashed: the request's digest, and the log in which its answer is, from `first_seq` on."""

    key: str
    digest: str
    log_id: str
    first_seq: int


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as stored: `running`, `waiting` (for the client) or `ended`."""

    id: str
    log_id: str
    state: str
    stop_reason: str | None
    first_seq: int
    waiting_since: float | None = None


@dataclass(frozen=True, slots=True)
class SessionCard:
    """A session as a list shows it. `title` is its agent's, `first_words` the JSON of its first user message."""

    id: str
    config: Mapping[str, Any]
    created_at: float
    used_at: float
    title: str | None
    first_words: str | None


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A decision about a tool call as stored. `at` is in seconds since the epoch, `arguments` shortened JSON without secrets."""

    at: float
    session_id: str
    run_id: str
    agent: str
    tool: str
    call_id: str
    outcome: str
    by: str
    reason: str | None
    arguments: str
