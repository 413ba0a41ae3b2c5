"""Requests of Anthropic's Messages API, and what they are as a conversation.

A field that has no effect here is named in the response's header `X-Portico-Ignored`. One without which the request would mean
something else is refused. docs/protocols/anthropic.md has the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from drivers.contract.driver_info import ToolSpec
from drivers.contract.messages import (
    AssistantMessage,
    ContentBlock,
    ImageBlock,
    Message,
    SystemMessage,
    TextBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    blocks,
    data_uri,
    text_of,
)
from gateway.errors import BadRequest
from gateway.protocols.model_apis.answer_options import required_tools, schema_of
from gateway.protocols.model_apis.unshown_content import document_text, named_text, not_shown
from gateway.text_limits import MAX_NAME

Block = Mapping[str, Any]

REFUSED: Mapping[str, str] = {
    "mcp_servers": "the gateway connects to no MCP servers for a request; configure them in the agent's program",
    "container": "there are no containers and no skills of the API here",
}
"""Fields of a request that would change what it means, and why they are refused."""
NOT_TAKEN = frozenset(("document", "search_result", "container_upload"))
"""Blocks of the user that agents do not take. The text of some is given as text.

`tool_reference` is refused: Claude Code (2.1.332) then sends the conversation again with all its tools. A CLI gets no more tools
in the middle of a run.
"""
OF_SERVERS = frozenset(
    (
        "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
        "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result", "mcp_tool_use",
        "mcp_tool_result", "container_upload", "compaction",
    )
)  # fmt: skip
"""Blocks of tools that the vendor's servers run, and of its own summaries: no agent has them."""
BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")
"""What a system prompt begins with that Claude Code (2.1.329) sends for Anthropic's accounting. It is left out: it
differs in each request, and no request would continue the conversation of the one before."""


class MessageParam(BaseModel):
    """A message: a text, or content blocks."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class ToolParam(BaseModel):
    """A tool of the client. Those of `type` other than `custom` are run by Anthropic's servers."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(min_length=1)
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class CountTokensRequest(BaseModel):
    """A conversation whose tokens are counted. `model` is `AGENT` or `AGENT/MODEL`."""

    model_config = ConfigDict(
        extra="allow",
        frozen=True,
        json_schema_extra={"examples": [{"model": "echo", "messages": [{"role": "user", "content": "hello"}]}]},
    )

    model: str = Field(min_length=1, max_length=MAX_NAME)
    messages: list[MessageParam] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest):
    """A conversation whose last message is new."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "echo", "max_tokens": 1024, "messages": [{"role": "user", "content": "hello"}]},
                {
                    "model": "echo",
                    "max_tokens": 1024,
                    "stream": True,
                    "thinking": {"type": "adaptive"},
                    "system": "Be brief.",
                    "messages": [{"role": "user", "content": [{"type": "text", "text": "Is it raining in Rome?"}]}],
                },
            ]
        }
    )

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    thread: dict[str, Any] | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether the client wants blocks of thinking."""
        thinking = self.thinking or {}
        return thinking.get("type", "disabled") != "disabled" and thinking.get("display") != "omitted"


