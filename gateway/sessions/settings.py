"""The settings that a client gives a session, their form in the store, and the summary of a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from drivers.contract.driver_info import MODE_OPTION, ToolGrant, ToolSpec
from drivers.contract.events import Usage
from drivers.contract.mcp_servers import McpServer, from_text, to_text
from gateway.agents.environment import SECRET_NAMES, is_named
from gateway.errors import AgentProblem
from gateway.runs.answer_format import AnswerFormat
from gateway.security.redaction import is_secret
from gateway.sessions.pending_call import PendingCall
from gateway.worktrees.worktrees import SessionWorktree

_SERVERS = "mcp servers"
"""Not the name of any option: those have no space."""
_SECRET_NAMES = (*SECRET_NAMES, "*AUTH*", "*COOKIE*", "*CREDENTIAL*")


@dataclass(frozen=True)
class SessionSettings:
    """The settings from the client. `app_tools` are kept as the client gave them; `secrets` are the options that are hidden.

    `additional_directories` are the real paths of all folders that the session works in besides its working folder.
    `workspace_key` is the name of the key in whose workspace the session works; None for the workspace of the default keys.
    `worktree` is the session's own, where it works instead of the folder of its options. `answer` is what its answers have to be;
    None for any text. With `secrets_lost` the stored secrets and MCP servers cannot be decrypted: the session can run nothing.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[ToolGrant, ...] | None = None
    app_tools: tuple[ToolSpec, ...] | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    additional_directories: tuple[str, ...] = ()
    workspace_key: str | None = None
    worktree: SessionWorktree | None = None
    secrets_lost: bool = False
    answer: AnswerFormat | None = None

    @property
    def to_encrypt(self) -> dict[str, str]:
        """What is stored encrypted: the secrets, and the MCP servers, whose environment and headers may hold some."""
        return {**self.secrets, **({_SERVERS: to_text(self.mcp_servers)} if self.mcp_servers else {})}

    @property
    def hidden(self) -> list[str]:
        """The values that must not appear in the session's responses and logs, without those that are short or simple."""
        return [*(value for value in self.secrets.values() if is_secret(value, named=True)), *self._secrets_of_servers()]

    def _secrets_of_servers(self) -> Iterator[str]:
        for server in self.mcp_servers:
            for name, value in (*server.env.items(), *server.headers.items()):
                named = is_named(name, _SECRET_NAMES)
                # A header has its key behind a word: `Bearer KEY`.
                yield from (part for part in dict.fromkeys((value, *value.split())) if is_secret(part, named=named))

    def require_secrets(self) -> None:
        """Raise AgentProblem if the secrets are lost: the agent would run with the login of the gateway's user."""
        if self.secrets_lost:
            raise AgentProblem(
                "the secret options and MCP servers of this session cannot be decrypted, because the gateway's encryption key is "
                "missing or another one; restore the key (docs/operations.md), or create a new session"
            )

    def changes_from(self, before: SessionSettings) -> SessionSettings:
        """Returns only the options and tools that differ from other settings, for `with_changes`."""
        return SessionSettings(
            options={name: value for name, value in self.options.items() if before.options.get(name) != value},
            secrets={name: value for name, value in self.secrets.items() if before.secrets.get(name) != value},
            tools=None if self.tools == before.tools else self.tools,
            app_tools=None if self.app_tools == before.app_tools else self.app_tools,
        )

    def with_changes(self, changes: SessionSettings) -> SessionSettings:
        """Returns these settings with the options and tools of `changes`; what it does not have stays."""
        return replace(
            self,
            options={**self.options, **changes.options},
            secrets={**self.secrets, **changes.secrets},
            tools=self.tools if changes.tools is None else changes.tools,
            app_tools=self.app_tools if changes.app_tools is None else changes.app_tools,
            secrets_lost=self.secrets_lost or changes.secrets_lost,
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the secrets, as JSON data."""
        tools = None if self.tools is None else [[grant.name, grant.trust] for grant in self.tools]
        app_tools = (
            None if self.app_tools is None else [[t.name, t.description, dict(t.input_schema), t.title] for t in self.app_tools]
        )
        data: dict[str, Any] = {"options": dict(self.options), "tools": tools, "app_tools": app_tools}
        if self.additional_directories:
            data["additional_directories"] = list(self.additional_directories)
        if self.workspace_key is not None:
            data["workspace_key"] = self.workspace_key
        if self.worktree is not None:
            data["worktree"] = self.worktree.to_json()
        if self.answer is not None:
            data["answer"] = self.answer.to_json()
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], secrets: Mapping[str, str] | None) -> SessionSettings:
        """Return stored settings. `secrets` is None if they cannot be decrypted."""
        lost, secrets = secrets is None, secrets or {}
        tools = None if data.get("tools") is None else tuple(ToolGrant(*grant) for grant in data["tools"])
        app_tools = None if data.get("app_tools") is None else tuple(ToolSpec(*tool) for tool in data["app_tools"])
        hidden = {name: value for name, value in secrets.items() if name != _SERVERS}
        servers = from_text(secrets[_SERVERS]) if _SERVERS in secrets else ()
        directories = tuple(data.get("additional_directories", ()))
        options, workspace = dict(data.get("options", {})), data.get("workspace_key")
        worktree = SessionWorktree.from_json(data.get("worktree"))
        answer = AnswerFormat.from_json(data["answer"]) if data.get("answer") else None
        return cls(options, hidden, tools, app_tools, servers, directories, workspace, worktree, lost, answer)


def with_mode_option(settings: SessionSettings, mode: str) -> SessionSettings:
    """Return the settings with this value of the option `mode`."""
    return replace(settings, options={**settings.options, MODE_OPTION: mode})


@dataclass(frozen=True)
class SessionSummary:
    """A session without its history: `waiting` is for the client, `stop_reason` and `error` (why it failed) are of its last run.

    Times are in seconds since the epoch; `used_at` is when a run began or ended last. `usage` is the sum over all turns, with
    that at work, None if the agent has reported none. `cwd` is the absolute working folder, in the session's worktree if it has
    one, None if the agent is not configured any more. `pending` are the calls that wait for the client since `waiting_since`.
    `forked_from` is the id of the session whose messages it began with. `last_seq` is the number of its last event, 0 if it has
    none; `queued` is how many messages wait for their turns, and `queue_stopped` why they wait until a client says to go on.
    """

    id: str
    agent: str
    config: SessionSettings
    state: Literal["idle", "running", "waiting"]
    stop_reason: str | None
    error: str | None
    title: str | None
    created_at: float
    used_at: float
    usage: Usage | None
    cwd: str | None = None
    pending: Sequence[PendingCall] = ()
    waiting_since: float | None = None
    forked_from: str | None = None
    last_seq: int = 0
    queued: int = 0
    queue_stopped: str | None = None


@dataclass(frozen=True)
class SessionFilter:
    """Which sessions a list has, and in which order. None is any. `cwd` is the absolute working folder, or that which a worktree
    was made from.

    With `by_activity` the first is the one in which a run began or ended last, otherwise the newest.
    """

    agent: str | None = None
    state: Literal["idle", "running", "waiting"] | None = None
    cwd: str | None = None
    by_activity: bool = False
