"""The gateway's exceptions, grouped by the cause of the failure. Each class has its HTTP status."""

from __future__ import annotations

# GatewayError
# ├── ClientError           the request is invalid; nothing has changed
# │   ├── BadRequest        400
# │   ├── Unauthorized      401
# │   │   ├── WrongKey      401  a key was given that is unknown
# │   │   └── KeysUnchecked 503  the keys could not be compared with the store for too long
# │   ├── Forbidden         403
# │   ├── NotFound          404
# │   └── Conflict          409
# ├── NotSupported          501  this installation lacks what is needed
# ├── TooMany               429  a limit of live agents, turns or wrong keys is reached
# ├── ShuttingDown          503  the daemon is shutting down
# ├── NoNode                503  no node of the cluster takes the work at this moment
# ├── NodeAway              503  the only node with the worktree of a session does not run, or is drained
# ├── NodeUnknown           503  the node that has a session gives no sign of life
# ├── AgentProblem          503  the agent cannot start here
# ├── StoreUnavailable      503  the store cannot be written
# │   ├── StoreFull         503  the disk of the database is full
# │   └── StoreAbandoned    503  this process must write no more: the daemon's shutdown is over its time
# │       └── LeaseLost     503  another node of the cluster may write this session by now
# │           └── LogDeleted 404  there is no such session any more; also a NotFound
# └── SessionElsewhere      503  another node of the cluster has the session; the request is forwarded to it
# ConfigError               (not HTTP) the configuration, the data directory or the store cannot be used
# └── InvalidSettings       the configuration or an option is wrong: no start can succeed before it is changed


class GatewayError(Exception):
    """An error response. Its text is for people: what was wrong, where, and what to do."""

    status = 500
    retry_after: int | None = None
    """Seconds after which the same request may succeed, None if nobody knows."""

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers of the response."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


class ClientError(GatewayError):
    status = 400


class BadRequest(ClientError):
    status = 400


class Unauthorized(ClientError):
    status = 401

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class WrongKey(Unauthorized):
    """An API key that is unknown. `Gateway.wrong_keys_counted` counts them by the client's address."""


class KeysUnchecked(Unauthorized):
    """A key may have been revoked meanwhile: it is treated as if it was, but with a status that says to try again."""

    status = 503


class Forbidden(ClientError):
    status = 403


class NotFound(ClientError):
    status = 404


class Conflict(ClientError):
    status = 409


class NotSupported(GatewayError):
    status = 501


class TooMany(GatewayError):
    status = 429

    def __init__(self, text: str, retry_after: int = 5) -> None:
        super().__init__(text)
        self.retry_after = retry_after


def too_many_sessions(limit: int) -> TooMany:
    """Return the error for one session more of a key than it may have."""
    return TooMany(f"this key has {limit} sessions, and no more may be (limits.sessions_per_key); delete some")


class ShuttingDown(GatewayError):
    status = 503


class NoNode(GatewayError):
    """No node takes the work: each node with the agent takes no new work or cannot be reached. The same request may succeed soon.

    `drained` is whether this node takes no new work itself, and may have the agent.
    """

    status = 503
    retry_after = 10

    def __init__(self, agent: str, *, drained: bool = False) -> None:
        where = (
            f"this node takes no new work (it is drained), and no other node takes this work of agent {agent!r}"
            if drained
            else f"agent {agent!r} is at other nodes only, and none of them takes new work or can be reached"
        )
        super().__init__(f"{where}; try again in some seconds")


class NodeAway(GatewayError):
    """The only node that can go on with a session does not run, or takes no new work."""

    status = 503


class NodeUnknown(GatewayError):
    """The node that has a session is not known any more, or gives no sign of life: another one takes the session over soon."""

    status = 503
    retry_after = 10


class AgentProblem(GatewayError):
    status = 503


class StoreUnavailable(GatewayError):
    status = 503


class StoreFull(StoreUnavailable):
    """The disk of the database has no space for what was to be written."""

    status = 503


class StoreAbandoned(StoreUnavailable):
    status = 503


class LeaseLost(StoreAbandoned):
    """The lease of a log has expired and another node may have it. A write has changed nothing, and a reader gets no more."""

    def __init__(self, log_id: str, then: str = "send the request again") -> None:
        super().__init__(f"this node lost its lease of {log_id!r}, which another node may have taken over; {then}")
        self.log_id = log_id


class LogDeleted(LeaseLost, NotFound):
    """The log was deleted, and its lease with it: the write has changed nothing."""

    status = 404

    def __init__(self, log_id: str) -> None:
        super().__init__(log_id)
        self.args = (f"{log_id!r} was deleted",)


class SessionElsewhere(GatewayError):
    """Another node has the session or task, or is to create it: the request belongs there. Nothing has changed.

    `address` is the base URL of that node. `log_id` is None for a session or task that is to be created.
    """

    status = 503

    def __init__(self, node_id: str, address: str, log_id: str | None = None) -> None:
        subject = f"{log_id!r}" if log_id is not None else "what is to be created"
        super().__init__(f"{subject} belongs to the node {node_id!r} of this cluster; send the request there, or again")
        self.node_id, self.address, self.log_id = node_id, address, log_id


class ConfigError(Exception):
    """The configuration, the data directory or the store cannot be used. The text names what to change."""


class InvalidSettings(ConfigError):
    """The configuration or an option is wrong. The text names the key and the allowed values."""