class Conversation:
    """The messages and the tools of a request. `ignored` are the names of its fields that have no effect. Raises BadRequest."""

    def __init__(self, request: CountTokensRequest) -> None:
        self._ignored: dict[str, None] = {}
        self._check_fields(request)
        self.messages: tuple[Message, ...] = (*self._system(request.system, "system"), *self._messages(request.messages))
        self._not_run: set[str] = set()
        self.tools: tuple[ToolSpec, ...] = tuple(self._tools(request.tools or ()))
        self.required = self._required(request.tool_choice, [tool.name for tool in self.tools])
        """The names of the tools of which the answer has to call one."""
        self.call_tools = (request.tool_choice or {}).get("type") != "none"
        self.effort = self._effort(request.output_config or {})
        self.user_id = self._user_id(request) if isinstance(request, MessagesRequest) else None
        """The client's id of its user, or of its conversation."""

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(self._ignored)

    def ignore(self, name: str) -> None:
        """Name a field as one that has no effect."""
        self._ignored[name] = None

    def _ignore_others(self, given: Mapping[str, Any] | None, known: Iterable[str], where: str) -> None:
        for name, value in (given or {}).items():
            if value is not None and name not in known:
                self.ignore(f"{where}{name}")

    # -- fields of the request --------------------------------------------------------------------------------------------

    def _check_fields(self, request: CountTokensRequest) -> None:
        for name, why in REFUSED.items():
            if (request.model_extra or {}).get(name):
                raise BadRequest(f"{name}: {why}; leave it out")
        if isinstance(request, MessagesRequest):
            self.ignore("max_tokens")
        self._ignore_others(request.model_extra, ("output_format",), "")
        # The field of the API's beta, and its name since.
        before, now = (request.model_extra or {}).get("output_format"), (request.output_config or {}).get("format")
        field = "output_config.format" if now is not None else "output_format"
        self.schema, self.schema_field = schema_of(before if now is None else now, field)
        """The JSON schema of the answer, None for text, and the field that has it."""
        self._ignore_others(request.thinking, ("type", "display"), "thinking.")

    def _effort(self, config: Mapping[str, Any]) -> str | None:
        self._ignore_others(config, ("effort", "format"), "output_config.")
        effort = config.get("effort")
        if effort is not None and not isinstance(effort, str):
            raise BadRequest("output_config.effort: must be a string")
        return effort

    def _user_id(self, request: MessagesRequest) -> str | None:
        self._ignore_others(request.metadata, ("user_id",), "metadata.")
        user_id = (request.metadata or {}).get("user_id")
        if user_id is not None and not isinstance(user_id, str):
            raise BadRequest("metadata.user_id: must be a string")
        return user_id or None

    def _required(self, choice: Mapping[str, Any] | None, names: Sequence[str]) -> tuple[str, ...]:
        kind = (choice or {}).get("type", "auto")
        self._ignore_others(choice, ("type", "name"), "tool_choice.")
        if kind == "any" and self._not_run and not names:
            self.ignore("tool_choice")
            return ()
        if kind == "any":
            return required_tools(None, names, "tool_choice")
        if kind == "tool" and (choice or {}).get("name") in self._not_run:
            self.ignore("tool_choice")
            return ()
        if kind == "tool":
            return required_tools([str((choice or {}).get("name"))], names, "tool_choice.name")
        if kind not in ("auto", "none"):
            raise BadRequest(f"tool_choice.type: {kind!r} is not one; send auto, none, any or tool")
        return ()

    def _tools(self, tools: Sequence[ToolParam]) -> Iterable[ToolSpec]:
        for n, tool in enumerate(tools):
            if tool.type not in (None, "custom"):
                # Tools that the vendor's servers run, or that only its models know.
                self.ignore(f"tools.{tool.type}")
                self._not_run.add(tool.name)
                continue
            if tool.input_schema is None:
                raise BadRequest(f"tools.{n}.input_schema: missing; it is the JSON schema of the tool's input")
            self._ignore_others(tool.model_extra, (), "tools.")
            yield ToolSpec(tool.name, tool.description or "", tool.input_schema)

    # -- messages ---------------------------------------------------------------------------------------------------------

    def _system(self, system: str | Sequence[Block] | None, where: str) -> Iterable[SystemMessage]:
        if isinstance(system, str):
            texts = [system]
        else:
            texts = [self._text(block, f"{where}.{n}", "system.") for n, block in enumerate(system or ())]
        texts = [BILLING.sub("", text, count=1) if BILLING.match(text) else text for text in texts]
        if text := "\n\n".join(text for text in texts if text):
            yield SystemMessage(content=text)

    def _messages(self, messages: Sequence[MessageParam]) -> Sequence[Message]:
        found: list[Message] = []
        for n, message in enumerate(messages):
            self._ignore_others(message.model_extra, (), "messages.")
            where = f"messages.{n}.content"
            if message.role == "system":
                for system in self._system(message.content, where):
                    # Claude Code (2.1.329) sends reminders behind the results of calls. A run that waits for results takes no
                    # message beside them, and would have to begin anew.
                    last = found[-1] if found else None
                    if isinstance(last, ToolMessage):
                        found[-1] = _with_text(last, system.content)
                    else:
                        found.append(system)
            elif message.role == "assistant":
                if content := self._assistant(message.content, where):
                    found.append(AssistantMessage(content=content))
            else:
                found += self._user(message.content, where)
        if messages[-1].role == "assistant":
            raise BadRequest(
                f"messages.{len(messages) - 1}: the last message is of the assistant (a prefill), which an agent cannot "
                "continue; end with a message of the user"
            )
        return found

    def _assistant(self, content: str | Sequence[Block], where: str) -> str | tuple[ContentBlock, ...]:
        if isinstance(content, str):
            return content
        found: list[ContentBlock] = []
        for n, block in enumerate(content):
            at, kind = f"{where}.{n}", block.get("type")
            if kind == "text":
                found.append(TextBlock(text=self._text(block, at)))
            elif kind == "tool_use":
                found.append(self._call(block, at))
            elif kind in ("thinking", "redacted_thinking"):
                # The agent has its own, and no CLI can be given any.
                self.ignore(f"messages.content.{kind}")
            elif kind in OF_SERVERS:
                # Of tools that another model had in this conversation.
                self.ignore(f"messages.content.{kind}")
            else:
                raise BadRequest(f"{at}.type: {_unsupported(kind, 'the assistant', 'text, tool_use or thinking')}")
        return tuple(found)

    def _user(self, content: str | Sequence[Block], where: str) -> Iterable[Message]:
        if isinstance(content, str):
            yield UserMessage(content=content)
            return
        results: list[Message] = []
        found: list[ContentBlock] = []
        for n, block in enumerate(content):
            if block.get("type") == "tool_result":
                results.append(self._result(block, f"{where}.{n}"))
            else:
                found.append(self._text_or_image(block, f"{where}.{n}", "text, image or tool_result"))
        yield from results
        if found or not results:
            yield UserMessage(content=tuple(found))

    def _text_or_image(self, block: Block, where: str, supported: str) -> TextBlock | ImageBlock:
        kind = block.get("type")
        if kind == "text":
            return TextBlock(text=self._text(block, where))
        if kind in NOT_TAKEN:
            self.ignore(f"messages.content.{kind}")
            return TextBlock(text=_as_text(block))
        if kind != "image":
            raise BadRequest(f"{where}.type: {_unsupported(kind, 'the user', supported)}")
        self._ignore_others(block, ("type", "source"), "messages.content.")
        source = block.get("source")
        if not isinstance(source, dict):
            raise BadRequest(f"{where}.source: must be an object")
        kind = source.get("type")
        if kind == "base64":
            media_type, data = (_string(source, name, f"{where}.source") for name in ("media_type", "data"))
            return ImageBlock(url=data_uri(media_type, data))
        if kind == "url":
            return ImageBlock(url=_string(source, "url", f"{where}.source"))
        raise BadRequest(f"{where}.source.type: {kind!r} is not supported; send the image as base64, or its url")

    def _text(self, block: Block, where: str, fields: str = "messages.content.") -> str:
        if block.get("type") != "text":
            raise BadRequest(f"{where}.type: must be text, not {block.get('type')!r}")
        self._ignore_others(block, ("type", "text"), fields)
        return _string(block, "text", where)

    def _call(self, block: Block, where: str) -> ToolUseBlock:
        self._ignore_others(block, ("type", "id", "name", "input"), "messages.content.")
        given = block.get("input", {})
        if not isinstance(given, dict):
            raise BadRequest(f"{where}.input: must be an object")
        return ToolUseBlock(tool_call_id=_string(block, "id", where), name=_string(block, "name", where), input=given)

    def _result(self, block: Block, where: str) -> ToolMessage:
        self._ignore_others(block, ("type", "tool_use_id", "content", "is_error"), "messages.content.")
        call_id, content = _string(block, "tool_use_id", where), block.get("content", "")
        if isinstance(content, list):
            content = tuple(self._part_of_result(part, f"{where}.content.{n}") for n, part in enumerate(content))
        elif not isinstance(content, str):
            raise BadRequest(f"{where}.content: must be a string or a list of content blocks")
        if block.get("is_error") is True and not text_of(content).lower().startswith("error"):
            # Agents get the result without this field.
            content = f"Error: {content}" if isinstance(content, str) else (TextBlock(text="Error: "), *content)
        return ToolMessage(tool_call_id=call_id, content=content)

    def _part_of_result(self, part: Any, where: str) -> TextBlock | ImageBlock:
        if not isinstance(part, dict):
            raise BadRequest(f"{where}: must be a content block")
        return self._text_or_image(part, where, "text or image")


