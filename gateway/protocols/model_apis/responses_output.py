"""The response object of OpenAI's Responses API, and the events of its stream, made of the parts of an answer. Pure.

Events are numbered. A response that is read again from the log of its session has the same events with the same numbers: they
depend on nothing but the events of the log, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from drivers.contract.driver_info import ToolSpec
from drivers.contract.events import Usage
from gateway.protocols.model_apis.answer import Answer, Call, Part, Reasoning, Refusal, Text
from gateway.protocols.model_apis.responses_request import ResponsesRequest
from gateway.protocols.model_apis.tool_forms import ToolForm, tool_forms

Json = dict[str, Any]
RESPONSE, CONVERSATION = "resp_", "conv_"
"""How the ids of responses and of conversations begin."""
ENCRYPTED = "cG9ydGljbw=="
"""Of each reasoning. Some clients (pydantic-ai 2.68) send a reasoning without it back as text. Nothing here reads it."""
TextKind = type[Text] | type[Reasoning] | type[Refusal]
DONE = b"data: [DONE]\n\n"
_ITEM_PREFIXES: Mapping[str, str] = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}
_INCOMPLETE: Mapping[str, str] = {"length": "max_output_tokens", "refusal": "content_filter"}
"""Why a response is incomplete, by the reason why the answer ends."""


def repeated_fields(request: ResponsesRequest, model: str, tools: Sequence[Json], effort: str | None) -> Json:
    """Return what a response repeats of its request. `tools` are those that its agent has, as the client has described them."""
    given = {**dict(request), **(request.model_extra or {})}
    number = {name: value for name, value in given.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    return {
        "background": bool(request.background),
        "conversation": {"id": request.conversation_id} if request.conversation else None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": number.get("max_tool_calls"),
        "metadata": request.metadata or {},
        "model": model,
        "parallel_tool_calls": True,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": (request.reasoning or {}).get("summary")},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": (request.text or {}).get("format") or {"type": "text"}},
        "tool_choice": request.tool_choice or "auto",
        "tools": [*tools],
        "top_logprobs": 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "presence_penalty": number.get("presence_penalty", 0),
        "frequency_penalty": number.get("frequency_penalty", 0),
        "truncation": "disabled",
        "user": request.user,
    }


def function_tool(tool: ToolSpec) -> Json:
    """Return a tool of an application as a function of this API."""
    described = {"name": tool.name, "description": tool.description, "parameters": dict(tool.input_schema)}
    return {"type": "function", **described, "strict": False}


def described_tools(tools: Sequence[Json]) -> list[Json]:
    """Return the tools of a request that its client runs, as its response repeats them."""
    found: list[Json] = []
    for tool in tools:
        if tool.get("type") == "namespace":
            found.append({**tool, "tools": described_tools(tool["tools"])})
        elif tool.get("type") == "custom":
            found.append(dict(tool))
        elif tool.get("type") == "function":
            found.append(function_tool(ToolForm(tool, None, "").spec()))
    return found


def forms_of(fields: Mapping[str, Any]) -> dict[str, ToolForm]:
    """Return the tools that a response repeats, by the names that its agent has for them."""
    return {form.agent_name: form for form in tool_forms(fields["tools"]) if isinstance(form, ToolForm)}


def frames(events: Iterable[Json]) -> bytes:
    """Return events as server-sent events."""
    return b"".join([b"event: %b\ndata: %b\n\n" % (event["type"].encode(), as_json(event)) for event in events])


def as_json(value: Json) -> bytes:
    """Return JSON, with null for numbers that it cannot have: a request may have one as `1e999`, and the response repeats it."""
    return to_json(value, inf_nan_mode="null")


class ResponseView:
    """A response of which more and more is known. `events` returns those that a part adds; call it once for each.

    Parameters:
        response_id: Its id, of which the ids of its items are made.
        created_at: Seconds since the epoch.
        fields: What it repeats of its request.
    """

    def __init__(self, response_id: str, created_at: float, fields: Mapping[str, Any]) -> None:
        self._id, self._created_at, self._fields = response_id, created_at, fields
        self._forms = forms_of(fields)
        self._output: list[Json] = []
        self._open: _OpenItem | None = None
        self._next = 0

    def begin(self) -> list[Json]:
        """The first events."""
        return [self._event(f"response.{name}", response=self.response()) for name in ("created", "in_progress")]

    def events(self, parts: Iterable[Part]) -> list[Json]:
        """The events that these parts add."""
        found: list[Json] = []
        for part in parts:
            if isinstance(part, Call):
                found += [*self._close(), *self._call(part)]
            else:
                if self._open is None or self._open.kind is not type(part):
                    found += [*self._close(), *self._begin_item(type(part))]
                found.append(self._add(part.text))
        return found

    def end(self, answer: Answer, completed_at: float) -> list[Json]:
        """The last events of an answer that is over."""
        found = self._close("incomplete" if _status(answer) not in ("completed", "failed") else "completed")
        response = self.response(answer, completed_at)
        name = response["status"] if response["status"] in ("completed", "failed") else "incomplete"
        return [*found, self._event(f"response.{name}", response=response)]

    def failed(self, text: str) -> Json:
        """The last event of a stream that the gateway cannot go on with."""
        return self._event("error", code="server_error", message=text, param=None)

    def response(self, answer: Answer | None = None, completed_at: float | None = None) -> Json:
        """The response object as far as it is known; complete once the `answer` is over."""
        status = "in_progress" if answer is None or answer.end is None else _status(answer)
        over = answer is not None and answer.end is not None
        reason = _INCOMPLETE.get(answer.end or "") if answer is not None else None
        output = [*self._output] if self._open is None else [*self._output, self._open.item("in_progress")]
        return {
            "id": self._id,
            "object": "response",
            "created_at": int(self._created_at),
            "completed_at": int(completed_at or self._created_at) if status == "completed" else None,
            "status": status,
            "error": _error(answer) if answer is not None else None,
            "incomplete_details": {"reason": reason} if reason else None,
            "output": output,
            "usage": _usage(answer.usage) if answer is not None and over else None,
            **self._fields,
        }

    # -- items ------------------------------------------------------------------------------------------------------------

    def _event(self, kind: str, **fields: Any) -> Json:
        number, self._next = self._next, self._next + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _item_id(self, kind: str) -> str:
        return f"{_ITEM_PREFIXES[kind]}{self._id.removeprefix(RESPONSE)}{len(self._output)}"

    def _begin_item(self, kind: TextKind) -> list[Json]:
        item = self._open = _OpenItem(kind, self._item_id("reasoning" if kind is Reasoning else "message"))
        added = self._event(
            "response.output_item.added", output_index=len(self._output), item=item.item("in_progress", empty=True)
        )
        return [added, self._event(item.event("part.added"), **self._where(item), part=item.part(""))]

    def _where(self, item: _OpenItem) -> Json:
        return {"item_id": item.id, "output_index": len(self._output), item.index: 0}

    def _add(self, text: str) -> Json:
        item = self._open
        assert item is not None
        item.texts.append(text)
        return self._event(item.event("text.delta"), **self._where(item), delta=text, **item.logprobs)

    def _close(self, status: str = "completed") -> list[Json]:
        """The events with which the item that is open ends."""
        item, self._open = self._open, None
        if item is None:
            return []
        where, text, index = self._where(item), item.text, len(self._output)
        events = [
            self._event(item.event("text.done"), **where, **{item.member: text}, **item.logprobs),
            self._event(item.event("part.done"), **where, part=item.part(text)),
        ]
        self._output.append(item.item(status))
        return [*events, self._event("response.output_item.done", output_index=index, item=self._output[-1])]

    def _call(self, call: Call) -> list[Json]:
        form = self._forms.get(call.name) or ToolForm({"type": "function", "name": call.name}, None, "")
        index, item_id = len(self._output), self._item_id(form.kind)
        done = {"id": item_id, **form.item(call), "status": "completed"}
        begun = {**done, form.member: "", "status": "in_progress"}
        where, text = {"item_id": item_id, "output_index": index}, form.input_of(call)
        stem = "custom_tool_call_input" if form.is_custom else "function_call_arguments"
        name = {} if form.is_custom else {"name": form.name}
        events = [
            self._event("response.output_item.added", output_index=index, item=begun),
            self._event(f"response.{stem}.delta", **where, delta=text),
            self._event(f"response.{stem}.done", **where, **name, **{form.member: text}),
            self._event("response.output_item.done", output_index=index, item=done),
        ]
        self._output.append(done)
        return events


class _OpenItem:
    """A message or a reasoning whose text still grows."""

    def __init__(self, kind: TextKind, item_id: str) -> None:
        self.kind, self.id = kind, item_id
        self.texts: list[str] = []
        self.index = "summary_index" if kind is Reasoning else "content_index"
        self.member = "refusal" if kind is Refusal else "text"
        self.logprobs: Json = {"logprobs": []} if kind is Text else {}

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def event(self, name: str) -> str:
        """The name of an event about its only part."""
        if self.kind is Reasoning:
            return f"response.reasoning_summary_{name}"
        if self.kind is Refusal and name.startswith("text"):
            return f"response.refusal{name.removeprefix('text')}"
        return f"response.{'content' if name.startswith('part') else 'output'}_{name}"

    def part(self, text: str) -> Json:
        if self.kind is Reasoning:
            return {"type": "summary_text", "text": text}
        if self.kind is Refusal:
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def item(self, status: str, *, empty: bool = False) -> Json:
        parts = [] if empty else [self.part(self.text)]
        if self.kind is Reasoning:
            content = {} if empty else {"encrypted_content": ENCRYPTED}
            return {"id": self.id, "type": "reasoning", "summary": parts, **content, "status": status}
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": parts}


def response_of_item(item_id: str) -> str | None:
    """Return the id of the response that an item with this id belongs to; None if it is not an id of an item."""
    prefix = next((prefix for prefix in _ITEM_PREFIXES.values() if item_id.startswith(prefix)), None)
    return None if prefix is None else RESPONSE + item_id.removeprefix(prefix)[:ID_LENGTH]


ID_LENGTH = 32
"""Characters of the id of a response behind its prefix."""


def _status(answer: Answer) -> str:
    if answer.end in _INCOMPLETE:
        return "incomplete"
    return {"error": "failed", "cancelled": "cancelled"}.get(answer.end or "", "completed")


def _error(answer: Answer) -> Json | None:
    if answer.end != "error":
        return None
    return {"code": "server_error" if answer.resets_at is None else "rate_limit_exceeded", "message": answer.error}


def _usage(usage: Usage) -> Json:
    given = usage.input_tokens + usage.cache_read + usage.cache_write
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": given + usage.output_tokens,
    }
