"""A client with the `openai` package. Usage: openai_package.py CASE URL KEY MODEL. Prints JSON, as openai_package.mjs does."""

import json
import sys
from typing import Any

import openai
from openai import OpenAI

CASE, URL, KEY, MODEL = sys.argv[1:5]
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    },
}
client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def conversation() -> Any:
    """A turn as a stream, then one with a call of a tool by the package's stream helper, and its result."""
    messages: list[Any] = [user("[[think]] hello")]
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
    )
    sessions = [raw.headers["x-portico-session"]]
    text, reasoning, finish, usage = "", "", [], None
    for chunk in raw.parse():
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish += [choice.finish_reason] if choice.finish_reason else []
    assert usage is not None
    messages += [{"role": "assistant", "content": text}, user("[[weather]] and now?")]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=[TOOL]) as stream:
        asked = stream.get_final_completion().choices[0]
    calls = asked.message.tool_calls or []
    messages.append(asked.message)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "mild"} for call in calls]
    last = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, tools=[TOOL])
    sessions.append(last.headers["x-portico-session"])
    return {
        "text": text,
        "reasoning": reasoning,
        "finish": finish,
        "usage": [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
        "asked": [asked.message.content, asked.finish_reason],
        "calls": [[call.function.name, json.loads(call.function.arguments)] for call in calls],
        "answer": last.parse().choices[0].message.content,
        "sessions": len({*sessions}),
    }


def errors() -> Any:
    """The errors that the package raises: of requests, of a run that fails at once, and of one that fails in its stream."""
    found = []
    for fields in ({"model": "gpt-4o"}, {"n": 2}):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": [user("hello")], **fields})
        except openai.APIStatusError as error:
            found.append([type(error).__name__, error.status_code, error.code, error.param])
    try:
        OpenAI(base_url=f"{URL}/v1", api_key="wrong").models.list()
    except openai.AuthenticationError as error:
        found.append([type(error).__name__, error.status_code, error.code, error.param])
    try:
        client.chat.completions.create(model=MODEL, messages=[user("fail at once")])
    except openai.InternalServerError as error:
        found.append([type(error).__name__, error.status_code, error.body["message"]])
    text = ""
    try:
        for chunk in client.chat.completions.create(model=MODEL, messages=[user("fail later")], stream=True):
            text += chunk.choices[0].delta.content or ""
    except openai.APIError as error:
        found.append([text, error.body["message"]])
    return found


def images() -> Any:
    """The content parts of a message with an image."""
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    answer = client.chat.completions.create(model=MODEL, messages=[user(parts)])
    return answer.choices[0].message.content


def models() -> Any:
    """The ids of the list, and one model by its id."""
    return [[model.id for model in client.models.list()], client.models.retrieve(MODEL).id]


def stop() -> Any:
    """An answer that is stopped half-way, and a message after it."""
    text = ""
    with client.chat.completions.create(model=MODEL, messages=[user("long")], stream=True) as stream:
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if text == "half":
                break
    return text


CASES = {"conversation": conversation, "errors": errors, "images": images, "models": models, "stop": stop}
sys.stdout.write(json.dumps(CASES[CASE]()))
