"""The messages of AAP, as on the protocol's page "Schema". Messages of one version only are in that version's module."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from drivers.contract.driver_info import ToolSpec
from drivers.contract.events import NO_USAGE, ContextUse, RateLimit, StructuredOutput, Usage
from drivers.contract.messages import Message, ToolMessage, UserMessage
from gateway.events.messages import EXTENSIONS
from gateway.sessions.pending_call import PendingCall
from gateway.text_limits import MAX_TEXT, Name

StreamMode = Literal["delta", "message", "none"]
StopReason = Literal["end_turn", "tool_use", "max_tokens", "refusal", "error"]
SessionState = Literal["idle", "running", "waiting"]
HistoryType = Literal["compacted", "full"]

T = TypeVar("T")
SESSION_ID = "sess_0f4c1c9e2a7b4d5e8f90123456789abc"
USER: JsonDict = {"role": "user", "content": "What is 2 + 2?"}
ANSWER: JsonDict = {"role": "assistant", "content": "4"}
WEATHER: JsonDict = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SESSION_EXAMPLE: JsonDict = {
    "sessionId": SESSION_ID,
    "agent": {"name": "claude", "tools": [{"name": "Bash", "trust": False}], "options": {"model": "sonnet"}},
    "tools": [WEATHER],
    EXTENSIONS: {
        "state": "idle",
        "stopReason": "end_turn",
        "title": "What is 2 + 2?",
        "createdAt": "2026-11-20T09:30:00.000Z",
        "updatedAt": "2026-11-20T09:30:04.125Z",
    },
}
"""Parts of the examples of models."""

OmitIfNone = Annotated[T | None, Field(exclude_if=lambda value: value is None)]
"""A field that is omitted if it is None."""


class WireModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True, serialize_by_alias=True, defer_build=True)


class ServerToolRef(WireModel):
    """One of the agent's own tools, enabled; `trust` lets it run without asking."""

    name: Name
    trust: bool = False


class AgentOverrides(WireModel):
    """Settings of a turn. Omitted fields keep their values. `name`, if given, must be that of the session's agent."""

    name: Name | None = None
    tools: tuple[ServerToolRef, ...] | None = None
    options: dict[str, str] | None = None


class AgentConfig(AgentOverrides):
    """Settings of a new session."""

    name: Name


class Tool(BaseModel):
    """A tool. The versions differ in the name of the schema's field; unknown fields of a request are accepted."""

    model_config = ConfigDict(extra="allow", frozen=True, validate_by_name=True, serialize_by_alias=True, defer_build=True)
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


class PermissionExtension(WireModel):
    """An extension: which of the call's choices the client has made, by its id, and since when the calls waited that it saw."""

    choice: OmitIfNone[str] = Field(default=None, min_length=1, max_length=1024)
    waiting_since: OmitIfNone[str] = Field(default=None, alias="waitingSince", max_length=64)


class ToolPermissionMessage(WireModel):
    """The client's permission or denial for a call of one of the agent's own tools; not stored."""

    role: Literal["tool_permission"] = "tool_permission"
    tool_call_id: str = Field(alias="toolCallId")
    granted: bool
    reason: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    own: OmitIfNone[PermissionExtension] = Field(default=None, alias=EXTENSIONS)


TurnMessage = Annotated[UserMessage | ToolMessage | ToolPermissionMessage, Field(discriminator="role")]


class TurnFields(WireModel):
    """How a turn is answered. Two fields are extensions: `on_disconnect` is what happens to the turn when the client disconnects,
    and `output_schema` the JSON schema of the answer, until the run is over."""

    stream: StreamMode = "none"
    on_disconnect: Literal["continue", "cancel"] | None = None
    output_schema: dict[str, Any] | None = None


