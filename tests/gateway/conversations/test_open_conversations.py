"""How many conversations are kept in memory."""

from __future__ import annotations

import weakref
from typing import Any

from gateway.conversations.open_conversations import OpenConversation, OpenConversations


class _Session:
    pass


def test_those_that_were_used_longest_ago_are_forgotten() -> None:
    for limits, kept in (((2, 100), {"b", "c"}), ((100, 7), {"b", "c"}), ((100, 3), {"c"}), ((100, 2), set())):
        session: Any = _Session()
        conversations = OpenConversations(*limits)
        for name in ("a", "b", "b", "c"):
            digests = tuple(f"{name}{n}".encode() for n in range(3))
            conversations.add(OpenConversation(name, (), digests, 1, weakref.ref(session)))
        assert {name for name in ("a", "b", "c") if conversations.get(name) is not None} == kept, (limits, kept)
