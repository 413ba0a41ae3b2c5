"""A scripted model server that speaks the Gemini API.

Owns the translation between that API and `scenarios`: request contents become a dialogue, a step becomes a JSON answer or a
stream of server-sent events. Serves POST /v1beta/models/MODEL:generateContent, :streamGenerateContent and :countTokens, and
GET /v1beta/models; anything else is a JSON 404. Run it by hand with `python -m tests.model_server.gemini --port N`.
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

from tests.model_server.gemini_scenarios import SCENARIOS
from tests.model_server.scenarios import Block, Dialogue, Engine, Failure, Scenario, Step, Text, Thinking, Turn
from tests.model_server.serving import ModelServer, Recorder, StreamCut, parse_object, pieces, serve_by_hand, serving

INJECTED = re.compile(r"<session_context>.*?</session_context>\s*", re.DOTALL)
SIGNATURE = "c2ln"
FINISH = {"end_turn": "STOP", "tool_use": "STOP", "max_tokens": "MAX_TOKENS", "refusal": "SAFETY"}
STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL"}
ASIDE = {
    "reasoning": "scripted",
    "model_choice": "flash",
    "next_speaker": "user",
    "complexity_reasoning": "scripted",
    "complexity_score": 5,
}
"""The responses to internal requests of the CLI (which model, who speaks next)."""

Json = dict[str, Any]


def dialogue_of(body: Json) -> Dialogue:
    """Read the request's contents as a dialogue, without what the CLI and the gateway add to texts."""
    turns = (_turn_of(content) for content in body.get("contents", []))
    return tuple(turn for turn in turns if turn.role != "user" or turn.texts)


def _turn_of(content: Json) -> Turn:
    parts = content.get("parts", [])
    stripped = (
        INJECTED.sub("", part["text"]).strip().lstrip("\u200b") for part in parts if "text" in part and not part.get("thought")
    )
    texts = tuple(text for text in stripped if text)
    if content.get("role") == "model":
        return Turn("assistant", texts)
    results = any("functionResponse" in part for part in parts)
    return Turn("tool" if results and not texts else "user", texts)


class GeminiDialect:
    """Request handlers over one engine and one recorder."""

    def __init__(self, engine: Engine, recorder: Recorder) -> None:
        self._engine, self._recorder = engine, recorder
        self._ids = itertools.count(1)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1beta/models/{call}", self.model, methods=["POST"]),
            Route("/v1beta/models", self.models, methods=["GET"]),
            Route("/{path:path}", self.unknown, methods=["GET", "POST", "PUT", "DELETE"]),
        ]
        return Starlette(routes=routes)

    async def model(self, request: Request) -> Response:
        """Answer one model request by its scenario; a request without tools and with a schema is the CLI's own."""
        model, _, method = request.path_params["call"].partition(":")
        body = parse_object(await request.body())
        if method == "countTokens":
            await self._recorder.record(request)
            return JSONResponse({"totalTokens": 123})
        if "responseJsonSchema" in body.get("generationConfig", {}) or "responseSchema" in body.get("generationConfig", {}):
            await self._recorder.record(request, "aside")
            return JSONResponse(self._answer(Step((Text(json.dumps(ASIDE)),)), model))
        choice = self._engine.choose(dialogue_of(body))
        await self._recorder.record(request, choice.scenario, choice.index)
        if choice.step.failure is not None:
            return failure_response(choice.step.failure)
        if method == "generateContent":
            return JSONResponse(self._answer(choice.step, model))
        return StreamingResponse(self._stream(choice.step, model), media_type="text/event-stream")

    async def models(self, request: Request) -> Response:
        """List one model."""
        await self._recorder.record(request)
        return JSONResponse({"models": [{"name": "models/gemini-2.5-pro"}]})

    async def unknown(self, request: Request) -> Response:
        """Refuse every other path."""
        await self._recorder.record(request)
        return failure_response(Failure(404, "NOT_FOUND", "no such path"))

    def _base(self, step: Step, model: str) -> Json:
        usage = step.usage
        counts = {
            "promptTokenCount": usage.input,
            "candidatesTokenCount": usage.output,
            "cachedContentTokenCount": usage.cache_read,
            "totalTokenCount": usage.input + usage.output,
        }
        return {"modelVersion": model, "responseId": f"resp_{next(self._ids):04d}", "usageMetadata": counts}

    def _answer(self, step: Step, model: str) -> Json:
        parts = [_part(block) for block in step.blocks]
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": FINISH[step.stop_reason], "index": 0}
        return {**self._base(step, model), "candidates": [candidate]}

    async def _stream(self, step: Step, model: str) -> AsyncIterator[bytes]:
        base = self._base(step, model)
        if step.damage == "malformed":
            yield b'data: {"candidates":[,,,\r\n\r\n'
            return
        for count, part in enumerate(_pieces(step)):
            yield _event({**base, "candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]})
            await asyncio.sleep(step.delay)
            if step.damage == "cut" and count == 1:
                raise StreamCut
        end = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": FINISH[step.stop_reason], "index": 0}
        yield _event({**base, "candidates": [end]})


def _event(value: Json) -> bytes:
    return f"data: {json.dumps(value)}\r\n\r\n".encode()


def _part(block: Block) -> Json:
    if isinstance(block, Thinking):
        return {"text": block.text, "thought": True}
    if isinstance(block, Text):
        return {"text": block.text}
    return {"functionCall": {"name": block.name, "args": dict(block.input)}, "thoughtSignature": SIGNATURE}


def _pieces(step: Step) -> Iterator[Json]:
    """A thought comes whole, as the real API sends it; text in pieces."""
    for block in step.blocks:
        if isinstance(block, Text):
            for part in pieces(block.text, step.chunk):
                yield {"text": part}
        else:
            yield _part(block)


def failure_response(failure: Failure) -> JSONResponse:
    """An error in the API's own shape."""
    error = {"code": failure.status, "message": failure.message, "status": STATUS.get(failure.status, failure.kind)}
    return JSONResponse({"error": error}, status_code=failure.status, headers=dict(failure.headers))


@asynccontextmanager
async def model_server(scenarios: Mapping[str, Scenario] | None = None, port: int = 0) -> AsyncIterator[ModelServer]:
    """Run a server for the length of the block; `scenarios` add to or replace the stock ones."""
    recorder = Recorder()
    engine = Engine({**SCENARIOS, **(scenarios or {})})
    async with serving(GeminiDialect(engine, recorder).app(), port) as url:
        yield ModelServer(url, recorder.requests)


if __name__ == "__main__":
    serve_by_hand(model_server, "Scripted Gemini-style model server.")
