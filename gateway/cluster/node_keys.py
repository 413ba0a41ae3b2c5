"""Signatures of requests between the nodes of a cluster, and the proofs of their answers, by keys that all nodes have.

A node signs a request for one other node: its method, its target, its body and the caller for whom it is forwarded. The answer
proves that it comes from a node with the key. Both are HMACs with SHA-256. They do not hide what is sent: between machines, the
addresses of nodes are of a private network, or https.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.config import NodeSettings
from gateway.errors import InvalidSettings, Unauthorized
from gateway.security.authentication import Caller

MIN_NODE_KEY = 32
"""Characters of a node key."""
MAX_CLOCK_DIFFERENCE = 300
"""Seconds by which the clocks of two nodes may differ, the time on the way included."""
CALLERS = 1000
"""Callers whose texts are kept."""
MICROSECONDS = 6
"""Hexadecimal digits at the beginning of a nonce that are the microseconds of the time; the others are random."""
EMPTY_BODY = hashlib.sha256(b"").hexdigest()

_SIGNATURE = re.compile(r"v1 ([A-Za-z0-9._-]{1,64}) (\d{1,12}) ([0-9a-f]{32}) ([0-9a-f]{64}) ([0-9a-f]{64})", re.ASCII)
_REQUEST, _ANSWER = "portico node request v1", "portico node answer v1"


@dataclass(frozen=True, slots=True)
class SentSignature:
    """The headers of a signed request, and what its answer is checked with."""

    signature: str
    caller: str
    to: str
    nonce: str
    key: bytes


@dataclass(frozen=True, slots=True)
class ReceivedSignature:
    """A valid signature of a request: the node that has sent it, and the caller. `digest` is the SHA-256 of its body in hex."""

    node: str
    caller: Caller
    digest: str
    nonce: str
    key: bytes


class NodeKeys:
    """Signs and checks requests for the node `node_id`. The first of the keys signs, and each of them is accepted.

    Raises InvalidSettings without a key, and for one that is too short.
    """

    def __init__(self, node_id: str, keys: Iterable[str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._node_id, self._keys, self._clock = node_id, _checked(keys), clock
        self._started = clock.time()
        self._nonces = _Nonces(clock)

    def sign(self, to: str, method: str, target: bytes, body: bytes, caller: Caller) -> SentSignature:
        """Sign a request to the node `to`. `target` is the path with the query, as it is sent."""
        key, now, encoded = self._keys[0], self._clock.time(), encode_caller(caller)
        nonce = f"{_microseconds(now):0{MICROSECONDS}x}{secrets.token_hex(16)[MICROSECONDS:]}"
        digest = hashlib.sha256(body).hexdigest() if body else EMPTY_BODY
        sent = str(int(now))
        mac = _mac(key, _REQUEST, self._node_id, to, method, target, sent, nonce, digest, encoded)
        return SentSignature(f"v1 {self._node_id} {sent} {nonce} {digest} {mac}", encoded, to, nonce, key)

    def check(self, method: str, target: bytes, signature: str, caller: str) -> ReceivedSignature:
        """Return the valid signature of a request, once; the body is compared with its `digest` afterwards.

        Raises Unauthorized, also for a signature that came before, or that is older than this process: an earlier one may have
        accepted it.
        """
        match = _SIGNATURE.fullmatch(signature)
        if match is None:
            raise Unauthorized(
                "Portico-Node: not a signature of this version of Portico; only nodes of this cluster send this header"
            )
        node, sent, nonce, digest, mac = match.groups()
        signed = (_REQUEST, node, self._node_id, method, target, sent, nonce, digest, caller)
        # A list: the time must not depend on which key it is.
        keys = [key for key in self._keys if hmac.compare_digest(_mac(key, *signed), mac)]
        if not keys:
            raise Unauthorized(
                f"Portico-Node: not signed with a key of this node, or not for this request to it (node {node!r} claims to be "
                "the sender)"
            )
        if abs(int(sent) - self._clock.time()) > MAX_CLOCK_DIFFERENCE:
            raise Unauthorized(
                f"Portico-Node: signed more than {MAX_CLOCK_DIFFERENCE} seconds from this node's time; compare the clocks of "
                f"this node and of the node {node!r}"
            )
        if _signed_at(sent, nonce) < (int(self._started), _microseconds(self._started)):
            raise Unauthorized(
                "Portico-Node: signed before this node was started; a request that is sent now is accepted, unless the clock of "
                f"the node {node!r} is behind"
            )
        if not self._nonces.add(nonce):
            raise Unauthorized("Portico-Node: a signature is for one request, and this one came before")
        return ReceivedSignature(node, decode_caller(caller), digest, nonce, keys[0])

    def proof(self, received: ReceivedSignature, status: int) -> str:
        """Return the proof that this node answers a request with this status."""
        return _mac(received.key, _ANSWER, self._node_id, received.nonce, str(status))

    def is_proof(self, sent: SentSignature, status: int, proof: str) -> bool:
        """Whether the node that a request was signed for has answered it with this status."""
        return hmac.compare_digest(_mac(sent.key, _ANSWER, sent.to, sent.nonce, str(status)), proof)


def node_keys(settings: NodeSettings, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the keys of PORTICO_NODE_KEYS, or else those of the key file. Raises InvalidSettings if it cannot be read."""
    if given := environ.get("PORTICO_NODE_KEYS", "").strip():
        return tuple(key.strip() for key in given.split(",") if key.strip())
    if not settings.key_file:
        return ()
    try:
        lines = Path(settings.key_file).expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidSettings(f"node.key_file: cannot read {settings.key_file}: {reason}") from None
    return tuple(line.strip() for line in lines if line.strip())


