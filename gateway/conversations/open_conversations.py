"""The conversations that a next request may continue: for each, its session and the digests of its messages so far. In memory."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from drivers.contract.agent import Reply
from gateway.conversations.message_digests import Digest, conversation_digest
from gateway.sessions.session import Session

MAX_CONVERSATIONS = 4096
"""How many are kept, those that were used last. A request that continues an older one gets a new session with its history."""
MAX_DIGESTS = 1_000_000
"""How many digests of messages are kept in all of them: each takes 73 bytes."""


@dataclass(frozen=True, slots=True)
class OpenConversation:
    """A conversation after an answer.

    `scope` is the owner, the agent and its options; `digests` are those of all messages as the client has them. `turn_began` is
    the number of the session's turn that gave the answer: another one means that somebody else has continued the session.
    `replies` are answers to pending calls that the client does not know of. `hints` are values that the client gives with it, and
    `name` is one that it gives with no other conversation. `by_id`: the client can continue it by an id of the answer.
    """

    session_id: str
    scope: tuple[str, ...]
    digests: tuple[Digest, ...]
    turn_began: int
    session: weakref.ref[Session]
    replies: tuple[Reply, ...] = ()
    hints: frozenset[str] = frozenset()
    name: str | None = None
    by_id: bool = False

    @property
    def digest(self) -> Digest:
        return conversation_digest(self.scope, self.digests)


class OpenConversations:
    """Finds and keeps conversations. One that is taken is not found again until it is added anew: no two requests continue it."""

    def __init__(self, limit: int = MAX_CONVERSATIONS, max_digests: int = MAX_DIGESTS) -> None:
        self._limit, self._max_digests, self._digests = limit, max_digests, 0
        self._by_session: OrderedDict[str, OpenConversation] = OrderedDict()
        self._by_digest: dict[Digest, dict[str, None]] = {}
        self._by_hint: dict[str, dict[str, None]] = {}
        self._by_name: dict[str, dict[str, None]] = {}

    def add(self, conversation: OpenConversation) -> None:
        """Keep a conversation, in place of an earlier state of it. Those that were used longest ago may be forgotten."""
        self.forget(conversation.session_id)
        self._by_session[conversation.session_id] = conversation
        self._digests += len(conversation.digests)
        self._by_digest.setdefault(conversation.digest, {})[conversation.session_id] = None
        for hint in conversation.hints:
            self._by_hint.setdefault(hint, {})[conversation.session_id] = None
        if conversation.name is not None:
            self._by_name.setdefault(conversation.name, {})[conversation.session_id] = None
        while len(self._by_session) > self._limit or self._digests > self._max_digests:
            self.forget(next(iter(self._by_session)))

    def get(self, session_id: str) -> OpenConversation | None:
        """Return the conversation of a session."""
        return self._by_session.get(session_id)

    def take(
        self,
        scope: Sequence[str],
        digests: Sequence[Digest],
        hints: Iterable[str],
        name: str | None = None,
        *,
        by_id: bool = False,
    ) -> OpenConversation | None:
        """Return the conversation that consists of exactly these messages, and forget it; None if there is none.

        Of several, one with the name or a hint of the request is taken, one with the same `by_id`, else the one that was used
        last. If there is none, one with the name is taken that ends with these messages: some clients send the newest messages of
        a long conversation only.
        """
        named = self._by_name.get(name, {}) if name is not None else {}
        hinted = {session_id for hint in hints for session_id in self._by_hint.get(hint, ())}
        same = self._by_digest.get(conversation_digest(scope, digests), {})
        candidates = [found for found in same if found in named] or [found for found in same if found in hinted] or list(same)
        candidates = [found for found in candidates if self._by_session[found].by_id == by_id] or candidates
        if not candidates and digests:
            candidates = [found for found in named if self._ends_with(found, scope, digests)]
        return self.forget(candidates[-1]) if candidates else None

    def _ends_with(self, session_id: str, scope: Sequence[str], digests: Sequence[Digest]) -> bool:
        found, count = self._by_session[session_id], len(digests)
        if found.scope != tuple(scope) or found.digests[-count:] != tuple(digests):
            return False
        # Where it also begins with them, it is not known whether the client has left out messages or edited one.
        return found.digests[:count] != tuple(digests)

    def forget(self, session_id: str) -> OpenConversation | None:
        """Forget the conversation of a session, and return it; None if it is not known."""
        found = self._by_session.pop(session_id, None)
        if found is None:
            return None
        self._digests -= len(found.digests)
        _discard(self._by_digest, found.digest, session_id)
        for hint in found.hints:
            _discard(self._by_hint, hint, session_id)
        if found.name is not None:
            _discard(self._by_name, found.name, session_id)
        return found


def _discard(index: dict[Any, dict[str, None]], key: Digest | str, session_id: str) -> None:
    sessions = index[key]
    del sessions[session_id]
    if not sessions:
        del index[key]
