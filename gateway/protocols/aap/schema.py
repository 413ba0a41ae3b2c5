"""The messages of AAP, as on the protocol's page "Schema". Messages of one version only are in that version's module."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from drivers.contract.driver_info import ToolSpec
from drivers.contract.messages import Message, ToolMessage, UserMessage

StreamMode = Literal["delta", "message", "none"]
StopReason = Literal["end_turn", "tool_use", "max_tokens", "refusal", "error"]
SessionState = Literal["idle", "running", "waiting"]
HistoryType = Literal["compacted", "full"]

T = TypeVar("T")
OmitIfNone = Annotated[T | None, Field(exclude_if=lambda value: value is None)]
"""A field that is omitted if it is None."""


class WireModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True, serialize_by_alias=True)


class ServerToolRef(WireModel):
    """One of the agent's own tools, enabled; `trust` lets it run without asking."""

    name: str
    trust: bool = False


class AgentOverrides(WireModel):
    """Settings of a turn. Omitted fields keep their values. `name`, if given, must be that of the session's agent."""

    name: str | None = None
    tools: tuple[ServerToolRef, ...] | None = None
    options: dict[str, str] | None = None


class AgentConfig(AgentOverrides):
    """Settings of a new session."""

    name: str


class Tool(BaseModel):
    """A tool. The versions differ in the name of the schema's field; unknown fields of a request are accepted."""

    model_config = ConfigDict(extra="allow", frozen=True, validate_by_name=True, serialize_by_alias=True)
    other_version: ClassVar[tuple[str, str]] = ("", "")
    """The name of the schema's field in other versions, and the base URLs of those."""

    name: str = Field(min_length=1)
    title: OmitIfNone[str] = None
    description: str
    input_schema: dict[str, Any]

    @classmethod
    def of(cls, spec: ToolSpec) -> Self:
        """Return a tool in the format of this version."""
        return cls(name=spec.name, title=spec.title, description=spec.description, input_schema=dict(spec.input_schema))

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, given: Any) -> Any:
        name, (other, where) = cls.model_fields["input_schema"].alias, cls.other_version
        if isinstance(given, dict) and name not in given and "input_schema" not in given and other in given:
            text = "a tool's schema is `{name}` in this version; `{other}` is of {where}"
            raise PydanticCustomError("version", text, {"name": name, "other": other, "where": where})
        return given


class ApplicationTool(Tool):
    """A tool in versions 1 and 2."""

    other_version = ("parameters", "AAP v3, at the base URL /aap/v3")

    input_schema: dict[str, Any] = Field(alias="inputSchema")


class ToolPermissionMessage(WireModel):
    """The client's permission or denial for a call of one of the agent's own tools; not stored."""

    role: Literal["tool_permission"] = "tool_permission"
    tool_call_id: str = Field(alias="toolCallId")
    granted: bool
    reason: str | None = None


TurnMessage = Annotated[UserMessage | ToolMessage | ToolPermissionMessage, Field(discriminator="role")]


class TurnFields(WireModel):
    """How a turn is answered. `on_disconnect` is an extension: what happens to the turn when the client disconnects."""

    stream: StreamMode = "none"
    on_disconnect: Literal["continue", "cancel"] | None = None


class TurnRequest(TurnFields):
    """One user message, or the answers to all pending tool calls. Each version adds `tools`.

    `when_busy` is an extension: what happens to a user message while a run is active.
    """

    agent: AgentOverrides | None = None
    messages: tuple[TurnMessage, ...]
    when_busy: Literal["refuse", "steer", "queue"] = "refuse"


class CreateSessionRequest(TurnFields):
    """`PUT /session` of versions 1 and 2. The last message must be the user's."""

    agent: AgentConfig
    messages: tuple[Message, ...]
    tools: tuple[ApplicationTool, ...] | None = None


class SessionTurnRequest(TurnRequest):
    """`POST /session/:id` of versions 1 and 2."""

    tools: tuple[ApplicationTool, ...] | None = None


class AgentResponse(WireModel):
    """The JSON response of `stream: none`. `error` is the reason, if the stop reason is `error`."""

    session_id: OmitIfNone[str] = Field(default=None, alias="sessionId")
    stop_reason: StopReason = Field(alias="stopReason")
    messages: list[Message]
    error: OmitIfNone[str] = None


class SessionHistory(WireModel):
    """The requested histories."""

    compacted: OmitIfNone[list[Message]] = None
    full: OmitIfNone[list[Message]] = None


class SessionHistoryResponse(WireModel):
    """The history of a session, as of versions 2 and 3."""

    history: SessionHistory


class CancelResponse(WireModel):
    """The result of a cancel: whether there was a run to cancel, and the state of the session."""

    session_id: str = Field(alias="sessionId")
    cancelled: bool
    state: SessionState


class SessionAgent(WireModel):
    """A session's settings; secret options are `***`."""

    name: str
    tools: OmitIfNone[list[ServerToolRef]] = None
    options: OmitIfNone[dict[str, str]] = None


class SessionInfo(WireModel):
    """A session. `state` and `stopReason` (of the last turn) are extensions. Each version adds `tools`."""

    session_id: str = Field(alias="sessionId")
    agent: SessionAgent
    state: SessionState
    stop_reason: OmitIfNone[StopReason] = Field(default=None, alias="stopReason")
