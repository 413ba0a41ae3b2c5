"""Requests of `POST /v1/chat/completions`: their fields, and what they mean to a conversation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError, from_json

from drivers.contract.driver_info import ToolSpec
from drivers.contract.messages import (
    AssistantMessage,
    Content,
    ContentBlock,
    ImageBlock,
    Message,
    SystemMessage,
    TextBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    text_of,
)
from gateway.errors import BadRequest
from gateway.protocols.model_apis.answer_options import required_tools, schema_of
from gateway.protocols.model_apis.unshown_content import file_text, not_shown
from gateway.text_limits import MAX_NAME, Name

REFUSED: Mapping[str, tuple[Sequence[Any], str]] = {
    "functions": ([[]], "send `tools` instead"),
    "function_call": ([], "send `tool_choice` instead"),
    "n": ([1], "an agent gives one answer; leave it out"),
    "logprobs": ([False], "agents do not report them; leave it out"),
    "top_logprobs": ([0], "agents do not report them; leave it out"),
    "audio": ([], "answers are text; leave it out"),
    "modalities": ([["text"], []], "answers are text; leave it out"),
    "web_search_options": ([], "only the client's tools and those of the agent can be used; leave it out"),
}
"""Fields that are not supported, with the values that ask for nothing, and what to do."""
_PARTS: Mapping[str, str] = {
    "system": "'text'",
    "developer": "'text'",
    "user": "'text' or 'image_url'",
    "tool": "'text' or 'image_url'",
    "assistant": "'text' or 'refusal'",
}
"""The content parts that messages have, by their role."""
NOT_TAKEN = frozenset(("file", "input_audio", "video_url", "audio_url"))
"""Parts that agents do not take. The text of a file is given as text."""
_TEXT_ONLY = {"role", "content"}
_PLAIN: Mapping[str, Callable[..., Message]] = {
    "system": SystemMessage,
    "developer": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
}
"""Messages of a text only, by their role."""
_EMPTY: Sequence[Any] = (None, [], {})
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


class _Fields(BaseModel):
    # Clients send fields that are not in the API's documentation, too.
    model_config = ConfigDict(extra="allow", frozen=True)

    def unknown(self, prefix: str) -> Iterable[str]:
        """The names of fields that are not of this class and have a value."""
        return (prefix + name for name, value in (self.model_extra or {}).items() if value not in _EMPTY)


class FunctionCall(_Fields):
    name: str = Field(min_length=1)
    arguments: str = Field(description="A JSON object as text.")


class ToolCall(_Fields):
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


def _readable_error(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        raise PydanticCustomError("content", "must be a text, or a list of parts") from None


class ChatMessage(_Fields):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | list[dict[str, Any]] | None, WrapValidator(_readable_error)] = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None


class Function(_Fields):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(_Fields):
    type: Literal["function"]
    function: Function


class StreamOptions(_Fields):
    include_usage: bool | None = None


class ChatCompletionRequest(_Fields):
    """A whole conversation, whose last messages are new. `model` is an agent, or `AGENT/MODEL`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "echo", "messages": [{"role": "user", "content": "hello"}]},
                {
                    "model": "echo",
                    "messages": [
                        {"role": "system", "content": "Be brief."},
                        {"role": "user", "content": "hello"},
                        {"role": "assistant", "content": "hello"},
                        {"role": "user", "content": "Once more."},
                    ],
                    "stream": True,
                    "stream_options": {"include_usage": True},
                },
            ]
        }
    )

    model: str = Field(min_length=1, max_length=MAX_NAME)
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[Tool] | None = None
    tool_choice: Annotated[Any, Field(description="`auto`, `none`, `required`, or a function by its name.")] = None
    response_format: Annotated[Any, Field(description="`text`, `json_object`, or `json_schema` with a schema.")] = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Name | None = None
    prompt_cache_key: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class ChatConversation:
    """What a request asks for. `ignored` are the names of its fields that have no effect.

    `required` are the names of the tools of which the answer has to call one. `schema` is that of the answer, in `schema_field`.
    """

    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...]
    call_tools: bool
    ignored: Sequence[str]
    required: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    schema_field: str = ""


def read_conversation(request: ChatCompletionRequest) -> ChatConversation:
    """Return the conversation of a request. Raises BadRequest that names the field that is not supported."""
    for name, value in (request.model_extra or {}).items():
        refused = REFUSED.get(name)
        if refused is not None and value is not None and value not in refused[0]:
            raise BadRequest(f"{name}: this value is not supported; {refused[1]}")
    ignored = [name for name in request.unknown("") if name not in REFUSED]
    if request.parallel_tool_calls is False:
        ignored.append("parallel_tool_calls")
    if request.stream_options is not None:
        ignored += request.stream_options.unknown("stream_options.")
    messages = [_message(message, n, ignored) for n, message in enumerate(request.messages)]
    if all(isinstance(message, SystemMessage) for message in messages):
        # A model answers these, too. An agent needs a prompt.
        messages[-1] = UserMessage(content=messages[-1].content)
    tools = tuple(_tool(tool, ignored) for tool in request.tools or ())
    required = _required(request.tool_choice, [tool.name for tool in tools], ignored)
    schema, schema_field = schema_of(request.response_format, "response_format", "json_schema")
    call_tools = request.tool_choice != "none"
    return ChatConversation(messages, tools, call_tools, [*dict.fromkeys(ignored)], required, schema, schema_field)


