"""Responses of Anthropic's Messages API: an answer as a message, and as the events of a stream. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from pydantic_core import to_json

from drivers.contract.events import NO_USAGE, Usage
from gateway.protocols.model_apis.answer import Answer, Call, Part, Reasoning, Refusal, Text
from gateway.protocols.model_apis.vendor_requests import error_body

STOP_REASONS: Mapping[str | None, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "refusal": "refusal",
    "tool_calls": "tool_use",
}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""Keeps a stream open, where other streams have a comment: some clients measure the time between events."""
SIGNATURE = "cG9ydGljbw=="
"""Of each block of thinking. Some clients (pydantic-ai 2.68) send blocks without one back as text."""
Json = dict[str, Any]


class MessageView:
    """One answer as a message of the assistant: as the events of a stream, or (`message`) whole.

    Deltas of one kind in a row are one content block. Blocks of thinking are left out unless the client wants them. They all have
    the same signature: nothing here checks what a client sends back.
    """

    def __init__(self, model: str, shows_thinking: bool) -> None:
        self._model, self._shows_thinking = model, shows_thinking
        self._id = f"msg_{secrets.token_hex(12)}"
        self._blocks = 0
        self._open: type[Part] | None = None

    def message(self, answer: Answer, parts: Sequence[Part]) -> Json:
        """Return the whole answer. `parts` are all its parts."""
        content: list[Json] = []
        for kind, group in groupby(self._shown(parts), type):
            if kind is Call:
                content += (_block(call) for call in group)
            else:
                text = "".join(part.text for part in group if not isinstance(part, Call))
                content.append(_block(Reasoning(text) if kind is Reasoning else Text(text)))
        return self._message(content, _stop_reason(answer), answer.usage)

    def _message(self, content: list[Json], stop_reason: str | None, usage: Usage) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": _usage(usage),
        }

    def start(self) -> bytes:
        """The first events. The usage is not known yet."""
        return _frame("message_start", message=self._message([], None, NO_USAGE)) + PING

    def feed(self, parts: Sequence[Part]) -> bytes:
        """The events of these parts."""
        frames: list[bytes] = []
        for part in self._shown(parts):
            if type(part) is not self._open or isinstance(part, Call):
                frames += (self._close(), self._begin(part))
            frames.append(_frame("content_block_delta", index=self._blocks - 1, delta=_delta(part)))
        return b"".join(frames)

    def _shown(self, parts: Sequence[Part]) -> Sequence[Part]:
        return parts if self._shows_thinking else [part for part in parts if not isinstance(part, Reasoning)]

    def _begin(self, part: Part) -> bytes:
        self._open = type(part)
        self._blocks += 1
        return _frame("content_block_start", index=self._blocks - 1, content_block=_block(_empty(part)))

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        opened, self._open, index = self._open, None, self._blocks - 1
        signature = {"type": "signature_delta", "signature": SIGNATURE}
        signed = _frame("content_block_delta", index=index, delta=signature) if opened is Reasoning else b""
        return signed + _frame("content_block_stop", index=index)

    def end(self, answer: Answer) -> bytes:
        """The last events of a complete answer."""
        delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
        return self._close() + _frame("message_delta", delta=delta, usage=_usage(answer.usage)) + _frame("message_stop")


def _stop_reason(answer: Answer) -> str:
    # As the API ends an answer that does not match the schema.
    return "refusal" if answer.refusal else STOP_REASONS[answer.end]


def error_frame(status: int, text: str) -> bytes:
    """The event of an error after which nothing follows."""
    return b"event: error\ndata: %b\n\n" % to_json(error_body("anthropic", status, text))


def _empty(part: Part) -> Part:
    return replace(part, input={}) if isinstance(part, Call) else replace(part, text="")


def _block(part: Part) -> Json:
    if isinstance(part, Text | Refusal):
        return {"type": "text", "text": part.text}
    if isinstance(part, Reasoning):
        return {"type": "thinking", "thinking": part.text, "signature": SIGNATURE if part.text else ""}
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": part.input}


def _delta(part: Part) -> Json:
    if isinstance(part, Text | Refusal):
        return {"type": "text_delta", "text": part.text}
    if isinstance(part, Reasoning):
        return {"type": "thinking_delta", "thinking": part.text}
    return {"type": "input_json_delta", "partial_json": part.arguments}


def _usage(usage: Usage) -> Json:
    """What the run has used; without it, zeros."""
    details = {"output_tokens_details": {"thinking_tokens": usage.reasoning_tokens}} if usage.reasoning_tokens else {}
    return {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output_tokens,
        **details,
    }


def _frame(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_json({"type": kind, **fields}))
