"""One client for the three vendors' APIs. A conversation goes in, and of a reply come its text, its calls and its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.sse import parse

Json = dict[str, Any]
CHAT, RESPONSES, MESSAGES = "chat", "responses", "messages"
APIS = (CHAT, RESPONSES, MESSAGES)
PATHS = {CHAT: "/v1/chat/completions", RESPONSES: "/v1/responses", MESSAGES: "/v1/messages"}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ENDS = {
    CHAT: {"stop": "stop", "length": "length", "content_filter": "refusal", "tool_calls": "calls"},
    MESSAGES: {"end_turn": "stop", "max_tokens": "length", "refusal": "refusal", "tool_use": "calls"},
    RESPONSES: {"max_output_tokens": "length", "content_filter": "refusal"},
}
"""What the ends of each API mean. A response that is not incomplete has no other end than its status."""


@dataclass
class Reply:
    """The answer of one request. `items` are what a client sends back of it with its next request."""

    session: str
    ignored: set[str]
    text: str = ""
    thinking: str = ""
    refusal: str = ""
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    """Id, name and input of each call."""
    end: str = ""
    items: list[Json] = field(default_factory=list)


def messages(api: str, *conversation: Any) -> list[Json]:
    """The messages or items of a conversation: texts of the user, replies, and what is a message already."""
    found: list[Json] = []
    for part in conversation:
        if isinstance(part, Reply):
            found += part.items
        elif isinstance(part, str):
            found.append({"role": "user", "content": part})
        else:
            found.append(part)
    return found


def results(api: str, **contents: str) -> list[Json]:
    """The messages or items with the results of calls, by their ids."""
    if api == CHAT:
        return [{"role": "tool", "tool_call_id": name, "content": text} for name, text in contents.items()]
    if api == RESPONSES:
        return [{"type": "function_call_output", "call_id": name, "output": text} for name, text in contents.items()]
    blocks = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in contents.items()]
    return [{"role": "user", "content": blocks}]


def image(api: str) -> Json:
    """A message of the user with a text and an image."""
    url = f"data:image/png;base64,{PIXEL}"
    if api == CHAT:
        parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    elif api == RESPONSES:
        parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url}]
    else:
        source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        parts = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    return {"role": "user", "content": parts}


def tools(api: str, *names: str, choice: str = "") -> Json:
    """The fields of a request with tools, and with a choice: `none`, `required`, or the name of one of them."""
    described = [{"name": name, "description": "d", "parameters": {"type": "object"}} for name in names]
    named = choice in names
    if api == CHAT:
        listed: list[Json] = [{"type": "function", "function": tool} for tool in described]
        chosen: Any = {"type": "function", "function": {"name": choice}} if named else choice
    elif api == RESPONSES:
        listed = [{"type": "function", **tool} for tool in described]
        chosen = {"type": "function", "name": choice} if named else choice
    else:
        listed = [{"name": name, "input_schema": {"type": "object"}} for name in names]
        chosen = {"type": "tool", "name": choice} if named else {"type": "any" if choice == "required" else choice}
    return {"tools": listed, **({"tool_choice": chosen} if choice else {})}


def body(api: str, *conversation: Any, model: str = "script", **fields: Any) -> Json:
    """The body of a request. None of the responses is stored, so that the whole conversation is sent each time."""
    given = messages(api, *conversation or ("hello",))
    if api == RESPONSES:
        return {"model": model, "input": given, "store": False, **fields}
    return {"model": model, "messages": given, **({"max_tokens": 99} if api == MESSAGES else {}), **fields}


async def post(client: httpx.AsyncClient, api: str, *conversation: Any, **fields: Any) -> httpx.Response:
    return await client.post(PATHS[api], json=body(api, *conversation, **fields))


async def ask(client: httpx.AsyncClient, api: str, *conversation: Any, **fields: Any) -> Reply:
    """Send a conversation, and return the reply. Its form is the same whether it is streamed or not."""
    answer = await post(client, api, *conversation, **fields)
    assert answer.status_code == 200, answer.text
    reply = Reply(answer.headers["x-portico-session"], {*answer.headers.get("x-portico-ignored", "").split(", ")})
    found = joined(api, answer.text) if fields.get("stream") else answer.json()
    READ[api](found, reply)
    return reply


def events_of(text: str) -> list[Any]:
    """The data of the events of a stream, without the last frame of OpenAI's."""
    return [event.json() for event in parse(text) if event.data != "[DONE]"]


