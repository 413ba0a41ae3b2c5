"""A request whose session another node has: what the handlers of a gateway leave to the middleware that forwards it.

Without a cluster no request has any of this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from gateway.security.authentication import FORWARDED_CALLER, Caller
from gateway.security.quotas import RequestQuotas

NODE_REQUEST = "portico.node_request"
"""The key in the ASGI scope of the `NodeRequest` of an HTTP request, in a gateway that is a node."""
FORWARDED_BY, FORWARDED_TO = "portico.forwarded_by", "portico.forwarded_to"
"""The keys in the ASGI scope of the id of the node that has forwarded a request, and of the one that it is forwarded to."""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A request that belongs to another node (`address` is its base URL), and its caller.

    `check` raises Unauthorized once the caller's key is revoked. Whoever takes it releases the quotas. It has no reference to the
    error, whose traceback has all of the request.
    """

    node_id: str
    address: str
    caller: Caller
    quotas: RequestQuotas
    check: Callable[[], Awaitable[object]] | None


class NodeRequest:
    """What is known of one request besides its scope."""

    __slots__ = ("passed_on",)

    def __init__(self) -> None:
        self.passed_on: PassedOn | None = None

    def take(self) -> PassedOn | None:
        """Return what the handler has left, once."""
        found, self.passed_on = self.passed_on, None
        return found


def is_forwarded(scope: Scope) -> bool:
    """Whether another node has forwarded the request."""
    return FORWARDED_CALLER in scope


async def no_response(scope: Scope, receive: Receive, send: Send) -> None:
    """Send nothing: the middleware responds to a request that was passed on."""
