"""A scripted model server that speaks the OpenAI Responses API.

Owns the translation between that API and `scenarios`: input items become a dialogue, a
step becomes a stream of server-sent events. Serves POST /v1/responses and GET
/v1/models; anything else is a JSON 404. Run it by hand with
`python -m tests.model_server.openai --port N`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.model_server.openai_scenarios import CUSTOM_TOOLS, SCENARIOS
from tests.model_server.scenarios import Block, Dialogue, Engine, Failure, Scenario, Step, Text, Thinking, Turn
from tests.model_server.serving import ModelServer, Recorder, StreamCut, parse_object, pieces, serve_by_hand, serving

INJECTED = re.compile(r"\s*<(environment_context|user_instructions|turn_aborted|permissions instructions|skills?_\w+)>")
"""The beginning of texts that the CLI adds as user texts."""
CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})

Json = dict[str, Any]


def dialogue_of(body: Json) -> Dialogue:
    """Read a request's input as a dialogue, one assistant turn per response, without the texts that the CLI injects."""
    turns: list[Turn] = []
    answering = False
    for item in body.get("input", []):
        kind, role = item.get("type", "message"), item.get("role")
        if kind in OUTPUTS:
            turns.append(Turn("tool"))
        elif kind in (*CALLS, "reasoning") or role == "assistant":
            texts = tuple(texts_of(item)) if role == "assistant" else ()
            if answering:
                texts = (*turns.pop().texts, *texts)
            turns.append(Turn("assistant", texts))
        elif role == "user" and (texts := tuple(text for text in texts_of(item) if not INJECTED.match(text))):
            turns.append(Turn("user", texts))
        answering = bool(turns) and turns[-1].role == "assistant"
    return tuple(turns)


def texts_of(item: Json) -> list[str]:
    """The texts of a message item."""
    content = item.get("content") or []
    return [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]


@dataclass
class OpenAIServer(ModelServer):
    """A running server; `keys` are the Authorization headers of its requests, which the record redacts."""

    keys: list[str] = field(default_factory=list)

    def bodies(self, scenario: str | None = None) -> list[Json]:
        """Bodies of the model requests, optionally of one scenario only."""
        asked = [request for request in self.requests if request.path.endswith("/responses")]
        return [request.body for request in asked if scenario in (None, request.scenario)]


class OpenAIDialect:
    """Request handlers over one engine and one recorder."""

    def __init__(self, engine: Engine, recorder: Recorder, keys: list[str]) -> None:
        self._engine, self._recorder, self._keys = engine, recorder, keys
        self._ids = itertools.count(1)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/{path:path}", self.unknown, methods=["GET", "POST", "PUT", "DELETE"]),
        ]
        return Starlette(routes=routes)

    async def responses(self, request: Request) -> Response:
        """Answer one model request by its scenario."""
        self._keys.append(request.headers.get("authorization", ""))
        body = parse_object(await request.body())
        choice = self._engine.choose(dialogue_of(body))
        await self._recorder.record(request, choice.scenario, choice.index)
        step = choice.step
        if step.failure is not None:
            return failure_response(step.failure)
        serial = next(self._ids)
        items = [_item(block, f"{serial:04d}_{position}") for position, block in enumerate(step.blocks)]
        bare = {
            "id": f"resp_{serial:04d}",
            "object": "response",
            "model": body.get("model"),
            "status": "in_progress",
            "output": [],
        }
        return StreamingResponse(stream(step, bare, items), media_type="text/event-stream")

    async def models(self, request: Request) -> Response:
        """List one model."""
        await self._recorder.record(request)
        model = {"id": "gpt-5.5", "object": "model", "created": 0, "owned_by": "scripted"}
        return JSONResponse({"object": "list", "data": [model]})

    async def unknown(self, request: Request) -> Response:
        """Refuse every other path."""
        await self._recorder.record(request)
        return failure_response(Failure(404, "not_found_error", "no such path"))


def failure_response(failure: Failure) -> JSONResponse:
    """An error in the API's own shape."""
    error = {"type": failure.kind, "message": failure.message, "code": None, "param": None}
    return JSONResponse({"error": error}, status_code=failure.status, headers=dict(failure.headers))


