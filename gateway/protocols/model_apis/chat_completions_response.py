"""Answers of `POST /v1/chat/completions`: the JSON object, and the chunks of a stream. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_json

from drivers.contract.events import Usage
from gateway.protocols.model_apis.answer import Answer, Call, EndReason, Part, Reasoning, Refusal, Text
from gateway.protocols.model_apis.vendor_requests import error_body

_FINISH_REASONS: Mapping[EndReason | None, str] = {
    "stop": "stop",
    "length": "length",
    "refusal": "content_filter",
    "tool_calls": "tool_calls",
}
DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Writes the chunks of one answer. `base` has the fields that all of them have, besides `object`."""

    def __init__(self, base: Mapping[str, Any], *, include_usage: bool) -> None:
        self._base = {**base, "object": "chat.completion.chunk"}
        self._include_usage = include_usage
        self._calls = 0

    def first(self) -> bytes:
        """The chunk with the role."""
        return self._chunk({"role": "assistant", "content": ""})

    def parts(self, parts: Iterable[Part]) -> bytes:
        """The chunks of parts of the answer."""
        return b"".join([self._chunk(self._delta(part)) for part in parts])

    def last(self, answer: Answer) -> bytes:
        """The chunks with the reason of the end, and with the usage; and the end of the stream."""
        finish = self._chunk({}, _FINISH_REASONS[answer.end])
        if not self._include_usage:
            return finish + DONE
        return finish + _frame({**self._base, "choices": [], "usage": usage_of(answer.usage)}) + DONE

    def failed(self, why: str) -> bytes:
        """An error in mid-stream, and the end of the stream."""
        return _frame(error_body("openai", 502, why)) + DONE

    def _delta(self, part: Part) -> dict[str, Any]:
        if isinstance(part, Text):
            return {"content": part.text}
        if isinstance(part, Reasoning):
            return _reasoning(part.text)
        if isinstance(part, Refusal):
            return {"refusal": part.text}
        self._calls += 1
        return {"tool_calls": [{"index": self._calls - 1, **_tool_call(part)}]}

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return _frame({**self._base, "choices": [choice], **usage})


def completion(base: Mapping[str, Any], answer: Answer) -> bytes:
    """The JSON object of a complete answer."""
    content = answer.text or (None if answer.calls or answer.refusal else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": answer.refusal or None}
    if answer.reasoning:
        message |= _reasoning(answer.reasoning)
    if answer.calls:
        message["tool_calls"] = [_tool_call(call) for call in answer.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH_REASONS[answer.end]}
    return to_json({**base, "object": "chat.completion", "choices": [choice], "usage": usage_of(answer.usage)})


def usage_of(usage: Usage) -> dict[str, Any]:
    """The tokens of an answer. Those that were read from a cache or written to it are tokens of the prompt, too."""
    prompt = usage.input_tokens + usage.cache_read + usage.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _reasoning(text: str) -> dict[str, str]:
    # The API has no field for it. Clients read one of these two.
    return {"reasoning_content": text, "reasoning": text}


def _tool_call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _frame(data: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % to_json(data)
