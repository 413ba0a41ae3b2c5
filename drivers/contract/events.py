"""OutputEvent: what an agent does, whichever CLI it runs in.

Eleven kinds follow the OutputEvent gateway's event table field by field; twelve more (`native_session`, `message_end`,
`rate_limit`, `awaiting`, `compacted`, `context_use`, `plan`, `commands`, `title`, `terminal`, `mode`, `output`) and some fields
(`parent_id`, `stop_reason`, `resets_at` and others) are the gateway's own (see `gateway/protocols/execute.py`).
This module defines the events only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_serializer, model_validator
from pydantic_core import to_json

YEAR_10000 = 253_402_300_800
"""Times, in seconds since the epoch, are before that year."""
StopReason = Literal["end_turn", "max_tokens", "refusal", "cancelled", "error"]


def _absent(value: object) -> bool:
    return value is None


def _is_empty(value: object) -> bool:
    return value == ()


def _is_zero(value: object) -> bool:
    return value == 0


def _is_true(value: object) -> bool:
    return value is True


def _is_false(value: object) -> bool:
    return value is False


class Event(BaseModel):
    """One immutable event. `encode()` is its JSON as UTF-8, `kind` first."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        return self.__pydantic_serializer__.to_json(self)


class AgentToken(Event):
    """A streamed delta of the answer's text."""

    kind: Literal["agent_token"] = "agent_token"
    text: str


class Thinking(Event):
    """A streamed delta of the agent's reasoning; not part of the answer."""

    kind: Literal["thinking"] = "thinking"
    text: str


class ToolCall(Event):
    """A step in the life of one tool call. The same `id` comes once as `started` and once as `completed` or `failed`."""

    kind: Literal["tool_call"] = "tool_call"
    id: str
    """The CLI's id of the call."""
    name: str
    """The name of the tool."""
    status: Literal["started", "completed", "failed"]
    """The step."""
    detail: str | None = Field(default=None, exclude_if=_absent)
    """A short text for people."""
    input: Any | None = Field(default=None, exclude_if=_absent)
    """The complete input, at `started`."""
    parent_id: str | None = Field(default=None, exclude_if=_absent)
    """The id of the sub-agent's own call, if a sub-agent made this one."""
    subagent_id: str | None = Field(default=None, exclude_if=_absent)
    """The same id, if the sub-agent's call waits for the client: it is a call of the run itself then, without a `parent_id`."""


class ToolInput(Event):
    """The model is writing a call that has not started.

    It may come several times for a call, with more members each time, or never. Only `started` makes it a call: nothing is
    decided by this event, and a call that the model does not complete never starts.
    """

    kind: Literal["tool_input"] = "tool_input"
    id: str
    """The id that the call will have."""
    name: str
    """The name of the tool."""
    input: dict[str, Any] = Field(default_factory=dict)
    """The members that are complete."""


class ToolOutput(Event):
    """A part of the output of a started call, while it runs. The result has the whole output again."""

    kind: Literal["tool_output"] = "tool_output"
    tool_call_id: str
    """The id of the call."""
    text: str
    """The part."""


class FileChange(BaseModel):
    """A part of a file before and after an edit, with lines around it where they are known."""

    model_config = ConfigDict(frozen=True)
    path: str
    """The path that the call names."""
    old_text: str | None = Field(default=None, exclude_if=_absent)
    """The lines before; None in a new file."""
    new_text: str
    """The lines after."""
    line: int | None = Field(default=None, exclude_if=_absent)
    """The number of the first line of `new_text` in the changed file."""


class ToolResult(Event):
    """What a started tool call gave."""

    kind: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    """The id of the call."""
    output: Any
    """Text, or a list of content blocks, or any JSON value."""
    is_error: bool = False
    """The call has failed."""
    parent_id: str | None = Field(default=None, exclude_if=_absent)
    """As in the call."""
    changes: tuple[FileChange, ...] = Field(default=(), exclude_if=_is_empty)
    """The hunks that an edit has changed, if the CLI reports them."""
    exit_code: int | None = Field(default=None, exclude_if=_absent)
    """The exit code of a command, if it is known."""


