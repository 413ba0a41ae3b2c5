"""The requests that open a session, without the `acp` package: the agent of a new session starts while that is imported.

As the protocol's schema demands ("x-deserialize-skip-invalid-items", "x-deserialize-default-on-error"), an invalid MCP server or
directory is left out of its list, and an invalid `_meta` counts as none.
Protocol pages: https://agentclientprotocol.com/protocol/session-setup; `session/fork` and `session/resume` are RFDs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, WrapValidator

from gateway.runs.session_metadata import MAX_TITLE_LENGTH

log = logging.getLogger(__name__)


def _none(value: Any, validate: Callable[[Any], Any]) -> Any:
    try:
        return validate(value)
    except ValidationError:
        return None


def _valid_items(value: Any, validate: Callable[[Any], Any], info: ValidationInfo) -> Any:
    if not isinstance(value, list):
        return validate(value)
    found: list[Any] = []
    for n, item in enumerate(value):
        try:
            found += validate([item])
        except ValidationError as error:
            # Without the values, which may be secret.
            problems = {f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors(include_input=False)}
            log.warning("%s[%d] of a client is malformed and left out: %s", info.field_name, n, "; ".join(sorted(problems)[:3]))
    return found


class _Model(BaseModel):
    # Each is built when the first request of its method comes.
    model_config = ConfigDict(populate_by_name=True, defer_build=True)
    field_meta: Annotated[dict[str, Any] | None, Field(alias="_meta"), WrapValidator(_none)] = None


class EnvVariable(_Model):
    name: str
    value: str


class HttpHeader(_Model):
    name: str
    value: str


class StdioMcpServer(_Model):
    """An MCP server that the agent starts."""

    name: str
    command: str
    args: list[str]
    env: list[EnvVariable]


class RemoteMcpServer(_Model):
    """An MCP server at an address."""

    type: Literal["http", "sse"]
    name: str
    url: str
    headers: list[HttpHeader]


class ClientMcpServer(_Model):
    """An MCP server that the client serves over its connection."""

    type: Literal["acp"]
    name: str
    server_id: str = Field(alias="serverId")


AnyMcpServer = RemoteMcpServer | ClientMcpServer | StdioMcpServer
_McpServers = Annotated[list[AnyMcpServer], Field(alias="mcpServers"), WrapValidator(_valid_items)]
_SomeMcpServers = Annotated[list[AnyMcpServer] | None, Field(alias="mcpServers"), WrapValidator(_valid_items)]


class _SessionRequest(_Model):
    cwd: str
    additional_directories: Annotated[list[str] | None, Field(alias="additionalDirectories"), WrapValidator(_valid_items)] = None


class NewSessionRequest(_SessionRequest):
    mcp_servers: _McpServers
    system_prompt: Any = Field(default=None, alias="systemPrompt")


class LoadSessionRequest(_SessionRequest):
    session_id: str = Field(alias="sessionId")
    mcp_servers: _McpServers


class ResumeSessionRequest(_SessionRequest):
    session_id: str = Field(alias="sessionId")
    mcp_servers: _SomeMcpServers = None


class ForkSessionRequest(_SessionRequest):
    session_id: str = Field(alias="sessionId")
    mcp_servers: _SomeMcpServers = None


class SetTitleRequest(_Model):
    """The parameters of `session/set_title`, which the package acp (0.12.1) lacks."""

    session_id: str = Field(alias="sessionId")
    title: Annotated[str, Field(max_length=MAX_TITLE_LENGTH)]


class StatusRequest(_Model):
    """The parameters of `session/status`, which the package acp (0.12.1) lacks."""

    session_id: str = Field(alias="sessionId")


AnySessionRequest = NewSessionRequest | LoadSessionRequest | ResumeSessionRequest | ForkSessionRequest
