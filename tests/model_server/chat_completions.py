"""A scripted model server that speaks the OpenAI Chat Completions API, which most agents have for other providers.

Owns the translation between that API and `scenarios`: messages become a dialogue, a step becomes a completion or a stream of
server-sent events. Serves POST /v1/chat/completions and GET /v1/models; anything else is a JSON 404. Run it by hand with
`python -m tests.model_server.chat_completions --port N`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.model_server.scenarios import COMMON, Dialogue, Engine, Failure, Scenario, Step, Text, Thinking, ToolUse, Turn
from tests.model_server.serving import ModelServer, Recorder, parse_object, pieces, serve_by_hand, serving

INJECTED = re.compile(r"<(system-reminder|current_datetime)>.*?</\1>", re.DOTALL)
FINISH = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
ROLES = frozenset({"user", "assistant", "tool"})

Json = dict[str, Any]


def dialogue_of(body: Json) -> Dialogue:
    """Read a request's messages as a dialogue, without those of the system."""
    turns = (Turn(message["role"], texts_of(message)) for message in body.get("messages", []) if message.get("role") in ROLES)
    return tuple(turn for turn in turns if turn.role != "user" or turn.texts)


def texts_of(message: Json) -> tuple[str, ...]:
    """The texts of a message, without those that agents add."""
    content = message.get("content") or []
    texts = [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
    stripped = (INJECTED.sub("", text).strip() for text in texts)
    return tuple(text for text in stripped if text)


class ChatCompletionsDialect:
    """Request handlers over one engine and one recorder."""

    def __init__(self, engine: Engine, recorder: Recorder) -> None:
        self._engine, self._recorder = engine, recorder
        self._ids = itertools.count(1)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/chat/completions", self.completions, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/{path:path}", self.unknown, methods=["GET", "POST", "PUT", "DELETE"]),
        ]
        return Starlette(routes=routes)

    async def completions(self, request: Request) -> Response:
        """Answer one model request by its scenario; a request without tools is the CLI's own, such as for a title."""
        body = parse_object(await request.body())
        if body.get("tools"):
            choice = self._engine.choose(dialogue_of(body))
            await self._recorder.record(request, choice.scenario, choice.index)
            step = choice.step
        else:
            await self._recorder.record(request, "aside")
            step = Step((Text("A title"),))
        if step.failure is not None:
            return failure_response(step.failure)
        base = {"id": f"chatcmpl-{next(self._ids):04d}", "created": 1_800_000_000, "model": body.get("model")}
        if body.get("stream"):
            return StreamingResponse(_stream(step, base), media_type="text/event-stream")
        message: Json = {"role": "assistant", "content": "".join(b.text for b in step.blocks if isinstance(b, Text))}
        if calls := [_call(block, index, base["id"]) for index, block in enumerate(_tool_uses(step))]:
            message["tool_calls"] = calls
        choices = [{"index": 0, "message": message, "finish_reason": FINISH[step.stop_reason]}]
        return JSONResponse({**base, "object": "chat.completion", "choices": choices, "usage": _usage(step)})

    async def models(self, request: Request) -> Response:
        """List one model."""
        await self._recorder.record(request)
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "x"}]})

    async def unknown(self, request: Request) -> Response:
        """Refuse every other path."""
        await self._recorder.record(request)
        return failure_response(Failure(404, "not_found_error", "no such path"))


def _tool_uses(step: Step) -> list[ToolUse]:
    return [block for block in step.blocks if isinstance(block, ToolUse)]


def _call(block: ToolUse, index: int, serial: str) -> Json:
    function = {"name": block.name, "arguments": json.dumps(dict(block.input))}
    return {"index": index, "id": f"call_{serial[-4:]}_{index}", "type": "function", "function": function}


def _usage(step: Step) -> Json:
    sent = step.usage.input + step.usage.cache_read
    return {
        "prompt_tokens": sent,
        "completion_tokens": step.usage.output,
        "total_tokens": sent + step.usage.output,
        "prompt_tokens_details": {"cached_tokens": step.usage.cache_read},
    }


async def _stream(step: Step, base: Json) -> AsyncIterator[bytes]:
    for delta in _deltas(step, base["id"]):
        yield _event(
            {**base, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        )
        await asyncio.sleep(step.delay)
    end = [{"index": 0, "delta": {}, "finish_reason": FINISH[step.stop_reason]}]
    yield _event({**base, "object": "chat.completion.chunk", "choices": end, "usage": _usage(step)})
    yield b"data: [DONE]\n\n"


def _deltas(step: Step, serial: str) -> Iterator[Json]:
    """Thinking has the field that DeepSeek, Qwen and Kimi serve it in; the API of OpenAI itself has none."""
    yield {"role": "assistant", "content": ""}
    for block in step.blocks:
        if not isinstance(block, ToolUse):
            field = "reasoning_content" if isinstance(block, Thinking) else "content"
            yield from ({field: part} for part in pieces(block.text, step.chunk))
    yield from ({"tool_calls": [_call(block, index, serial)]} for index, block in enumerate(_tool_uses(step)))


def _event(value: Json) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def failure_response(failure: Failure) -> JSONResponse:
    """An error in the API's own shape."""
    error = {"type": failure.kind, "message": failure.message, "code": None, "param": None}
    return JSONResponse({"error": error}, status_code=failure.status, headers=dict(failure.headers))


@asynccontextmanager
async def model_server(scenarios: Mapping[str, Scenario] | None = None, port: int = 0) -> AsyncIterator[ModelServer]:
    """Run a server for the length of the block; `scenarios` add to or replace the stock ones."""
    recorder = Recorder()
    engine = Engine({**COMMON, **(scenarios or {})})
    async with serving(ChatCompletionsDialect(engine, recorder).app(), port) as url:
        yield ModelServer(url, recorder.requests)


if __name__ == "__main__":
    serve_by_hand(model_server, "Scripted model server of the Chat Completions API.")