def joined(api: str, stream: str) -> Json:
    """What the events of a stream say, in the form of the whole answer."""
    events = events_of(stream)
    if api == RESPONSES:
        response: Json = events[-1]["response"]
        deltas = [event["delta"] for event in events if event["type"] in ("response.output_text.delta", "response.refusal.delta")]
        reply = Reply("", set())
        _read_response(response, reply)
        assert "".join(deltas) == reply.text + reply.refusal
        return response
    if api == CHAT:
        choices = [choice for event in events for choice in event["choices"]]
        deltas = [choice["delta"] for choice in choices]
        texts = {name: "".join(delta.get(name) or "" for delta in deltas) for name in ("content", "refusal", "reasoning_content")}
        calls = [{k: v for k, v in call.items() if k != "index"} for delta in deltas for call in delta.get("tool_calls", ())]
        message = {"role": "assistant", **texts, **({"tool_calls": calls} if calls else {})}
        return {"choices": [{"message": message, "finish_reason": choices[-1]["finish_reason"]}]}
    blocks: list[Json] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            for name, value in event["delta"].items():
                if name == "partial_json":
                    blocks[-1]["input"] = json.loads(value)
                elif name != "type":
                    blocks[-1][name] = blocks[-1].get(name, "") + value
    end = next(event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta")
    return {"content": blocks, "stop_reason": end}


def _read_chat(found: Json, reply: Reply) -> None:
    [choice] = found["choices"]
    message = choice["message"]
    reply.items, reply.end = [message], ENDS[CHAT][choice["finish_reason"]]
    reply.text, reply.refusal = message["content"] or "", message["refusal"] or ""
    reply.thinking = message.get("reasoning_content") or ""
    for call in message.get("tool_calls", ()):
        assert call["type"] == "function"
        reply.calls.append((call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])))


def _read_message(found: Json, reply: Reply) -> None:
    reply.items, reply.end = [{"role": "assistant", "content": found["content"]}], ENDS[MESSAGES][found["stop_reason"]]
    text = "".join(block["text"] for block in found["content"] if block["type"] == "text")
    reply.text, reply.refusal = ("", text) if reply.end == "refusal" else (text, "")
    reply.thinking = "".join(block["thinking"] for block in found["content"] if block["type"] == "thinking")
    reply.calls = [(block["id"], block["name"], block["input"]) for block in found["content"] if block["type"] == "tool_use"]


def _read_response(found: Json, reply: Reply) -> None:
    reply.items = found["output"]
    for item in found["output"]:
        if item["type"] == "message":
            reply.text += "".join(part["text"] for part in item["content"] if part["type"] == "output_text")
            reply.refusal += "".join(part["refusal"] for part in item["content"] if part["type"] == "refusal")
        elif item["type"] == "reasoning":
            reply.thinking += "".join(part["text"] for part in item["summary"])
        elif item["type"] == "function_call":
            reply.calls.append((item["call_id"], item["name"], json.loads(item["arguments"])))
    assert (found["status"] == "incomplete") == (found["incomplete_details"] is not None)
    reason = (found["incomplete_details"] or {}).get("reason")
    reply.end = ENDS[RESPONSES][reason] if reason else "calls" if reply.calls else "stop"


READ: dict[str, Callable[[Json, Reply], None]] = {CHAT: _read_chat, RESPONSES: _read_response, MESSAGES: _read_message}