class DeniedResult(ToolResult):
    """The result of a call that a driver has denied without asking the client. Policy enforcement records the denial in the audit
    and passes it on as a ToolResult: what is stored, and what a client gets."""

    def tool_result(self) -> ToolResult:
        return ToolResult(**dict(self))


class Subagent(Event):
    """A nested agent."""

    kind: Literal["subagent"] = "subagent"
    id: str
    """The id of the call that made it."""
    status: str
    """`started`, then `completed` or `failed`."""
    label: str
    """What it does, for people."""


class Hook(Event):
    """A hook of a plugin or of the user's settings. The lifecycle hooks SessionStart, Stop and Notification never come."""

    kind: Literal["hook"] = "hook"
    id: str
    """The CLI's id of it."""
    name: str
    """The CLI's name of it, or of the event that it is for."""
    status: str
    """`started`, then `completed` or `failed`."""


class Notice(Event):
    """The CLI tells its user something that is no part of the answer, such as a warning about a limit."""

    kind: Literal["notice"] = "notice"
    severity: Literal["info", "warning", "error"] = "info"
    """How important it is."""
    text: str
    """What it says, for people; the first line may be a title."""


class Usage(Event):
    """Tokens of this run (not of the session), counted once.

    A run has one at its end, or several, each with what was used since the one before: their sum is what the run has used.
    """

    kind: Literal["usage"] = "usage"
    input_tokens: int = 0
    """Without those that the cache served."""
    output_tokens: int = 0
    """With those of the reasoning."""
    cache_read: int = 0
    """Tokens that the cache served."""
    cache_write: int = 0
    """Tokens that were written to the cache."""
    reasoning_tokens: int = Field(default=0, exclude_if=_is_zero)
    """The part of `output_tokens` that the model has used to think, if the CLI reports it."""
    cost_usd: float | None = Field(default=None, exclude_if=_absent)
    """The price in US dollars, by the CLI's own price list, if it reports it."""

    def plus(self, other: Usage) -> Usage:
        """The sum of both."""
        costs = [usage.cost_usd for usage in (self, other) if usage.cost_usd is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            # Sums of floating-point numbers have digits that are noise; a token costs more than 1e-9 dollars.
            cost_usd=round(sum(costs), 9) if costs else None,
        )

    def beyond(self, part: Usage) -> Usage:
        """What is left of it without a part, and never less than nothing. The price is the whole one."""
        return Usage(
            input_tokens=max(0, self.input_tokens - part.input_tokens),
            output_tokens=max(0, self.output_tokens - part.output_tokens),
            cache_read=max(0, self.cache_read - part.cache_read),
            cache_write=max(0, self.cache_write - part.cache_write),
            reasoning_tokens=max(0, self.reasoning_tokens - part.reasoning_tokens),
            cost_usd=self.cost_usd,
        )


NO_USAGE = Usage()
"""Nothing was used, or is known."""


class RateLimit(Event):
    """The state of a usage limit of the user's account, when the CLI reports it."""

    kind: Literal["rate_limit"] = "rate_limit"
    status: Literal["allowed", "warning", "rejected"]
    """`rejected`: the limit is reached."""
    limit: str | None = Field(default=None, exclude_if=_absent)
    """The CLI's own name of it, such as `five_hour`."""
    utilization: float | None = Field(default=None, exclude_if=_absent)
    """The fraction that is used."""
    resets_at: float | None = Field(default=None, ge=0, lt=YEAR_10000, exclude_if=_absent)
    """When it resets, in seconds since the epoch."""
    waiting: bool = Field(default=False, exclude_if=_is_false)
    """The gateway continues the run at that time."""


class Stdout(Event):
    """A raw output line that fits none of the structured shapes."""

    kind: Literal["stdout"] = "stdout"
    line: str


class Stderr(Event):
    """A raw line of standard error; only after a non-zero exit."""

    kind: Literal["stderr"] = "stderr"
    line: str


