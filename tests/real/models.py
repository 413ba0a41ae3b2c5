"""The scripted Anthropic server with the API key of each request, which the record of the server redacts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from tests.model_server.anthropic import AnthropicDialect
from tests.model_server.anthropic_scenarios import SCENARIOS
from tests.model_server.scenarios import Engine, Scenario
from tests.model_server.serving import ModelServer, Recorder, serving


@dataclass
class Model(ModelServer):
    """A running server; `keys` are the `x-api-key` headers of its requests."""

    keys: list[str] = field(default_factory=list)

    def last_request(self) -> dict[str, Any]:
        """The body of the newest model request."""
        return self.bodies()[-1]

    def request_count(self, scenario: str) -> int:
        """The number of requests that this scenario answered."""
        return len(self.bodies(scenario))


@asynccontextmanager
async def model_on_loopback(scenarios: Mapping[str, Scenario] | None = None) -> AsyncIterator[Model]:
    """Run a server for the length of the block; `scenarios` add to or replace the stock ones."""
    recorder, keys = Recorder(), list[str]()
    app = _record_keys(AnthropicDialect(Engine({**SCENARIOS, **(scenarios or {})}), recorder).app(), keys)
    async with serving(app) as url:
        yield Model(url, recorder.requests, keys)


def _record_keys(app: ASGIApp, keys: list[str]) -> ASGIApp:
    async def recording(scope: Scope, receive: Receive, send: Send) -> None:
        keys.extend(value.decode() for name, value in scope["headers"] if name == b"x-api-key")
        await app(scope, receive, send)

    return recording


def message_texts(body: dict[str, Any], role: str | None = None) -> list[str]:
    """The texts of a request in order, of one role or of all, without the reminders that the CLI adds."""
    texts = []
    for message in body["messages"]:
        if role in (None, message["role"]):
            texts += [text for text in _texts(message["content"]) if not text.startswith("<system-reminder>")]
    return texts


def system(body: dict[str, Any]) -> str:
    """The system prompt and all system messages of a request."""
    prompt = "\n".join(_texts(body.get("system", "")))
    return "\n".join([prompt, *(t for m in body["messages"] if m["role"] == "system" for t in _texts(m["content"]))])


def _texts(content: str | list[dict[str, Any]]) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content if block["type"] == "text"]
