"""Uses the Responses API of a gateway with OpenAI's Python package: `CASE URL KEY`. Prints JSON.

It runs with the Python that has this package.
"""

import asyncio
import json
import sys
import time

import openai

CASE, URL, KEY = sys.argv[1:4]
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": False,
}
# It raises for a response or an event that does not match its type.
client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, _strict_response_validation=True)


def create():
    raw = client.responses.with_raw_response.create(model="script", input="hello", instructions="Be brief.", metadata={"a": "b"})
    found = raw.parse()
    same = client.responses.retrieve(found.id)
    items = client.responses.input_items.list(found.id)
    listed = [part.text for item in items for part in item.content]
    client.responses.delete(found.id)
    try:
        client.responses.retrieve(found.id)
        gone = False
    except openai.NotFoundError as error:
        gone = error.code or error.type
    return {
        "text": found.output_text,
        "types": [type(item).__name__ for item in found.output],
        "usage": found.usage.model_dump(include={"input_tokens", "output_tokens", "total_tokens"}),
        "status": found.status,
        "metadata": found.metadata,
        "session": raw.headers["x-portico-session"],
        "same": same.to_dict() == found.to_dict(),
        "input": listed,
        "gone": gone,
    }


def stream():
    kinds, text, thoughts, numbers = [], "", "", []
    for event in client.responses.create(model="script", input="hello", stream=True):
        # An event that the package does not know would have its base class.
        kinds.append(type(event).__name__)
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            text += event.delta
        elif event.type == "response.reasoning_summary_text.delta":
            thoughts += event.delta
    return {
        "kinds": kinds,
        "text": text,
        "thoughts": thoughts,
        "in_order": numbers == list(range(len(numbers))),
        "final": event.response.output_text,
    }


def stream_helper():
    """The helper that puts the events together, and raises where one does not fit."""
    with client.responses.stream(model="script", input="Weather?", tools=[WEATHER]) as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()
    return {"kinds": sorted(set(kinds)), "output": [item.type for item in final.output], "text": final.output_text}


def tools():
    first = client.responses.create(model="script", input="Weather?", tools=[WEATHER])
    [call] = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun in " + json.loads(call.arguments)["city"]}
    second = client.responses.create(model="script", input=[result], tools=[WEATHER], previous_response_id=first.id)
    # The other way: all items, and no id.
    history = [{"role": "user", "content": "Weather?"}]
    third = client.responses.create(model="script", input=history, tools=[WEATHER], store=False)
    history += [item.to_dict() for item in third.output] + [result]
    fourth = client.responses.with_raw_response.create(model="script", input=history, tools=[WEATHER], store=False)
    return {
        "first": first.output_text,
        "call": [call.name, call.arguments],
        "second": second.output_text,
        "fourth": fourth.parse().output_text,
    }


def chain():
    sessions, texts, previous = [], [], None
    for text in ("one", "two", "three"):
        raw = client.responses.with_raw_response.create(model="script", input=text, previous_response_id=previous)
        sessions.append(raw.headers["x-portico-session"])
        texts.append(raw.parse().output_text)
        previous = raw.parse().id
    conversation = client.conversations.create(metadata={"topic": "demo"})
    client.responses.create(model="script", input="uno", conversation=conversation.id)
    named = client.responses.create(model="script", input="due", conversation={"id": conversation.id})
    client.conversations.delete(conversation.id)
    return {
        "texts": texts,
        "one_session": len(set(sessions)) == 1,
        "named": named.output_text,
        "conversation": named.conversation.id == conversation.id,
    }


def background():
    """A stream that is lost and resumed, a response that is polled, and one that is cancelled."""
    events = client.responses.create(model="waiting", input="go", background=True, stream=True)
    text = ""
    for event in events:
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.output_text.delta":
            text += event.delta
            break
    events.close()
    busy = client.responses.retrieve(response_id)
    with open("scenes/go", "w"):
        pass
    rest = client.responses.retrieve(response_id, stream=True, starting_after=event.sequence_number)
    text += "".join(event.delta for event in rest if event.type == "response.output_text.delta")
    polled = client.responses.create(model="waiting", input="again", background=True)
    first = polled.status
    while polled.status in ("queued", "in_progress"):
        time.sleep(0.01)
        polled = client.responses.retrieve(polled.id)
    hanging = client.responses.create(model="hanging", input="go", background=True)
    cancelled = client.responses.cancel(hanging.id)
    return {
        "busy": busy.status,
        "text": text,
        "first": first,
        "polled": [polled.status, polled.output_text],
        "cancelled": [cancelled.status, client.responses.retrieve(hanging.id).status],
    }


def errors():
    found = {}
    cases = {
        "key": lambda: openai.OpenAI(base_url=f"{URL}/v1", api_key="wrong").responses.create(model="script", input="x"),
        "model": lambda: client.responses.create(model="gpt-5", input="x"),
        "previous": lambda: client.responses.create(model="script", input="x", previous_response_id="resp_x"),
        # It would be sent three times, if the package repeated it.
        "failing": lambda: client.responses.create(model="failing", input="x"),
        "failing_stream": lambda: client.responses.create(model="failing", input="x", stream=True),
    }
    for name, call in cases.items():
        try:
            call()
        except openai.APIStatusError as error:
            found[name] = [type(error).__name__, error.message, error.code, error.param]
    late = client.responses.create(model="failing_later", input="x")
    found["later"] = [late.status, late.error.message, late.output_text]
    found["later_stream"] = [event.type for event in client.responses.create(model="failing_later", input="x", stream=True)][-1]
    return found


def images():
    pixel = "data:image/png;base64,iVBORw0KGgo="
    content = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": pixel, "detail": "auto"}]
    return {"text": client.responses.create(model="script", input=[{"role": "user", "content": content}]).output_text}


async def concurrent():
    """Many at once, each with its own conversation."""
    several = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)

    async def talk(name):
        first = await several.responses.create(model="script", input=f"{name} one")
        second = await several.responses.create(model="script", input=f"{name} two", previous_response_id=first.id)
        return second.output_text

    return await asyncio.gather(*(talk(f"t{n}") for n in range(4)))


def claude():
    """A chain with a call of a tool, and a message after it, by the agent `claude`."""
    tool = {**WEATHER, "name": "get_weather", "parameters": {"type": "object", "properties": {"location": {"type": "string"}}}}
    texts, sessions, call, previous = [], set(), None, None
    inputs = ["[[weather]] please", None, "[[recall]]"]
    for given in inputs:
        if given is None:
            given = [{"type": "function_call_output", "call_id": call.call_id, "output": "mild"}]
        raw = client.responses.with_raw_response.create(
            model="claude", input=given, instructions="Be brief.", tools=[tool], previous_response_id=previous
        )
        found = raw.parse()
        previous = found.id
        call = next((item for item in found.output if item.type == "function_call"), call)
        texts.append(found.output_text)
        sessions.add(raw.headers["x-portico-session"])
    return {
        "texts": texts,
        "call": [call.name, json.loads(call.arguments)],
        "sessions": len(sessions),
        "usage": found.usage.input_tokens,
    }


result = globals()[CASE]()
sys.stdout.write(json.dumps(asyncio.run(result) if asyncio.iscoroutine(result) else result))