class SessionEnd(Event):
    """Always the last event of a run."""

    kind: Literal["session_end"] = "session_end"
    exit_code: int
    """0 is success."""
    duration_ms: int = 0
    """Milliseconds since the prompt. The runtime sets it."""
    stop_reason: StopReason = "end_turn"
    """Why the run has ended."""
    prompt_kept: bool = Field(default=True, exclude_if=_is_true)
    """False if the CLI's own conversation has nothing of this run, not even the prompt, because a hook has refused that."""


class Error(Event):
    """A run fails; a `session_end` with a non-zero exit code follows."""

    kind: Literal["error"] = "error"
    message: str
    """Why, for people."""
    resets_at: float | None = Field(default=None, ge=0, lt=YEAR_10000, exclude_if=_absent)
    """When the usage limit resets that is the reason, if the CLI reports it: in seconds since the epoch."""


class NativeSession(Event):
    """The CLI's own session."""

    kind: Literal["native_session"] = "native_session"
    native_id: str | None = None
    """The id by which the CLI resumes it."""
    model: str | None = None
    """The model that it works with."""


class MessageEnd(Event):
    """One message of the assistant is complete; text that follows belongs to the next."""

    kind: Literal["message_end"] = "message_end"
    discarded: bool = False
    """The CLI lost the rest of the message and requests it again from the model; what was streamed does not count."""


class PermissionChoice(BaseModel):
    """An answer of the CLI's own to a request for permission, such as a rule for this command. The CLI applies what it means."""

    model_config = ConfigDict(frozen=True)
    id: str
    """The `choice` of the reply."""
    name: str
    """What it does, for people."""
    kind: Literal["allow_once", "allow_always", "reject_once", "reject_always"]
    """Its kind in the Agent Client Protocol (page "Tool Calls")."""


Decider = Literal["gateway", "client", "cli"]
"""Who decides about a call that needs permission. docs/who-decides.md has the whole order.

`gateway`: a rule, the trust in the tool, or else the client. `client`: a rule can deny the call, but neither a rule nor trust
permits it, because no sandbox confines it. `cli`: the CLI by its own rules, unless a rule of the gateway decides.
"""


class AwaitedCall(BaseModel):
    """A started call that waits for the client.

    As JSON, `decided_by` is `"client_decides": true` or `"cli_decides": true`, and absent for the gateway.
    """

    model_config = ConfigDict(frozen=True)
    id: str
    """The id of the call."""
    wants: Literal["result", "permission", "answer"]
    """Its result, the permission to run, or the user's answer to the questions in its input."""
    optional: bool = False
    """The call needs no answer: it is trusted, but runs only after the others. The client can still refuse it."""
    decided_by: Decider = "gateway"
    """Who decides about the permission."""
    choices: tuple[PermissionChoice, ...] = ()
    """Answers of the CLI's own. If one of them is a rejection, there are no other answers."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        named = next((decider for decider in ("client", "cli") if given.get(f"{decider}_decides") is True), None)
        return {**given, "decided_by": named} if named else given

    @model_serializer
    def _write(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "wants": self.wants,
            **({"optional": True} if self.optional else {}),
            **({f"{self.decided_by}_decides": True} if self.decided_by != "gateway" else {}),
            **({"choices": self.choices} if self.choices else {}),
        }


class Awaiting(Event):
    """The agent does nothing more until each of these calls is answered."""

    kind: Literal["awaiting"] = "awaiting"
    calls: tuple[AwaitedCall, ...]
    """All calls that wait."""


class Compacted(Event):
    """The CLI has replaced the conversation so far by a summary, to free context."""

    kind: Literal["compacted"] = "compacted"
    summary: str | None = None
    """The summary, if the CLI reports it."""
    kept: int = Field(default=0, ge=0)
    """The number of messages before this event that the agent still has word for word, after the summary."""
    trigger: str | None = None
    """The CLI's own value, such as `manual` or `auto`."""
    tokens_before: int | None = None
    """How large the conversation was."""


