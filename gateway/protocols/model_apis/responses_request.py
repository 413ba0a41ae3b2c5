"""Requests of OpenAI's `POST /v1/responses`: their fields, and what their items are as messages of a conversation. Pure.

A field that has no effect here is named in the response's header `X-Portico-Ignored`. One without which the request would mean
something else is refused. docs/protocols/responses.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

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
)
from gateway.errors import BadRequest
from gateway.protocols.model_apis.answer_options import required_tools, schema_of
from gateway.protocols.model_apis.tool_forms import ToolForm, agent_name_of, tool_forms, unread_fields
from gateway.protocols.model_apis.unshown_content import file_text, not_shown
from gateway.text_limits import MAX_NAME, Metadata, Name

Item = Mapping[str, Any]
"""An item of the API as JSON data."""

REFUSED: Mapping[str, str] = {
    "messages": "it is a field of /v1/chat/completions; send `input` instead",
    "functions": "send `tools` instead",
    "prompt": "there are no stored prompts here; send `instructions` and `input`",
    "top_logprobs": "agents do not report them; leave it out",
    "modalities": "answers are text; leave it out",
    "audio": "answers are text; leave it out",
}
"""Fields of a request that would change what it means, and what to do."""
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "truncation": ("disabled",),
    "service_tier": ("auto", "default"),
    "parallel_tool_calls": (True,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
}
"""Values that ask for what is so anyway."""
USED = frozenset(
    {
        "model", "input", "instructions", "tools", "tool_choice", "previous_response_id", "conversation", "store", "stream",
        "background", "metadata", "reasoning", "text", "prompt_cache_key", "user",
    }
)  # fmt: skip
_TYPES = "message, function_call, function_call_output, custom_tool_call, custom_tool_call_output, reasoning or item_reference"
CALLS = frozenset(("function_call", "custom_tool_call"))
OUTPUTS = frozenset(("function_call_output", "custom_tool_call_output"))
NOT_SHOWN = frozenset(
    {
        "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call",
        "computer_call_output", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output",
        "apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_call", "mcp_approval_request",
        "mcp_approval_response", "tool_search_call", "tool_search_output", "compaction", "compaction_summary",
    }
)  # fmt: skip
"""Items of tools that the vendor's servers run, and of its own summaries: no agent has them."""
FILES = ("input_file", "input_audio", "input_video")


