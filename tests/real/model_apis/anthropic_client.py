"""Cases with Anthropic's Python package: `python anthropic_client.py CASE URL KEY MODEL` prints what came of it as JSON."""

import json
import sys
from typing import Any

import anthropic

case, url, key, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key=key)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
calls: list[str] = []


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def create(*messages: Any, **fields: Any) -> Any:
    return client.messages.create(model=model, max_tokens=1024, messages=list(messages), **fields)


def chat() -> Any:
    """Two turns; the second has the answer of the first as it came."""
    sessions, messages, texts = [], [], []
    for text in ("[[echo:one]]", "[[recall]]"):
        messages.append(user(text))
        answer = client.messages.with_raw_response.create(model=model, max_tokens=1024, messages=messages, system="Be brief.")
        sessions.append(answer.headers["x-portico-session"])
        message = answer.parse()
        messages.append({"role": "assistant", "content": message.content})
        texts.append(message.content[0].text)
    request_id = message._request_id
    return {"texts": texts, "same": sessions[0] == sessions[1], "id": request_id, "stop": message.stop_reason}


def stream() -> Any:
    kinds = []
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(model=model, max_tokens=2048, messages=[user("[[think]]")], thinking=thinking) as events:
        for event in events:
            kinds.append(event.type)
        final = events.get_final_message()
    blocks = [(block.type, getattr(block, block.type)) for block in final.content]
    return {"kinds": kinds, "blocks": blocks, "stop": final.stop_reason, "output": final.usage.output_tokens}


@anthropic.beta_tool
def get_weather(location: str) -> str:
    """The weather of a city.

    Args:
        location: Its name.
    """
    calls.append(location)
    return f"sun in {location}"


def _run_tools(stream: bool) -> Any:
    messages = [user("[[weather]]")]
    runner = client.beta.messages.tool_runner(model=model, max_tokens=1024, tools=[get_weather], messages=messages, stream=stream)
    found = [step.get_final_message() if stream else step for step in runner]
    return {"stops": [message.stop_reason for message in found], "text": found[-1].content[-1].text, "calls": calls}


def tools() -> Any:
    return _run_tools(stream=False)


def streamed_tools() -> Any:
    return _run_tools(stream=True)


def image() -> Any:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    answer = create(user([{"type": "image", "source": source}, {"type": "text", "text": "[[image]]"}]))
    return answer.content[0].text


def _error(work: Any) -> Any:
    try:
        work()
    except anthropic.APIStatusError as error:
        kind = error.body["error"]["type"]
        return [type(error).__name__, error.status_code, kind, error.body["error"]["message"], error.request_id or ""]
    return None


def _read_stream() -> None:
    with client.messages.stream(model=model, max_tokens=1024, messages=[user("[[late]]")]) as events:
        for _ in events:
            pass


def errors() -> Any:
    stranger = anthropic.Anthropic(base_url=url, api_key="wrong")
    asked = {"max_tokens": 9, "messages": [user("x")]}
    return {
        "key": _error(lambda: stranger.messages.create(model=model, **asked)),
        "model": _error(lambda: client.messages.create(model="nobody", **asked)),
        "failed": _error(lambda: create(user("[[fails]]"))),
        "failed stream": _error(lambda: create(user("[[fails]]"), stream=True)),
        "failed later": _error(_read_stream),
    }


def retry() -> Any:
    answer = client.messages.with_raw_response.create(model=model, max_tokens=9, messages=[user("[[echo:one]]")])
    return {"text": answer.parse().content[0].text, "retries": answer.retries_taken}


def models() -> Any:
    listed = [item.id for item in client.models.list()]
    tokens = client.messages.count_tokens(model=model, messages=[user("x" * 400)]).input_tokens
    return {"listed": listed, "one": client.models.retrieve(listed[-1]).display_name, "tokens": tokens}


sys.stdout.write(json.dumps(globals()[case]()))
