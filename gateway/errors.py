"""The gateway's exceptions, grouped by the cause of the failure. Each class has its HTTP status."""

from __future__ import annotations

# GatewayError
# ├── ClientError           the request is invalid; nothing has changed
# │   ├── BadRequest        400
# │   ├── Unauthorized      401
# │   ├── Forbidden         403
# │   ├── NotFound          404
# │   └── Conflict          409
# ├── NotSupported          501  this installation lacks what is needed
# ├── TooMany               429  a limit of live agents or turns is reached
# ├── ShuttingDown          503  the daemon is shutting down
# ├── AgentProblem          503  the agent cannot start here
# └── StoreUnavailable      503  the store cannot be written
#     └── StoreAbandoned    503  the store did not answer until the end of the daemon's shutdown
# ConfigError               (not HTTP) the configuration, the data directory or the store cannot be used
# └── InvalidSettings       the configuration or an option is wrong: no start can succeed before it is changed


class GatewayError(Exception):
    """An error response. Its text is for people: what was wrong, where, and what to do."""

    status = 500


class ClientError(GatewayError):
    status = 400


class BadRequest(ClientError):
    status = 400


class Unauthorized(ClientError):
    status = 401


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


class ShuttingDown(GatewayError):
    status = 503


class AgentProblem(GatewayError):
    status = 503


class StoreUnavailable(GatewayError):
    status = 503


class StoreAbandoned(StoreUnavailable):
    status = 503


class ConfigError(Exception):
    """The configuration, the data directory or the store cannot be used. The text names what to change."""


class InvalidSettings(ConfigError):
    """The configuration or an option is wrong. The text names the key and the allowed values."""