def _required(choice: Any, names: Sequence[str], ignored: list[str]) -> tuple[str, ...]:
    """The names of the tools of which the answer has to call one; none if it may be text."""
    where = "tool_choice"
    if choice in (None, "auto", "none"):
        return ()
    if choice == "required":
        return required_tools(None, names, where)
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    given = choice.get(kind) if kind is not None else None
    if kind in ("function", "custom") and isinstance(given, Mapping):
        return required_tools([str(given.get("name"))], names, f"{where}.{kind}.name")
    if kind == "allowed_tools" and isinstance(given, Mapping):
        allowed = [tool[tool["type"]]["name"] for tool in given.get("tools") or () if _is_named(tool)]
        if given.get("mode") == "required":
            return required_tools(allowed, names, f"{where}.allowed_tools.tools")
        ignored.append(where)
        return ()
    raise BadRequest(f"{where}: send 'auto', 'none', 'required', or a function with its name")


def _is_named(tool: Any) -> bool:
    return isinstance(tool, Mapping) and isinstance(tool.get(tool.get("type")), Mapping) and "name" in tool[tool["type"]]


def is_background_task(messages: Sequence[Message]) -> bool:
    """Whether no message will follow: Open WebUI (0.12.4) begins its requests for titles, tags and questions like this."""
    spoken = [message for message in messages if not isinstance(message, SystemMessage)]
    return len(spoken) == 1 and text_of(spoken[0].content).startswith("### Task:")


def _tool(tool: Tool, ignored: list[str]) -> ToolSpec:
    function = tool.function
    ignored += (*tool.unknown("tools."), *function.unknown("tools.function."))
    return ToolSpec(function.name, function.description or "", function.parameters or _NO_PARAMETERS)


def _message(message: ChatMessage, position: int, ignored: list[str]) -> Message:
    plain = _PLAIN.get(message.role)
    if plain is not None and message.model_fields_set == _TEXT_ONLY and isinstance(message.content, str):
        # Each request has all messages of its conversation, and most are like this.
        return plain(content=message.content)
    where = f"messages.{position}"
    _check_fields(message, where)
    ignored += message.unknown("messages.")
    content = _content(message, where, ignored)
    if message.role == "assistant":
        return _answer(message, content, where, ignored)
    if message.content is None:
        raise BadRequest(f"{where}.content: is required; a text, or a list of parts")
    if message.role == "tool":
        if not message.tool_call_id:
            raise BadRequest(f"{where}.tool_call_id: is required; the id of the call that this is the result of")
        return ToolMessage(tool_call_id=message.tool_call_id, content=content)
    if message.role == "user":
        return UserMessage(content=content)
    return SystemMessage(content=content if isinstance(content, str) else _text(content))


def _check_fields(message: ChatMessage, where: str) -> None:
    """Raises BadRequest for fields that no message has here, or that messages with another role have."""
    for name in ("function_call", "audio"):
        if (message.model_extra or {}).get(name) is not None:
            raise BadRequest(f"{where}.{name}: not supported; leave it out, and send `tool_calls` for calls")
    for name, role in (("tool_calls", "assistant"), ("refusal", "assistant"), ("tool_call_id", "tool")):
        if getattr(message, name) and message.role != role:
            raise BadRequest(f"{where}.{name}: only messages with the role {role!r} have it")


def _answer(message: ChatMessage, content: Content, where: str, ignored: list[str]) -> AssistantMessage:
    found: list[ContentBlock] = []
    if text := (content if isinstance(content, str) else _text(content)) + (message.refusal or ""):
        found.append(TextBlock(text=text))
    for n, call in enumerate(message.tool_calls or ()):
        ignored += (*call.unknown("messages.tool_calls."), *call.function.unknown("messages.tool_calls.function."))
        given = _arguments(call.function.arguments, f"{where}.tool_calls.{n}.function.arguments")
        found.append(ToolUseBlock(tool_call_id=call.id, name=call.function.name, input=given))
    return AssistantMessage(content=tuple(found))


def _arguments(text: str, where: str) -> dict[str, Any]:
    # Some clients send nothing for a call without arguments.
    if not text.strip():
        return {}
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"{where}: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"{where}: must be a JSON object")
    return value


def _content(message: ChatMessage, where: str, ignored: list[str]) -> Content:
    given = message.content
    if given is None or isinstance(given, str):
        return given or ""
    return tuple(_part(part, message.role, f"{where}.content.{n}", ignored) for n, part in enumerate(given))


def _part(part: Mapping[str, Any], role: str, where: str, ignored: list[str]) -> ContentBlock:
    kind = part.get("type")
    if kind == "image_url" and role in ("user", "tool"):
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else None
        if not isinstance(image, dict) or not isinstance(url, str):
            raise BadRequest(f"{where}.image_url.url: must be a text, with the address of the image")
        ignored += (f"messages.content.image_url.{name}" for name in image if name != "url" and image[name] not in (None, "auto"))
        block: ContentBlock = ImageBlock(url=url)
    elif kind == "text" or (kind == "refusal" and role == "assistant"):
        text = part.get(kind)
        if not isinstance(text, str):
            raise BadRequest(f"{where}.{kind}: must be a text")
        block = TextBlock(text=text)
    elif kind in NOT_TAKEN and role in ("user", "tool"):
        ignored.append(f"messages.content.{kind}")
        file = part.get("file")
        return TextBlock(text=file_text(file) if isinstance(file, dict) else not_shown(str(kind).removeprefix("input_")))
    else:
        shown = repr(kind[:50]) if isinstance(kind, str) else "this"
        raise BadRequest(f"{where}.type: {shown} is not supported in messages with the role {role!r}; use {_PARTS[role]}")
    ignored += (f"messages.content.{name}" for name, value in part.items() if name not in ("type", kind) and value not in _EMPTY)
    return block


def _text(blocks: Iterable[ContentBlock]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))