class ConversationParam(BaseModel):
    """A conversation by its id."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str = Field(min_length=1, max_length=64)


class ResponsesRequest(BaseModel):
    """New items of a conversation. `model` is `AGENT` or `AGENT/MODEL`; without it, that of the previous response."""

    model_config = ConfigDict(
        extra="allow",
        frozen=True,
        json_schema_extra={
            "examples": [
                {"model": "echo", "input": "hello"},
                {
                    "model": "script",
                    "instructions": "Be brief.",
                    "input": [
                        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Is it raining in Rome?"}]}
                    ],
                    "tools": [
                        {
                            "type": "function",
                            "name": "weather",
                            "description": "The weather of a city.",
                            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                        }
                    ],
                    "stream": True,
                },
            ]
        },
    )

    model: str | None = Field(default=None, min_length=1, max_length=MAX_NAME)
    input: str | list[dict[str, Any]] = Field(description="A text of the user, or items.")
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    previous_response_id: Name | None = None
    conversation: Name | ConversationParam | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    metadata: Metadata | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationParam) else self.conversation

    @property
    def items(self) -> Sequence[Item]:
        if isinstance(self.input, str):
            return ({"type": "message", "role": "user", "content": self.input},)
        return self.input

    def references(self) -> list[str]:
        """The ids of the items that are given by reference."""
        return [_text(item, "id", f"input.{n}") for n, item in enumerate(self.items) if _kind(item) == "item_reference"]


class Conversation:
    """What a request asks: its messages without the instructions, and its tools. Raises BadRequest.

    `items` are those that are given by reference, by their ids. `ignored` are the names of fields that have no effect.
    """

    def __init__(self, request: ResponsesRequest, items: Mapping[str, Item]) -> None:
        self._ignored: dict[str, None] = {}
        self._check_fields(request)
        self.effort = self._effort(request.reasoning or {})
        self.call_tools = request.tool_choice != "none"
        """Whether the client takes calls of its tools."""
        self._not_run: set[str] = set()
        self.forms: tuple[ToolForm, ...] = tuple(self._forms(request.tools or ()))
        """The tools as the client has described them."""
        self.tools: tuple[ToolSpec, ...] = tuple(form.spec() for form in self.forms)
        self.required = self._required(request.tool_choice, [tool.name for tool in self.tools])
        """The names of the tools of which the answer has to call one."""
        self.messages: tuple[Message, ...] = tuple(self._messages(request.items, items))

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(self._ignored)

    def ignore(self, name: str) -> None:
        """Name a field as one that has no effect."""
        self._ignored[name] = None

    # -- fields of the request --------------------------------------------------------------------------------------------

    def _check_fields(self, request: ResponsesRequest) -> None:
        given = {**dict(request), **(request.model_extra or {})}
        for name, value in given.items():
            if value in (None, [], {}) or value in NEUTRAL.get(name, ()) or name in USED:
                continue
            if name in REFUSED:
                raise BadRequest(f"{name}: {REFUSED[name]}")
            self.ignore(name)
        if request.previous_response_id and request.conversation:
            raise BadRequest("previous_response_id: leave it out where `conversation` is given, which has a newest response")
        if request.store is False and request.background:
            raise BadRequest("background: a response in the background has to be stored; leave `store` out")
        if request.store is False and request.conversation:
            raise BadRequest("conversation: its responses have to be stored; leave `store` out")
        text = request.text or {}
        self.schema, self.schema_field = schema_of(text.get("format"), "text.format")
        """The JSON schema of the answer, None for text, and the field that has it."""
        self._ignore_others(text, ("format",), "text.")

    def _ignore_others(self, given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
        for name, value in given.items():
            if value is not None and name not in known:
                self.ignore(f"{where}{name}")

    def _effort(self, reasoning: Mapping[str, Any]) -> str | None:
        # A summary is what there is of the reasoning anyway.
        self._ignore_others(reasoning, ("effort", "summary", "generate_summary"), "reasoning.")
        effort = reasoning.get("effort")
        if effort is not None and not isinstance(effort, str):
            raise BadRequest("reasoning.effort: must be a string")
        return effort

    def _required(self, choice: str | Item | None, names: Sequence[str]) -> tuple[str, ...]:
        if choice in (None, "auto", "none"):
            return ()
        if choice == "required":
            return required_tools(None, names, "tool_choice")
        kind = choice.get("type") if isinstance(choice, Mapping) else None
        if isinstance(choice, Mapping) and kind in ("function", "custom"):
            return required_tools([_agent_name(choice)], names, "tool_choice.name")
        if isinstance(choice, Mapping) and kind == "allowed_tools" and choice.get("mode") == "required":
            allowed = [_agent_name(tool) for tool in choice.get("tools") or () if isinstance(tool, Mapping)]
            allowed = [name for name in allowed if name not in self._not_run]
            return required_tools(allowed, names, "tool_choice.tools")
        if kind is None:
            raise BadRequest(f"tool_choice: {_shown(choice)} is not one; send auto, none, required, or a function with its name")
        # Tools that only the vendor's servers run.
        self.ignore("tool_choice")
        return ()

    def _forms(self, tools: Sequence[Item]) -> Iterator[ToolForm]:
        for form in tool_forms(tools):
            if not isinstance(form, ToolForm):
                # Tools that only the vendor's servers run.
                kind, name = form
                self.ignore(f"tools.{kind}")
                self._not_run |= {kind, name}
                continue
            if form.given.get("strict"):
                self.ignore("tools.strict")
            for name in unread_fields(form.given):
                self.ignore(f"tools.{name}")
            yield form

    # -- items ------------------------------------------------------------------------------------------------------------

    def _messages(self, items: Sequence[Item], referenced: Mapping[str, Item]) -> Iterator[Message]:
        """The messages of the items. Text and calls of the assistant in a row are one message."""
        answer: list[ContentBlock] = []
        for n, given in enumerate(items):
            at = f"input.{n}"
            item = referenced[given["id"]] if _kind(given) == "item_reference" else given
            kind = _kind(item)
            if kind == "reasoning":
                # The agent has its own, and no CLI can be given any.
                self.ignore("input.reasoning")
            elif kind in CALLS:
                answer.append(_call(item, at, custom=kind == "custom_tool_call"))
            elif kind in NOT_SHOWN:
                # Of tools that other models had in this conversation.
                self.ignore(f"input.{kind}")
            elif kind == "message" and item.get("role") == "assistant":
                answer += self._content(item.get("content"), f"{at}.content", ("output_text", "input_text", "refusal"))
            else:
                if answer:
                    yield AssistantMessage(content=tuple(answer))
                    answer = []
                yield self._other(item, kind, at)
        if answer:
            yield AssistantMessage(content=tuple(answer))

    def _other(self, item: Item, kind: str, at: str) -> Message:
        if kind in OUTPUTS:
            call_id = _text(item, "call_id", at)
            return ToolMessage(tool_call_id=call_id, content=self._text_and_images(item.get("output"), f"{at}.output"))
        if kind != "message":
            raise BadRequest(f"{at}.type: {_shown(item.get('type'))} is not supported; send {_TYPES}")
        role, content = item.get("role"), item.get("content")
        if role == "user":
            return UserMessage(content=self._text_and_images(content, f"{at}.content"))
        if role in ("system", "developer"):
            parts = self._content(content, f"{at}.content", ("input_text",))
            return SystemMessage(content="".join(part.text for part in parts if isinstance(part, TextBlock)))
        raise BadRequest(f"{at}.role: {_shown(role)} is not one; send user, assistant, system or developer")

    def _text_and_images(self, content: Any, at: str) -> Content:
        kinds = ("input_text", "input_image", *FILES)
        return content if isinstance(content, str) else tuple(self._content(content, at, kinds))

    def _content(self, content: Any, at: str, kinds: Sequence[str]) -> Iterator[ContentBlock]:
        if isinstance(content, str):
            if content:
                yield TextBlock(text=content)
            return
        if not isinstance(content, list):
            raise BadRequest(f"{at}: must be a text, or a list of parts")
        for n, part in enumerate(content):
            where = f"{at}.{n}"
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind not in kinds:
                raise BadRequest(f"{where}.type: {_shown(kind)} is not supported here; send {' or '.join(kinds)}")
            if kind in FILES:
                self.ignore(f"input.content.{kind}")
                yield TextBlock(text=file_text(part) if kind == "input_file" else not_shown(kind.removeprefix("input_")))
            elif kind == "input_image":
                yield ImageBlock(url=self._image(part, where))
            elif text := _text(part, "refusal" if kind == "refusal" else "text", where, empty=True):
                yield TextBlock(text=text)

    def _image(self, part: Item, at: str) -> str:
        if part.get("file_id"):
            raise BadRequest(f"{at}.file_id: no files are kept here; send image_url, with https:// or data:")
        if part.get("detail") not in (None, "auto"):
            self.ignore("input.content.detail")
        return _text(part, "image_url", at)


def _kind(item: Item) -> str:
    """The type of an item. Messages and references may be without one."""
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference" if set(item) == {"id"} else None
    return kind if isinstance(kind, str) else ""


def _agent_name(item: Item) -> str:
    """The name of a tool that an item or a choice names."""
    namespace = item.get("namespace")
    return agent_name_of(str(item.get("name")), namespace if isinstance(namespace, str) and namespace else None)


def _call(item: Item, at: str, *, custom: bool) -> ToolUseBlock:
    _text(item, "name", at)
    if custom:
        given: Any = {"input": _text(item, "input", at, empty=True)}
        return ToolUseBlock(tool_call_id=_text(item, "call_id", at), name=_agent_name(item), input=given)
    arguments = _text(item, "arguments", at, empty=True)
    try:
        given = from_json(arguments or "{}", allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"{at}.arguments: not JSON: {error}") from error
    if not isinstance(given, dict):
        raise BadRequest(f"{at}.arguments: must be a JSON object")
    return ToolUseBlock(tool_call_id=_text(item, "call_id", at), name=_agent_name(item), input=given)


def _text(item: Item, name: str, at: str, *, empty: bool = False) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise BadRequest(f"{at}.{name}: must be a text" + ("" if empty else " that is not empty"))
    return value


def _shown(value: Any) -> str:
    """A value of the client for an error text."""
    if isinstance(value, Mapping):
        value = value.get("type")
    return repr(value)[:80]
