"""What AAP clients send and get, as of the protocol's page "Schema", version 1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from drivers.messages import Message, ToolMessage, UserMessage

StreamMode = Literal["delta", "message", "none"]
StopReason = Literal["end_turn", "tool_use", "max_tokens", "refusal", "error"]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True, serialize_by_alias=True)


class ServerToolRef(_Shape):
    """One of the agent's own tools, enabled; `trust` lets it run without asking."""

    name: str
    trust: bool = False


class AgentOverrides(_Shape):
    """Settings of a turn: what is left out keeps its value. A name, if given, must be the session's own."""

    name: str | None = None
    tools: tuple[ServerToolRef, ...] | None = None
    options: dict[str, str] | None = None


class AgentConfig(AgentOverrides):
    """Settings of a new session."""

    name: str


class ApplicationTool(BaseModel):
    """A tool of the client's; kept as it came."""

    model_config = ConfigDict(extra="allow", frozen=True, validate_by_name=True, serialize_by_alias=True)

    name: str = Field(min_length=1)
    title: str | None = None
    description: str
    input_schema: dict[str, Any] = Field(alias="inputSchema")


class ToolPermissionMessage(_Shape):
    """The client's word on a call of one of the agent's own tools; never stored."""

    role: Literal["tool_permission"] = "tool_permission"
    tool_call_id: str = Field(alias="toolCallId")
    granted: bool
    reason: str | None = None


TurnMessage = Annotated[UserMessage | ToolMessage | ToolPermissionMessage, Field(discriminator="role")]


class CreateSessionRequest(_Shape):
    """`PUT /session`. The last message must be the user's."""

    agent: AgentConfig
    stream: StreamMode = "none"
    messages: tuple[Message, ...]
    tools: tuple[ApplicationTool, ...] | None = None


class SessionTurnRequest(_Shape):
    """`POST /session/:id`: one user message, or the answers to all open tool calls."""

    agent: AgentOverrides | None = None
    stream: StreamMode = "none"
    messages: tuple[TurnMessage, ...]
    tools: tuple[ApplicationTool, ...] | None = None


class AgentResponse(_Shape):
    """The JSON answer of `stream: none`. `error` says why, where the stop reason is `error`."""

    session_id: str | None = Field(default=None, alias="sessionId", exclude_if=lambda v: v is None)
    stop_reason: StopReason = Field(alias="stopReason")
    messages: list[Message]
    error: str | None = Field(default=None, exclude_if=lambda v: v is None)


class SessionListResponse(_Shape):
    """A page of session ids, newest first; `next` is absent on the last."""

    sessions: list[str]
    next: str | None = Field(default=None, exclude_if=lambda v: v is None)


class SessionHistory(_Shape):
    """The histories that the agent declares, or the one that was asked for."""

    compacted: list[Message] | None = Field(default=None, exclude_if=lambda v: v is None)
    full: list[Message] | None = Field(default=None, exclude_if=lambda v: v is None)


class SessionAgent(_Shape):
    name: str
    tools: list[ServerToolRef] | None = Field(default=None, exclude_if=lambda v: v is None)
    options: dict[str, str] | None = Field(default=None, exclude_if=lambda v: v is None)


class SessionResponse(_Shape):
    """`GET /session/:id`; secret options are `***`. `state` is the gateway's own: idle, running or waiting."""

    session_id: str = Field(alias="sessionId")
    agent: SessionAgent
    tools: list[dict[str, Any]] | None = Field(default=None, exclude_if=lambda v: v is None)
    history: SessionHistory
    state: Literal["idle", "running", "waiting"]
    stop_reason: StopReason | None = Field(default=None, alias="stopReason", exclude_if=lambda v: v is None)


class MetaResponse(_Shape):
    """`GET /meta`. Each agent is an AgentInfo of the page "Schema"."""

    version: int
    agents: list[dict[str, Any]]


class ErrorResponse(_Shape):
    """Every refusal: a text for people."""

    error: str
