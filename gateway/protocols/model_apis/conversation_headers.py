"""Request headers that say which conversation a request continues, beside its messages."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

SessionHeader = Annotated[str | None, Header(description="Continue this session, if its history is that of the messages.")]
ChatHeader = Annotated[str | None, Header(description="The client's own id of the conversation.")]
