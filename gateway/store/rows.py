"""What the store takes and gives, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drivers.contract.events import Usage

Cursor = tuple[float, str]
"""Where a page of sessions ended: `created_at` and id of its last session."""
EXECUTION_PREFIX = "exec_"
"""The ids of executions' logs begin with it."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as stored. `config` is JSON data without secrets; `secrets` is ciphertext. `forked_from` is the id of the session
    whose messages it began with. `queue_stopped` is why its queued messages do not begin before a client says to go on.
    """

    id: str
    agent: str
    config: Mapping[str, Any] = field(default_factory=dict)
    secrets: bytes | None = None
    native_id: str | None = None
    created_at: float = 0.0
    owner: str | None = None
    forked_from: str | None = None
    queue_stopped: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsRecord:
    """New settings of a session. `config` is JSON data without secrets; `secrets` is ciphertext."""

    config: Mapping[str, Any]
    secrets: bytes | None


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """A message that waits for its turn. `message` is JSON. `settings` are those that the turn changes, None if it changes none.

    `key` and `digest` are the hashes of the request's idempotency key and of the request; None without a key.
    """

    id: str
    message: str
    created_at: float
    settings: SettingsRecord | None = None
    key: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message as JSON, with the number of the event that completed it: the last of its output, or the turn's first for what a
    client sends. None for messages that a session was created with.

    `text` is what the search finds it by. The store keeps the words of it, so that it is empty in a message that is read.
    """

    body: str
    seq: int | None = None
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class EventRow:
    """The events first..last of a log, one JSON a line."""

    log_id: str
    first: int
    last: int
    body: bytes


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An idempotency key: hashes of the key and of the request, and the log that has the answer, from event `first_seq` on."""

    key: str
    digest: str
    log_id: str
    first_seq: int


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as stored. `state` is `running`, `waiting` (for the client) or `ended`; `waiting_since` is in
    seconds since the epoch.
    """

    id: str
    log_id: str
    state: str
    stop_reason: str | None
    first_seq: int
    waiting_since: float | None = None


@dataclass(frozen=True, slots=True)
class RunTimes:
    """A run of a log with its times, in seconds since the epoch; `ended_at` is None while it has not ended."""

    id: str
    first_seq: int
    started_at: float
    ended_at: float | None
    state: str
    stop_reason: str | None


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """An answer of a session that a client names by its id: the events `first_seq` to `last_seq` of the session's log.

    `last_seq` and `completed_at` are None while it is not over, or not known to be. Times are in seconds since the epoch. `body`
    is JSON data of the protocol's own.
    """

    id: str
    session_id: str
    first_seq: int
    created_at: float
    body: Mapping[str, Any]
    conversation_id: str | None = None
    last_seq: int | None = None
    completed_at: float | None = None


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """A name of a conversation, which answers of one or more sessions belong to. `body` is JSON data of the protocol's own."""

    id: str
    owner: str | None
    created_at: float
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Why a run failed. `without_text`: its last turn has no text of the agent."""

    reason: str
    without_text: bool


@dataclass(frozen=True, slots=True)
class SessionListRow:
    """A session in a list. `title` is the user's, or reported by its agent, `first_user_message` is JSON; times are in seconds
    since the epoch.
    """

    id: str
    config: Mapping[str, Any]
    created_at: float
    used_at: float
    title: str | None
    first_user_message: str | None


@dataclass(frozen=True, slots=True)
class SessionDetails:
    """What a list shows of a session besides its settings. `run` is its last one, `error` why that failed.

    `last_seq` is the number of its last stored event, 0 if it has none; `queued` is how many messages wait for their turns.
    """

    row: SessionListRow
    run: RunRecord | None
    error: str | None
    usage: Usage | None
    last_seq: int = 0
    queued: int = 0


@dataclass(frozen=True, slots=True)
class SessionMetadataRecord:
    """What an agent has reported about its session: a title, and the event with its slash commands as JSON. None is unknown.

    `chosen_title` is that of the user, if there is one.
    """

    title: str | None = None
    commands: str | None = None
    chosen_title: str | None = None


@dataclass(frozen=True, slots=True)
class WorktreeRecord:
    """A worktree of a session, which may have been deleted since. `owner` is the name of the session's key.

    `repository` is the absolute git directory that all worktrees of the repository share, `git_dir` that of this one (empty until
    it is known), and `path` the folder with its files. It began at `base_commit`, on the branch `branch`; it is merged into
    `base_branch`, None if there was no branch. `ready` is false while it is being created. `created_at` is in seconds since the
    epoch.
    """

    session_id: str
    owner: str | None
    agent: str
    repository: str
    git_dir: str
    path: str
    branch: str
    base_branch: str | None
    base_commit: str
    created_at: float
    ready: bool = False


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
