"""Proofs that both sides of the local socket know its token, which neither sends.

The client sends a nonce. The server answers with one of its own and its proof, an HMAC of both nonces with the token. Only then
does the client send anything else, with a proof of its own.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from typing import Literal, TypeGuard

from pydantic_core import from_json, to_json

RECORD = "acp-socket.json"
"""The file in a data directory with the path of the socket and the token: mode 0600."""
MAX_NONCE, MAX_ANSWER = 200, 4096
"""Characters of a nonce of the other side, and bytes of a server's answer."""


def new_nonce() -> str:
    """Return a random text that no other connection has."""
    return secrets.token_urlsafe(32)


def proof(token: str, side: Literal["client", "server"], client_nonce: str, server_nonce: str) -> str:
    """Return what only a process that knows the token can send on one side of a connection."""
    return hmac.new(token.encode(), "\n".join((side, client_nonce, server_nonce)).encode(), "sha256").hexdigest()


def is_proof(given: object, expected: str) -> bool:
    """Whether the other side has sent the expected proof."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def is_nonce(given: object) -> TypeGuard[str]:
    """Whether the other side has sent a nonce."""
    return isinstance(given, str) and 0 < len(given) <= MAX_NONCE and given.isascii() and given.isprintable()


def prove(connection: socket.socket, token: str) -> str | None:
    """Return the client's proof, after the server's; None if the server does not know the token. Raises OSError."""
    own = new_nonce()
    connection.sendall(to_json({"nonce": own}) + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        data = connection.recv(MAX_ANSWER)
        if not data or len(answer) > MAX_ANSWER:
            return None
        answer += data
    try:
        found = from_json(answer)
    except ValueError:
        return None
    if not isinstance(found, dict) or not is_nonce(found.get("nonce")):
        return None
    if not is_proof(found.get("proof"), proof(token, "server", own, found["nonce"])):
        return None
    return proof(token, "client", own, found["nonce"])
