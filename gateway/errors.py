"""What the gateway refuses, and why: one tree, split by whose fault it is. Each class carries its HTTP status."""

from __future__ import annotations

# GatewayError
# ├── ClientError           the request is at fault; nothing has changed
# │   ├── BadRequest        400
# │   ├── Unauthorized      401
# │   ├── Forbidden         403
# │   ├── NotFound          404
# │   └── Conflict          409
# ├── TooMany               429  every place for a live agent or a turn is taken
# ├── ShuttingDown          503  the daemon is going down
# └── AgentProblem          503  the agent cannot start here
# ConfigError               (not HTTP) the configuration is at fault


class GatewayError(Exception):
    """A refusal with a text for people: what was wrong, where, and what to do."""

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


class TooMany(GatewayError):
    status = 429


class ShuttingDown(GatewayError):
    status = 503


class AgentProblem(GatewayError):
    status = 503


class ConfigError(Exception):
    """The configuration cannot be used; the text names the key and what would be right."""
