"""`python -m benchmarks.traced_daemon FILE serve …`: as `python -m gateway serve …`, and records when a turn passes each step.

At the end it writes a JSON list of [seconds of the monotonic clock, step] to FILE. Each step costs about a microsecond.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from drivers.runtime.cli_agent import CliAgent
from gateway.cli.main import main
from gateway.events.event_log import EventLog
from gateway.protocols.aap.turn_responses import Exchange
from gateway.server.guard import _Response
from gateway.sessions.session import Session
from gateway.store.database import Database
from gateway.store.runs import RunRepository

ENTERED: list[tuple[Any, str, str]] = [
    (HttpToolsProtocol, "data_received", "request received"),
    (FastAPI, "__call__", "middleware passed"),
    (Exchange, "turn", "caller authenticated, headers and body validated"),
    (Session, "submit", "session found"),
    (RunRepository, "start", "run prepared"),
    (Database, "_write", "transaction begun (thread)"),
    (CliAgent, "prompt", "run stored, state updated"),
    (EventLog, "append", "agent's event parsed"),
]
"""What is recorded when a function is called."""
RETURNED: list[tuple[Any, str, str]] = [
    (Database, "_write", "transaction committed (thread)"),
    (RunRepository, "start", "event loop continues"),
    (CliAgent, "prompt", "prompt written to the agent"),
    (CliAgent, "receive", "agent's line received"),
    (_Response, "send", "sent to the client"),
]
"""What is recorded when it returns."""

_steps: list[tuple[float, str]] = []


def _record(step: str) -> None:
    _steps.append((time.perf_counter(), step))


def _traced(function: Callable[..., Any], entered: str, returned: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def traced(*args: Any, **named: Any) -> Any:
            if entered:
                _record(entered)
            try:
                return await function(*args, **named)
            finally:
                if returned:
                    _record(returned)
    else:

        @functools.wraps(function)
        def traced(*args: Any, **named: Any) -> Any:
            if entered:
                _record(entered)
            try:
                return function(*args, **named)
            finally:
                if returned:
                    _record(returned)

    return traced


def _trace(file: Path) -> None:
    steps: dict[tuple[Any, str], list[str]] = {}
    for position, table in enumerate((ENTERED, RETURNED)):
        for owner, name, step in table:
            steps.setdefault((owner, name), ["", ""])[position] = step
    for (owner, name), (entered, returned) in steps.items():
        setattr(owner, name, _traced(getattr(owner, name), entered, returned))
    atexit.register(lambda: file.write_text(json.dumps(_steps)))


if __name__ == "__main__":
    _trace(Path(sys.argv.pop(1)))
    main()
