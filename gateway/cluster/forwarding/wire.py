"""Names of what nodes send each other by HTTP."""

from __future__ import annotations

from starlette.types import Scope

SIGNATURE, CALLER, PROOF = b"portico-node", b"portico-caller", b"portico-node-proof"
"""The headers of a signed request, and that of its response."""
MOVED = 421
"""The status of a node that does not have the session of a forwarded request."""
REFUSED = 401
"""The status of a node that does not accept the signature of a request."""
LAST_REQUEST_ID = "last_request_id"
"""The parameter of a node's URL for ACP with the highest id of a request that the client got: those of the node are higher."""


def target(scope: Scope) -> bytes:
    """Return the target of a request as it was sent."""
    path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return b"%b?%b" % (path, query) if query else path
