"""Requests of AAP, by its client (aap_client.py), and of `/v1/execute`, and checks of processes."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from gateway.app import Gateway
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Session
from tests.support.aap_client import ROOT, AapClient
from tests.support.aap_client import session_body as session_body
from tests.support.aap_client import user_message as user_message
from tests.support.aap_client import with_extensions as with_extensions
from tests.support.sse import Frame, parse_frames, parse_output_events
from tests.support.waiting import wait_until

PROGRAMS = ("/echo/program.py", "/script/program/main.py")
"""Suffixes of the program paths of the `echo` and `script` agents."""


async def create_session(client: httpx.AsyncClient, agent: str = "script", *messages: Any, **fields: Any) -> dict[str, Any]:
    """Create a session and return the result of its first turn."""
    return await AapClient(client, ROOT).create_session(agent, *messages, **fields)


async def send_turn(client: httpx.AsyncClient, session: str, *messages: Any, **fields: Any) -> dict[str, Any]:
    """Run a turn and return its result."""
    return await AapClient(client, ROOT).send_turn(session, *messages, **fields)


async def get_session(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    """Return a session, with the fields of `x-portico` beside those of the protocol."""
    return await AapClient(client, ROOT).get_session(session)


async def get_history(client: httpx.AsyncClient, session: str) -> list[dict[str, Any]]:
    """Return the full history of a session."""
    return await AapClient(client, ROOT).get_history(session)


async def wait_until_idle(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    """Wait until no run is active and return the session."""
    return await AapClient(client, ROOT).wait_until_idle(session)


async def session_of(gateway: Gateway, session_id: str) -> Session:
    """Return the object of a session."""
    return await gateway.sessions.get(ADMINISTRATOR, session_id)


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
    await gateway.discovery.settled()
