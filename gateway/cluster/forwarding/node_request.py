"""What the handlers of a gateway leave to the middleware of a node: a request whose session another node has, and the frames that
other nodes send for the same request.

Without a cluster no request has any of this.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from gateway.security.authentication import Caller
from gateway.security.quotas import RequestQuotas

NODE_REQUEST = "portico.node_request"
"""The key in the ASGI scope of the `NodeRequest` of an HTTP request, in a gateway that is a node."""
OTHER_NODES = "portico.other_nodes"
"""The key in the ASGI scope of a client's request of what `with_other_nodes` calls."""


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
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

    __slots__ = ("forwarded",)

    def __init__(self) -> None:
        self.forwarded: ForwardedRequest | None = None

    def take(self) -> ForwardedRequest | None:
        """Return what the handler has left, once."""
        found, self.forwarded = self.forwarded, None
        return found


def with_other_nodes(scope: Scope, caller: Caller, own: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Return the frames of this node for a stream, and those that the other nodes send for the same request of a client.

    The first frame of `own` is `ready`. gateway/cluster/forwarding/followed_updates.py has when the frames end.
    """
    merged: Callable[[Scope, Caller, AsyncGenerator[bytes]], AsyncGenerator[bytes]] | None = scope.get(OTHER_NODES)
    return own if merged is None else merged(scope, caller, own)


async def no_response(scope: Scope, receive: Receive, send: Send) -> None:
    """Send nothing: the middleware responds to a request that is forwarded."""