@lru_cache(CALLERS)
def encode_caller(caller: Caller) -> str:
    """Return a caller as the text of a header, whatever its name has."""
    fields = {"name": caller.name, "all_sessions": caller.all_sessions, "any_folder": caller.any_folder}
    return base64.urlsafe_b64encode(to_json(fields)).decode()


@lru_cache(CALLERS)
def decode_caller(text: str) -> Caller:
    """Return the caller of a header. Raises Unauthorized."""
    try:
        found: Any = from_json(base64.b64decode(text, altchars=b"-_", validate=True))
        name, all_sessions, any_folder = found["name"], found["all_sessions"], found["any_folder"]
    except (ValueError, KeyError, TypeError):
        name = all_sessions = any_folder = 0
    if not (name is None or isinstance(name, str)) or not isinstance(all_sessions, bool) or not isinstance(any_folder, bool):
        raise Unauthorized("Portico-Caller: not a caller; the node that has sent it may be of another version")
    return Caller(name, all_sessions, any_folder)


def _checked(keys: Iterable[str]) -> tuple[bytes, ...]:
    found = tuple(key.strip() for key in keys if key.strip())
    if not found:
        raise InvalidSettings("a node needs a key that all nodes have: set PORTICO_NODE_KEYS or node.key_file")
    if any(len(key) < MIN_NODE_KEY for key in found):
        raise InvalidSettings(f"a node key has less than {MIN_NODE_KEY} characters: make one with `openssl rand -hex 32`")
    return tuple(key.encode() for key in found)


def _microseconds(seconds: float) -> int:
    return int(seconds % 1 * 1_000_000)


def _signed_at(sent: str, nonce: str) -> tuple[int, int]:
    """Return when a request was signed, in seconds and microseconds."""
    return int(sent), int(nonce[:MICROSECONDS], 16)


def _mac(key: bytes, *parts: str | bytes) -> str:
    # Each part with its length: no two lists of parts are the same bytes.
    encoded = [part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape") for part in parts]
    return hmac.digest(key, b"".join(b"%d:%b" % (len(part), part) for part in encoded), "sha256").hex()


class _Nonces:
    """The nonces of the last minutes: each is kept for as long as its signature is accepted, and up to twice that."""

    KEPT = 2.0 * MAX_CLOCK_DIFFERENCE
    """A signature of a clock that is ahead is accepted for so long."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._since = clock, clock.time()
        self._new, self._old = set[str](), set[str]()

    def add(self, nonce: str) -> bool:
        """Whether the nonce is new."""
        now = self._clock.time()
        if not 0 <= now - self._since <= self.KEPT:
            self._new, self._old, self._since = set(), self._new, now
        if nonce in self._new or nonce in self._old:
            return False
        self._new.add(nonce)
        return True
