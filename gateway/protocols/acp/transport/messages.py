"""JSON-RPC messages as bytes: parsing, the answer to invalid JSON, and the size limit of standard input and the bridge."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from gateway.protocols.acp.rpc import error_body

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest message, in bytes, that standard input and the bridge accept. The daemon's limit is `server.max_body`."""
PARSE_ERROR: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": None,
    "error": error_body(-32700, "the message is not valid JSON"),
}


def parse_message(data: bytes | str) -> Any:
    """Parse one message.

    Raises ValueError for invalid JSON, and for what many parsers reject: NaN, unpaired surrogates, unlimited nesting.
    """
    return from_json(data, allow_inf_nan=False)
