"""Requests of AAP and `/v1/execute`, waits with a deadline, and checks of processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from gateway.app import Gateway
from tests.support.sse import Frame, parse_frames, parse_output_events
from tests.support.waiting import wait_until

PROGRAMS = ("/echo/program.py", "/script/program/main.py")
"""Suffixes of the program paths of the `echo` and `script` agents."""


def user_message(content: Any = "hello") -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": content}


def session_body(agent: str = "script", *messages: Any, options: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Return the body of `PUT /session`. Strings become user messages; `options` and `grants` go into `agent`."""
    config = {"name": agent, **({"options": options} if options else {})}
    if "grants" in fields:
        config["tools"] = fields.pop("grants")
    bodies = [message if isinstance(message, dict) else user_message(message) for message in messages or ("hello",)]
    return {"agent": config, "messages": bodies, **fields}


async def create_session(client: httpx.AsyncClient, agent: str = "script", *messages: Any, **fields: Any) -> dict[str, Any]:
    """Create a session and return the result of its first turn."""
    answer = await client.put("/session", json=session_body(agent, *messages, **fields))
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def send_turn(client: httpx.AsyncClient, session: str, *messages: Any, **fields: Any) -> dict[str, Any]:
    """Run a turn and return its result."""
    bodies = [message if isinstance(message, dict) else user_message(message) for message in messages]
    answer = await client.post(f"/session/{session}", json={"messages": bodies, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def get_session(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    """Return the response of `GET /session/:id`, with the fields of `x-portico` beside those of the protocol."""
    answer = await client.get(f"/session/{session}")
    assert answer.status_code == 200, answer.text
    return with_extensions(answer.json())


def with_extensions(session: dict[str, Any]) -> dict[str, Any]:
    """Return a session of AAP with the fields of `x-portico` beside those of the protocol."""
    fields = dict(session)
    extensions = fields.pop("x-portico")
    assert not extensions.keys() & fields.keys()
    return fields | extensions


async def get_history(client: httpx.AsyncClient, session: str) -> list[dict[str, Any]]:
    """Return the full history of a session."""
    return list((await get_session(client, session))["history"]["full"])


async def expect_error(awaited: Awaitable[httpx.Response], status: int) -> str:
    """Return the error text of a response, which must have this status and the error schema."""
    answer = await awaited
    assert answer.status_code == status, (answer.status_code, answer.text)
    body = answer.json()
    assert list(body) == ["error"]
    assert isinstance(body["error"], str)
    assert body["error"]
    return str(body["error"])


async def stream_turn(client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any]) -> list[Frame]:
    """Run a streamed turn and return its events."""
    answer = await client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    return parse_frames(answer.text)


def joined_text(events: Iterable[Frame], name: str) -> str:
    """Return the concatenated text of all events of one name."""
    return "".join(next(iter(data.values())) for event, data in events if event == name)


async def execute(client: httpx.AsyncClient, task: str = "do it", driver: str = "script", **fields: Any) -> list[dict[str, Any]]:
    """Run a task with `/v1/execute` and return its events."""
    answer = await client.post("/v1/execute", json={"driver": driver, "task": task, **fields})
    assert answer.status_code == 200, answer.text
    return parse_output_events(answer.text)


async def wait_until_idle(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    """Wait until no run is active and return the session."""

    async def over() -> dict[str, Any] | None:
        found = await get_session(client, session)
        return found if found["state"] == "idle" else None

    return dict(await wait_until(over))


async def read_pid(file: Path) -> int:
    """Wait for the process id that a `spawn` step writes to the file, and return it."""
    return int(await wait_until(lambda: file.exists() and file.read_text()))


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def agent_processes(pid: int) -> list[psutil.Process]:
    """Return the `echo` and `script` agent processes of a daemon."""
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and any(
                word.endswith(("/echo/program.py", "/script/program/main.py")) for word in child.cmdline()
            ):
                found.append(child)
    return found


async def wait_for_probes(gateway: Gateway) -> None:
    """Wait until the agents are probed."""
    await asyncio.gather(*gateway.discovery._probes.values())
