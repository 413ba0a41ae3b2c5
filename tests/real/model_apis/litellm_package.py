"""LiteLLM as a client. Usage: litellm_package.py CASE URL KEY MODEL. Prints JSON, as openai_package.py does."""

import json
import os
import sys
from typing import Any

# Its table of models is on the network otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
import openai

CASE, URL, KEY, MODEL = sys.argv[1:5]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    },
}
litellm.suppress_debug_info = True


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def complete(messages: list[Any], model: str = MODEL, **fields: Any) -> Any:
    return litellm.completion(model=f"openai/{model}", api_base=f"{URL}/v1", api_key=KEY, messages=messages, **fields)


def conversation() -> Any:
    """A turn as a stream, then one with a call of a tool, also as a stream, and its result."""
    messages = [user("[[think]] hello")]
    chunks = list(complete(messages, stream=True, stream_options={"include_usage": True}))
    first = litellm.stream_chunk_builder(chunks, messages=messages)
    reply = first.choices[0].message
    messages += [{"role": "assistant", "content": reply.content}, user("[[weather]] and now?")]
    asked = litellm.stream_chunk_builder(list(complete(messages, stream=True, tools=[TOOL])), messages=messages).choices[0]
    calls = asked.message.tool_calls or []
    messages.append(asked.message.model_dump())
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "mild"} for call in calls]
    last = complete(messages, tools=[TOOL])
    return {
        "text": reply.content,
        "reasoning": reply.reasoning_content,
        "finish": [first.choices[0].finish_reason],
        "usage": [first.usage.prompt_tokens, first.usage.completion_tokens, first.usage.total_tokens],
        "asked": [asked.message.content, asked.finish_reason],
        "calls": [[call.function.name, json.loads(call.function.arguments)] for call in calls],
        "answer": last.choices[0].message.content,
    }


def errors() -> Any:
    """The errors that the package raises."""
    found = []
    for text, fields in (("hello", {"model": "gpt-4o"}), ("hello", {"n": 2}), ("fail at once", {})):
        try:
            complete([user(text)], **fields)
        except openai.APIStatusError as error:
            found.append([type(error).__name__, error.status_code])
    text = ""
    try:
        for chunk in complete([user("fail later")], stream=True):
            text += chunk.choices[0].delta.content or ""
    except openai.OpenAIError as error:
        found.append([text, "the model is down" in str(error)])
    return found


CASES = {"conversation": conversation, "errors": errors}
sys.stdout.write(json.dumps(CASES[CASE]()))
