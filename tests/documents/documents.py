"""What the documents say (`data/*.json`), and a reader of event streams that knows nothing of the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

Json = dict[str, Any]
WriteScenario = Callable[..., str]
EXTENSION = "x-portico"


def sections(name: str) -> Json:
    """Return the sections of a document, by their titles."""
    return dict(load(name)["sections"])


def load(name: str) -> Json:
    return dict(json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text()))


def plain(value: Any) -> Any:
    """Return the value without the gateway's own field, which an AAP client ignores."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items() if key != EXTENSION} if isinstance(value, dict) else value


def read_stream(answer: httpx.Response) -> list[tuple[str, Any]]:
    """Return the events of an AAP stream as (name, data). A frame may have an `id:` line besides those of the document."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
    assert answer.text.endswith("\n\n")
    return [read_event(frame) for frame in answer.text.removesuffix("\n\n").split("\n\n")]


def read_event(frame: str) -> tuple[str, Any]:
    """Return the name and the data of one frame."""
    event, data, *more = frame.split("\n")
    assert event.startswith("event: ") and data.startswith("data: "), frame
    assert all(line.startswith("id: ") for line in more), frame
    return event.removeprefix("event: "), plain(json.loads(data.removeprefix("data: ")))


def user(text: str = "What's the weather in Tokyo?") -> Json:
    return {"role": "user", "content": text}


def agent(scenario: str, **config: Any) -> Json:
    """Return the AgentConfig of an agent that plays a scenario."""
    return {"name": "script", "options": {"scenario": scenario}, **config}


def whole(kind: str, text: str) -> Json:
    """Return the step of a scenario that sends a text or a thought as one delta."""
    return {kind: {"text": text, "chunk": 10_000}}
