"""Limits of the texts that clients send besides the messages of a conversation, which the limit of a request's body is for."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.errors import BadRequest

MAX_NAME = 256
"""Characters of the name of an agent, a model, a tool, an option or an MCP server, and of a tool's title."""
MAX_TEXT = 65_536
"""Characters of a tool's description, of an option's value, of the reason of a denial, and of all texts of an MCP server."""
MAX_TOOLS = 1000
"""Tools of the application in one request."""
MAX_MCP_SERVERS = 100
MAX_DIRECTORIES = 100
"""MCP servers, and additional directories, of a session."""

Name = Annotated[str, Field(max_length=MAX_NAME)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16, description="16 values of 512 characters at most, by names of 64 at most."),
]


def check_length(path: str, text: str, limit: int) -> None:
    """Raise BadRequest for a text of more than so many characters. `path` is the place of the text in the request."""
    if len(text) > limit:
        raise BadRequest(f"{path}: {len(text)} characters are too many; it may have {limit}")


def check_count(path: str, count: int, limit: int) -> None:
    """Raise BadRequest for a list of more than so many elements."""
    if count > limit:
        raise BadRequest(f"{path}: {count} are too many; there may be {limit}")
