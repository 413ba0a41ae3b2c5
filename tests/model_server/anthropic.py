"""A scripted model server that speaks the Anthropic Messages API.

Owns the translation between that API and `scenarios`: request messages become a
dialogue, a step becomes a JSON message or a stream of server-sent events. Serves
POST /v1/messages, POST /v1/messages/count_tokens and GET /v1/models; anything else
is a JSON 404. Run it by hand with `python -m tests.model_server.anthropic --port N`.
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

from tests.model_server.anthropic_scenarios import SCENARIOS
from tests.model_server.scenarios import (
    Block,
    Dialogue,
    Engine,
    Failure,
    Scenario,
    Step,
    Text,
    Thinking,
    Turn,
)
from tests.model_server.serving import ModelServer, Recorder, StreamCut, parse_object, pieces, serve_by_hand, serving

INJECTED = re.compile(r"<system-reminder>.*?</system-reminder>\s*|\[Image: source: [^\]]*\]", re.DOTALL)
SIGNATURE = "c2ln"

Json = dict[str, Any]


def dialogue_of(body: Json) -> Dialogue:
    """Read the request's messages as a dialogue, without the texts a CLI injects."""
    messages = body.get("messages", [])
    return tuple(_turn_of(message) for message in messages if message["role"] != "system")


def _turn_of(message: Json) -> Turn:
    content = message.get("content", "")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    stripped = (INJECTED.sub("", block["text"]).strip() for block in blocks if block.get("type") == "text")
    texts = tuple(text for text in stripped if text)
    if message["role"] == "assistant":
        return Turn("assistant", texts)
    results = any(block.get("type") == "tool_result" for block in blocks)
    return Turn("tool" if results and not texts else "user", texts)


class AnthropicDialect:
    """Request handlers over one engine and one recorder."""

    def __init__(self, engine: Engine, recorder: Recorder) -> None:
        self._engine = engine
        self._recorder = recorder
        self._ids = itertools.count(1)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/messages", self.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/{path:path}", self.unknown, methods=["GET", "POST", "PUT", "DELETE"]),
        ]
        return Starlette(routes=routes)

    async def messages(self, request: Request) -> Response:
        """Answer one model request by its scenario."""
        body = parse_object(await request.body())
        choice = self._engine.choose(dialogue_of(body))
        await self._recorder.record(request, choice.scenario, choice.index)
        step = choice.step
        if step.failure is not None:
            return failure_response(step.failure)
        message = self._message(step, str(body.get("model", "")))
        if body.get("stream"):
            return StreamingResponse(stream(step, message), media_type="text/event-stream")
        return JSONResponse(message)

    async def count(self, request: Request) -> Response:
        """Answer a token count."""
        await self._recorder.record(request)
        return JSONResponse({"input_tokens": 123})

    async def models(self, request: Request) -> Response:
        """List one model."""
        await self._recorder.record(request)
        model = {
            "type": "model",
            "id": "claude-sonnet-4-5",
            "display_name": "Scripted Sonnet",
            "created_at": "2026-01-01T00:00:00Z",
        }
        page = {"data": [model], "has_more": False, "first_id": None, "last_id": None}
        return JSONResponse(page)

    async def unknown(self, request: Request) -> Response:
        """Refuse every other path."""
        await self._recorder.record(request)
        return failure_response(Failure(404, "not_found_error", "no such path"))

    def _message(self, step: Step, model: str) -> Json:
        serial = next(self._ids)
        content = [_block(block, f"toolu_{serial:04d}_{position}") for position, block in enumerate(step.blocks)]
        return {
            "id": f"msg_{serial:04d}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            "stop_reason": step.stop_reason,
            "stop_sequence": None,
            "usage": _usage(step),
        }


def _usage(step: Step) -> Json:
    return {
        "input_tokens": step.usage.input,
        "cache_creation_input_tokens": step.usage.cache_write,
        "cache_read_input_tokens": step.usage.cache_read,
        "output_tokens": step.usage.output,
    }


def _block(block: Block, call_id: str) -> Json:
    if isinstance(block, Thinking):
        return {"type": "thinking", "thinking": block.text, "signature": SIGNATURE}
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    return {
        "type": "tool_use",
        "id": call_id,
        "name": block.name,
        "input": dict(block.input),
    }


def failure_response(failure: Failure) -> JSONResponse:
    """An error in the API's own shape."""
    error = {"type": failure.kind, "message": failure.message}
    return JSONResponse(
        {"type": "error", "error": error},
        status_code=failure.status,
        headers=dict(failure.headers),
    )


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def stream(step: Step, message: Json) -> AsyncIterator[bytes]:
    """The message as server-sent events, damaged if the step has `damage`."""
    session_body = message["usage"] | {"output_tokens": 1}
    bare = message | {"content": [], "stop_reason": None, "usage": session_body}
    yield _event("message_start", message=bare)
    if step.damage == "malformed":
        yield b'event: content_block_start\ndata: {"type":"content_block_start",,,\n\n'
        return
    for index, block in enumerate(message["content"]):
        yield _event("content_block_start", index=index, content_block=_opened(block))
        for count, delta in enumerate(_deltas(block, step.chunk)):
            yield _event("content_block_delta", index=index, delta=delta)
            await asyncio.sleep(step.delay)
            if step.damage == "cut" and count == 1:
                raise StreamCut
        yield _event("content_block_stop", index=index)
    closing = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    output = {"output_tokens": message["usage"]["output_tokens"]}
    yield _event("message_delta", delta=closing, usage=output)
    yield _event("message_stop")


def _opened(block: Json) -> Json:
    if block["type"] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    empty: Json = {"text": ""} if block["type"] == "text" else {"input": {}}
    return block | empty


def _deltas(block: Json, size: int) -> Iterator[Json]:
    if block["type"] == "thinking":
        for part in pieces(block["thinking"], size):
            yield {"type": "thinking_delta", "thinking": part}
        yield {"type": "signature_delta", "signature": SIGNATURE}
    elif block["type"] == "text":
        for part in pieces(block["text"], size):
            yield {"type": "text_delta", "text": part}
    else:
        for part in pieces(json.dumps(block["input"]), size):
            yield {"type": "input_json_delta", "partial_json": part}


@asynccontextmanager
async def model_server(scenarios: Mapping[str, Scenario] | None = None, port: int = 0) -> AsyncIterator[ModelServer]:
    """Run a server for the length of the block; `scenarios` add to or replace the stock ones."""
    recorder = Recorder()
    engine = Engine({**SCENARIOS, **(scenarios or {})})
    async with serving(AnthropicDialect(engine, recorder).app(), port) as url:
        yield ModelServer(url, recorder.requests)


if __name__ == "__main__":
    serve_by_hand(model_server, "Scripted Anthropic-style model server.")