def _item(block: Block, serial: str) -> Json:
    if isinstance(block, Thinking):
        summary = [{"type": "summary_text", "text": block.text}]
        return {"type": "reasoning", "id": f"rs_{serial}", "summary": summary, "encrypted_content": "c2VjcmV0"}
    if isinstance(block, Text):
        content = [{"type": "output_text", "text": block.text, "annotations": []}]
        return {"type": "message", "id": f"msg_{serial}", "role": "assistant", "status": "completed", "content": content}
    call = {"call_id": f"call_{serial}", "name": block.name, "status": "completed"}
    if block.name in CUSTOM_TOOLS:
        return {"type": "custom_tool_call", "id": f"ctc_{serial}", **call, "input": block.input["input"]}
    server, _, tool = block.name.rpartition("__")
    if server.startswith("mcp__"):
        # A tool of an MCP server: models name it by its server and itself.
        call |= {"namespace": server, "name": tool}
    return {"type": "function_call", "id": f"fc_{serial}", **call, "arguments": json.dumps(dict(block.input))}


def _usage(step: Step) -> Json:
    sent = step.usage.input + step.usage.cache_read
    return {
        "input_tokens": sent,
        "input_tokens_details": {"cached_tokens": step.usage.cache_read},
        "output_tokens": step.usage.output,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": sent + step.usage.output,
    }


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def stream(step: Step, bare: Json, items: list[Json]) -> AsyncIterator[bytes]:
    """The response as server-sent events, damaged if the step has `damage`."""
    yield _event("response.created", response=bare)
    if step.damage == "malformed":
        yield b'event: response.output_text.delta\ndata: {"type":,,,\n\n'
        return
    for index, item in enumerate(items):
        yield _event("response.output_item.added", output_index=index, item=_opened(item))
        for count, event in enumerate(_deltas(item, index, step.chunk)):
            yield event
            await asyncio.sleep(step.delay)
            if step.damage == "cut" and count == 1:
                raise StreamCut
        yield _event("response.output_item.done", output_index=index, item=item)
    done = {**bare, "output": items, "usage": _usage(step)}
    reason = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}.get(step.stop_reason)
    if reason:
        yield _event("response.incomplete", response={**done, "status": "incomplete", "incomplete_details": {"reason": reason}})
    else:
        yield _event("response.completed", response={**done, "status": "completed"})


def _opened(item: Json) -> Json:
    empty: Json = {"reasoning": {"summary": []}, "message": {"content": []}, "function_call": {"arguments": ""}}
    return {**item, **empty.get(item["type"], {"input": ""}), "status": "in_progress"}


def _deltas(item: Json, index: int, size: int) -> Iterator[bytes]:
    where = {"item_id": item["id"], "output_index": index}
    if item["type"] == "reasoning":
        where["summary_index"] = 0
        yield _event("response.reasoning_summary_part.added", **where, part={"type": "summary_text", "text": ""})
        for part in pieces(item["summary"][0]["text"], size):
            yield _event("response.reasoning_summary_text.delta", **where, delta=part)
    elif item["type"] == "message":
        for part in pieces(item["content"][0]["text"], size):
            yield _event("response.output_text.delta", **where, content_index=0, delta=part)
    else:
        kind, text = (
            ("function_call_arguments", item.get("arguments"))
            if "arguments" in item
            else ("custom_tool_call_input", item["input"])
        )
        for part in pieces(text, size):
            yield _event(f"response.{kind}.delta", **where, delta=part)


@asynccontextmanager
async def model_server(scenarios: Mapping[str, Scenario] | None = None, port: int = 0) -> AsyncIterator[OpenAIServer]:
    """Run a server for the length of the block; `scenarios` add to or replace the stock ones."""
    recorder, keys = Recorder(), list[str]()
    engine = Engine({**SCENARIOS, **(scenarios or {})})
    async with serving(OpenAIDialect(engine, recorder, keys).app(), port) as url:
        yield OpenAIServer(url, recorder.requests, keys)


if __name__ == "__main__":
    serve_by_hand(model_server, "Scripted OpenAI-style model server.")
