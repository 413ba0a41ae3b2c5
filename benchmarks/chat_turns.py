"""Turns over OpenAI's chat completions, whose requests have the whole conversation, and over Responses, beside turns over AAP."""

from __future__ import annotations

import asyncio
import json

from benchmarks.client import Connection, Response
from benchmarks.figures import Figure, median
from benchmarks.servers import portico
from benchmarks.turns import new_session, turn

WARM_UP = 5
Messages = list[dict[str, str]]


async def chat(quick: bool) -> list[Figure]:
    """Measure a turn of a live echo agent over each API and over AAP, one after the other; a long conversation too."""
    times: dict[str, list[float]] = {"AAP": [], "chat": [], "responses": [], "long": [], "long AAP": []}
    async with portico() as daemon, daemon.connect() as to:
        # Each conversation begins with a first turn, which starts its agent and is not counted.
        for _ in range(5 if quick else 20):
            short = [{"role": "user", "content": "hello"}]
            session = await new_session(to, "echo")
            await _chat_turn(to, short)
            _, previous = await _response(to, None)
            for n in range(WARM_UP + 10):
                aap = (await turn(to, session, "hello")).seconds
                spoken = await _chat_turn(to, short)
                responded, previous = await _response(to, previous)
                if n >= WARM_UP:
                    times["AAP"].append(aap * 1000)
                    times["chat"].append(spoken * 1000)
                    times["responses"].append(responded * 1000)
                await asyncio.sleep(0.005)
        long = [{"role": role, "content": "hello"} for _ in range(50) for role in ("user", "assistant")]
        long.append({"role": "user", "content": "hello"})
        await _chat_turn(to, long)
        for _ in range(50 if quick else 100):
            times["long AAP"].append((await turn(to, session, "hello")).seconds * 1000)
            times["long"].append(await _chat_turn(to, long) * 1000)
            await asyncio.sleep(0.005)
    aap, spoken = median("AAP, whole turn", times["AAP"], "ms"), median("chat, whole turn", times["chat"], "ms")
    responded_to = median("responses, whole turn", times["responses"], "ms")
    long_aap, of_long = median("AAP beside it", times["long AAP"], "ms"), median("chat, 100 to 300 messages", times["long"], "ms")
    return [
        aap,
        spoken,
        Figure("more than AAP", spoken.value - aap.value, "ms", at_most=2.0),
        responded_to,
        Figure("responses, more than AAP", responded_to.value - aap.value, "ms", at_most=2.0),
        long_aap,
        of_long,
        Figure("more than AAP, 100 to 300 messages", of_long.value - long_aap.value, "ms"),
    ]


async def _chat_turn(to: Connection, messages: Messages) -> float:
    """Answer a conversation as a stream, add the answer and a next message to it, and return the seconds."""
    answer: Response = await to.request(
        "POST", "/v1/chat/completions", {"model": "echo", "messages": messages, "stream": True}, look_for=b"data: "
    )
    frames = [json.loads(frame[6:]) for frame in answer.body.split(b"\n\n") if frame.startswith(b"data: {")]
    text = "".join(choice["delta"].get("content", "") for frame in frames for choice in frame["choices"])
    assert text == "hello", answer.body
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "hello"}]
    return answer.seconds


async def _response(to: Connection, previous: str | None) -> tuple[float, str]:
    """Answer one message after the previous response as a stream, and return the seconds and the id of the response."""
    body = {"model": "echo", "input": "hello", "stream": True, "previous_response_id": previous}
    answer: Response = await to.request("POST", "/v1/responses", body, look_for=b"data: ")
    events = [json.loads(frame.partition(b"data: ")[2]) for frame in answer.body.split(b"\n\n") if b"data: {" in frame]
    response = events[-1]["response"]
    assert response["status"] == "completed" and response["output"][0]["content"][0]["text"] == "hello", answer.body
    return answer.seconds, response["id"]