class TurnRequest(TurnFields):
    """One user message, or the answers to all pending tool calls. Each version adds `tools`.

    `when_busy` is an extension: what happens to a user message while a run is active.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"messages": [USER], "stream": "delta"},
                {"messages": [{"role": "tool", "toolCallId": "toolu_01", "content": "Sunny, 21 degrees."}]},
                {
                    "messages": [
                        {"role": "tool_permission", "toolCallId": "toolu_02", "granted": False, "reason": "Not that file."}
                    ]
                },
                {
                    "messages": [
                        {
                            "role": "tool_permission",
                            "toolCallId": "toolu_02",
                            "granted": True,
                            EXTENSIONS: {"choice": "allow_always"},
                        }
                    ]
                },
            ]
        }
    )

    agent: AgentOverrides | None = None
    messages: tuple[TurnMessage, ...]
    when_busy: Literal["refuse", "steer", "queue"] = "refuse"


class CreateSessionRequest(TurnFields):
    """`PUT /session` of versions 1 and 2. The last message must be the user's."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"agent": {"name": "echo"}, "messages": [USER]},
                {"agent": {"name": "echo"}, "messages": [USER], "stream": "delta"},
                {
                    "agent": {"name": "echo"},
                    "messages": [USER, ANSWER, {"role": "user", "content": [{"type": "text", "text": "And 3 + 3?"}]}],
                },
            ]
        }
    )

    agent: AgentConfig
    messages: tuple[Message, ...]
    tools: tuple[ApplicationTool, ...] | None = None


class SessionTurnRequest(TurnRequest):
    """`POST /session/:id` of versions 1 and 2."""

    tools: tuple[ApplicationTool, ...] | None = None


class TurnUsage(WireModel):
    """Tokens that the agent has reported, as in `Usage`, and their price."""

    input_tokens: int = Field(default=0, alias="inputTokens")
    output_tokens: int = Field(default=0, alias="outputTokens")
    cache_read_tokens: int = Field(default=0, alias="cacheReadTokens")
    cache_write_tokens: int = Field(default=0, alias="cacheWriteTokens")
    reasoning_tokens: OmitIfNone[int] = Field(default=None, alias="reasoningTokens")
    cost_usd: OmitIfNone[float] = Field(default=None, alias="costUsd")

    @classmethod
    def of(cls, usage: Usage) -> TurnUsage:
        """Return what an agent has reported."""
        return cls(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read,
            cache_write_tokens=usage.cache_write,
            reasoning_tokens=usage.reasoning_tokens or None,
            cost_usd=usage.cost_usd,
        )


class Context(WireModel):
    """How many tokens of the model's context window the conversation takes."""

    used: int
    size: int


def iso_time(seconds: float) -> str:
    """Return a time in seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class UsageLimit(WireModel):
    """A usage limit of the user's account, as the event `RateLimit`. `resets_at` is ISO 8601."""

    status: Literal["allowed", "warning", "rejected"]
    limit: OmitIfNone[str] = None
    utilization: OmitIfNone[float] = None
    resets_at: OmitIfNone[str] = Field(default=None, alias="resetsAt")

    @classmethod
    def of(cls, event: RateLimit) -> UsageLimit:
        """Return what an event reports."""
        resets_at = None if event.resets_at is None else iso_time(event.resets_at)
        return cls(status=event.status, limit=event.limit, utilization=event.utilization, resets_at=resets_at)


class TurnExtension(WireModel):
    """What the protocol does not have about a turn: `error` is the reason, if the stop reason is `error`.

    `usage` is what the agent has used in the turn so far, `context` the last state of it. `output` is the JSON value that the
    request has asked for by `output_schema`, or `outputError` why there is none.
    """

    error: OmitIfNone[str] = None
    output: OmitIfNone[Any] = None
    output_error: OmitIfNone[str] = Field(default=None, alias="outputError")
    usage: OmitIfNone[TurnUsage] = None
    context: OmitIfNone[Context] = None
    rate_limit: OmitIfNone[UsageLimit] = Field(default=None, alias="rateLimit")

    @classmethod
    def of(
        cls,
        usage: Usage | None,
        context: ContextUse | None,
        error: str | None = None,
        limit: RateLimit | None = None,
        output: StructuredOutput | None = None,
    ) -> TurnExtension | None:
        """Return the extension of a turn. None if it has nothing."""
        own = cls(
            error=error,
            output=None if output is None else output.value,
            output_error=None if output is None else output.error,
            usage=None if usage in (None, NO_USAGE) else TurnUsage.of(usage),
            context=None if context is None else Context(used=context.used, size=context.size),
            rate_limit=None if limit is None else UsageLimit.of(limit),
        )
        return None if own == cls() else own


