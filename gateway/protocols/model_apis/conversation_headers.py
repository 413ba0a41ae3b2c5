"""Request headers that say which conversation a request continues, beside its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Header
from pydantic import TypeAdapter

SessionHeader = Annotated[str | None, Header(description="Continue this session, if its history is that of the messages.")]
ChatHeader = Annotated[str | None, Header(description="The client's own id of the conversation.")]
CONVERSATION_HEADERS: Mapping[str, TypeAdapter[Any]] = {
    "x-portico-session": TypeAdapter(SessionHeader),
    "x-openwebui-chat-id": TypeAdapter(ChatHeader),
}
"""Both, for a direct route."""
