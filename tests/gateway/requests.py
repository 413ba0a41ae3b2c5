"""How the tests of the gateway talk to it: requests of both protocols, frames of their streams, and waits with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

PROGRAMS = ("/echo/program.py", "/script/program/main.py")
"""The ends of the paths of the programs behind `echo` and `script`."""

Frame = tuple[str, dict[str, Any]]
"""An SSE event: its name and its data."""


def user_message(content: Any = "hello") -> dict[str, Any]:
    return {"role": "user", "content": content}


def session_body(agent: str = "script", *messages: Any, options: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """The body of `PUT /session`; texts are user messages, keywords with a meaning for the agent go to it."""
    config = {"name": agent, **({"options": options} if options else {})}
    if "grants" in fields:
        config["tools"] = fields.pop("grants")
    received_text = [message if isinstance(message, dict) else user_message(message) for message in messages or ("hello",)]
    return {"agent": config, "messages": received_text, **fields}


async def create_session(client: httpx.AsyncClient, agent: str = "script", *messages: Any, **fields: Any) -> dict[str, Any]:
    """A new session's first turn, as JSON."""
    answer = await client.put("/session", json=session_body(agent, *messages, **fields))
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def send_turn(client: httpx.AsyncClient, session: str, *messages: Any, **fields: Any) -> dict[str, Any]:
    """A turn of a session, as JSON."""
    received_text = [message if isinstance(message, dict) else user_message(message) for message in messages]
    answer = await client.post(f"/session/{session}", json={"messages": received_text, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def get_session(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    """What `GET /session/:id` says."""
    answer = await client.get(f"/session/{session}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def get_history(client: httpx.AsyncClient, session: str) -> list[dict[str, Any]]:
    return list((await get_session(client, session))["history"]["full"])


async def expect_error(awaited: Awaitable[httpx.Response], status: int) -> str:
    """The text of a refusal, which must have this status and the one form of all errors."""
    answer = await awaited
    assert answer.status_code == status, (answer.status_code, answer.text)
    body = answer.json()
    assert list(body) == ["error"]
    assert isinstance(body["error"], str)
    assert body["error"]
    return str(body["error"])


def parse_frames(text: str) -> list[Frame]:
    """The events of a whole AAP stream; nothing else than `event: NAME`, `data: JSON` and comments may stand in it."""
    assert text.endswith("\n\n")
    found: list[Frame] = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data, *_ = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), block
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def stream_turn(client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any]) -> list[Frame]:
    """All events of a streamed turn."""
    answer = await client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    return parse_frames(answer.text)


def joined_text(events: Iterable[Frame], name: str) -> str:
    """The texts of all events of one name, put together."""
    return "".join(next(iter(data.values())) for event, data in events if event == name)


def parse_output_events(text: str) -> list[dict[str, Any]]:
    """The frames of a whole stream of `/v1/execute`."""
    assert text.endswith("\n\n")
    blocks = [block for block in text.split("\n\n")[:-1] if not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


async def execute(client: httpx.AsyncClient, task: str = "do it", driver: str = "script", **fields: Any) -> list[dict[str, Any]]:
    answer = await client.post("/v1/execute", json={"driver": driver, "task": task, **fields})
    assert answer.status_code == 200, answer.text
    return parse_output_events(answer.text)


async def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What the condition gives as soon as that is true; it may be async. Only for what nothing announces."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.02)


async def wait_until_idle(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    """The session once its run is over."""

    async def over() -> dict[str, Any] | None:
        found = await get_session(client, session)
        return found if found["state"] == "idle" else None

    return dict(await wait_until(over))


async def read_pid(file: Path) -> int:
    """The process id that an agent's `spawn` step writes."""
    return int(await wait_until(lambda: file.exists() and file.read_text()))


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def agent_processes(pid: int) -> list[psutil.Process]:
    """The processes of `echo` and `script` agents that a daemon has."""
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and any(
                word.endswith(("/echo/program.py", "/script/program/main.py")) for word in child.cmdline()
            ):
                found.append(child)
    return found