class AgentResponse(WireModel):
    """The JSON response of `stream: none`. Only the response that creates a session has its id."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"stopReason": "end_turn", "messages": [ANSWER]},
                {"sessionId": SESSION_ID, "stopReason": "end_turn", "messages": [ANSWER]},
            ]
        }
    )

    session_id: OmitIfNone[str] = Field(default=None, alias="sessionId")
    stop_reason: StopReason = Field(alias="stopReason")
    messages: list[Message]
    own: OmitIfNone[TurnExtension] = Field(default=None, alias=EXTENSIONS)


class SessionHistory(WireModel):
    """The requested histories."""

    compacted: OmitIfNone[list[Message]] = None
    full: OmitIfNone[list[Message]] = None


class SessionHistoryResponse(WireModel):
    """The history of a session, as of versions 2 and 3."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"history": {"full": [USER, ANSWER]}}]})

    history: SessionHistory


class CancelResponse(WireModel):
    """The result of a cancel: whether there was a run to cancel, and the state of the session."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"sessionId": SESSION_ID, "cancelled": True, "state": "idle"}]})

    session_id: str = Field(alias="sessionId")
    cancelled: bool
    state: SessionState


class SessionAgent(WireModel):
    """A session's settings; secret options are `***`."""

    name: str
    tools: OmitIfNone[list[ServerToolRef]] = None
    options: OmitIfNone[dict[str, str]] = None


class PermissionChoiceInfo(WireModel):
    """An answer to a request for permission, by its id."""

    id: str
    name: str
    kind: Literal["allow_once", "allow_always", "reject_once", "reject_always"]


class PendingCallInfo(WireModel):
    """A call that waits for the client: for the `permission` to run, its `result`, or the user's `answer` to its questions.

    `title` is the tool's name for people. An `optional` call needs no answer. `choices` are empty unless it needs a permission.
    """

    tool_call_id: str = Field(alias="toolCallId")
    name: str
    title: OmitIfNone[str] = None
    input: dict[str, Any]
    wants: Literal["permission", "result", "answer"]
    optional: bool
    choices: list[PermissionChoiceInfo]

    @classmethod
    def of(cls, call: PendingCall) -> PendingCallInfo:
        """Return a call of a session."""
        choices = [PermissionChoiceInfo(id=choice.id, name=choice.name, kind=choice.kind) for choice in call.choices]
        return cls(
            tool_call_id=call.id,
            name=call.name,
            title=call.title,
            input=dict(call.input),
            wants=call.wants,
            optional=call.optional,
            choices=choices,
        )


class SessionWorktreeInfo(WireModel):
    """The worktree that a session works in: its folder, its branch, and the checkout that it was made from."""

    path: str
    branch: str
    base: str


class SessionExtension(WireModel):
    """What the protocol does not have about a session. `stop_reason` is of its last turn, `error` why that failed.

    `title` is the agent's, or the beginning of the first prompt. Times are ISO 8601; `updated_at` is when a turn began or ended
    last. `usage` is the sum over all turns, with that at work. `cwd` is the absolute working folder, null if the agent is not
    configured any more. `pending_calls` wait for the client since `waiting_since`. `forked_from` is the id of the session whose
    messages it began with, `last_seq` the number of its last event. `queued` is how many messages wait for their turns, and
    `queue_stopped` why they do not begin before a client says to go on. `worktree` is its own one, where it works.
    """

    state: SessionState
    stop_reason: OmitIfNone[StopReason] = Field(default=None, alias="stopReason")
    error: OmitIfNone[str] = None
    title: OmitIfNone[str] = None
    created_at: str = Field(alias="createdAt")
    updated_at: str = Field(alias="updatedAt")
    usage: OmitIfNone[TurnUsage] = None
    cwd: str | None = None
    pending_calls: OmitIfNone[list[PendingCallInfo]] = Field(default=None, alias="pendingCalls")
    waiting_since: OmitIfNone[str] = Field(default=None, alias="waitingSince")
    forked_from: OmitIfNone[str] = Field(default=None, alias="forkedFrom")
    last_seq: int = Field(default=0, alias="lastSeq")
    queued: int = 0
    queue_stopped: OmitIfNone[str] = Field(default=None, alias="queueStopped")
    worktree: OmitIfNone[SessionWorktreeInfo] = None


class SessionInfo(WireModel):
    """A session. Each version adds `tools`."""

    session_id: str = Field(alias="sessionId")
    agent: SessionAgent
    own: SessionExtension = Field(alias=EXTENSIONS)