def _as_text(block: Block) -> str:
    """The text of a document or a search result, or that it is not shown."""
    title = block.get("title") if isinstance(block.get("title"), str) else None
    source = block.get("source")
    if isinstance(source, Mapping) and block.get("type") == "document":
        data, kind = source.get("data"), source.get("type")
        if isinstance(data, str):
            media_type = str(source.get("media_type", ""))
            return named_text(data, title) if kind == "text" else document_text(data, media_type, title)
        source = source.get("content", source.get("url"))
    if isinstance(source, str) and block.get("type") == "document" and "://" in source:
        return not_shown(f"document at {source}", title)
    content = block.get("content", source)
    texts = (
        [content]
        if isinstance(content, str)
        else [_text_member(part) for part in content if isinstance(part, Mapping)]
        if isinstance(content, list)
        else []
    )
    text = "\n".join(text for text in texts if text)
    return named_text(text, title) if text else not_shown(str(block.get("type")).replace("_", " "), title)


def _text_member(part: Mapping[str, Any]) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else ""


def _with_text(result: ToolMessage, text: str) -> ToolMessage:
    return ToolMessage(tool_call_id=result.tool_call_id, content=(*blocks(result.content), TextBlock(text=f"\n\n{text}")))


def _unsupported(kind: object, role: str, supported: str) -> str:
    return f"content of type {kind!r} is not supported in a message of {role}; send {supported}"


def _string(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"{where}.{name}: must be a string")
    return value