class ContextUse(Event):
    """How full the model's context window is, if the CLI reports both numbers."""

    kind: Literal["context_use"] = "context_use"
    used: int = Field(ge=0)
    """The tokens of the conversation."""
    size: int = Field(gt=0)
    """The tokens of the window."""


class Terminal(Event):
    """The command of a started tool call runs in a terminal of the session's client."""

    kind: Literal["terminal"] = "terminal"
    tool_call_id: str
    """The id of the call."""
    terminal_id: str
    """The client's own id of the terminal."""


class PlanEntry(BaseModel):
    """One step of a plan."""

    model_config = ConfigDict(frozen=True)
    content: str
    """What is to be done."""
    priority: Literal["high", "medium", "low"] = "medium"
    """How important it is."""
    status: Literal["pending", "in_progress", "completed"] = "pending"
    """How far it is."""


class Plan(Event):
    """The agent's whole plan. Only of agents that report it apart from their tool calls."""

    kind: Literal["plan"] = "plan"
    entries: tuple[PlanEntry, ...]


class SlashCommand(BaseModel):
    """A command of the agent: a prompt `/name`, followed by what `hint` describes if there is one."""

    model_config = ConfigDict(frozen=True)
    name: str
    """Its name, without the slash."""
    description: str = ""
    """What it does, for people."""
    hint: str | None = Field(default=None, exclude_if=_absent)
    """What follows the name."""


class Commands(Event):
    """All commands that a prompt may begin with from now on. They replace those reported before."""

    kind: Literal["commands"] = "commands"
    commands: tuple[SlashCommand, ...]


class Title(Event):
    """The agent's title of the session from now on; None removes it."""

    kind: Literal["title"] = "title"
    text: str | None = None


class ModeChanged(Event):
    """The CLI has changed the session's mode by itself, such as by the approval of a plan."""

    kind: Literal["mode"] = "mode"
    mode: str


class StructuredOutput(Event):
    """The answer of a run whose client has asked for JSON of a schema. It precedes `session_end`; the gateway makes it."""

    kind: Literal["output"] = "output"
    value: Any = None
    """The JSON value, which matches the schema."""
    error: str | None = Field(default=None, exclude_if=_absent)
    """Why there is no such value: the answer does not match the schema."""


OutputEvent = Annotated[
    AgentToken
    | Thinking
    | ToolCall
    | ToolResult
    | ToolInput
    | ToolOutput
    | Subagent
    | Hook
    | Notice
    | Usage
    | RateLimit
    | Stdout
    | Stderr
    | SessionEnd
    | Error
    | NativeSession
    | MessageEnd
    | Awaiting
    | Compacted
    | ContextUse
    | Terminal
    | Plan
    | Commands
    | Title
    | ModeChanged
    | StructuredOutput,
    Field(discriminator="kind"),
]

EVENT: TypeAdapter[OutputEvent] = TypeAdapter(OutputEvent)

DELTAS: frozenset[type[Event]] = frozenset((AgentToken, Thinking))
"""Events that come by the thousand: many of a kind are processed at once where that is quicker."""
DELTA_PREFIX: dict[type[Event], bytes] = {
    AgentToken: b'{"kind":"agent_token","text":',
    Thinking: b'{"kind":"thinking","text":',
}
"""What a delta begins with as JSON. Its text and a closing brace follow."""


def encode_deltas(events: Sequence[AgentToken | Thinking]) -> list[bytes]:
    """What `encode()` returns for each of these events, which are of one kind."""
    joined = to_json([event.text for event in events])
    # Where nothing is escaped, no text has the separator in it.
    texts = joined[2:-2].split(b'","') if b"\\" not in joined else [to_json(event.text)[1:-1] for event in events]
    return [b'%b"%b"}' % (DELTA_PREFIX[type(events[0])], text) for text in texts]


def decode(data: bytes | str) -> OutputEvent:
    """The event that `encode()` wrote. Raises pydantic.ValidationError for anything else."""
    return EVENT.validate_json(data)
