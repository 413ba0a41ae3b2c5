"""Runs agents of the script driver and reads their events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import Limits
from drivers.contract.driver_info import ToolSpec
from drivers.contract.events import OutputEvent, SessionEnd
from drivers.runtime.cli_agent import CliAgent
from tests.drivers.small_programs import gone

ROOT = Path(__file__).parents[3]
SCENARIOS = sorted((ROOT / "tests" / "scenarios").glob("*.json"))
LIMITS = Limits(start=20, idle=20, total=40, grace=5)
WEATHER = ToolSpec("get_weather", "The weather.", {"type": "object"})
CLOCK = ToolSpec("get_time", "The time.", {"type": "object"})

Open = Callable[..., Awaitable[CliAgent]]


async def to_end(agent: CliAgent) -> list[OutputEvent]:
    events: list[OutputEvent] = []
    while not (events and events[-1].kind == "session_end"):
        events += await asyncio.wait_for(agent.receive(), 60)
    return events


async def until(agent: CliAgent, kind: str) -> list[OutputEvent]:
    events: list[OutputEvent] = []
    while not any(event.kind == kind for event in events):
        events += await asyncio.wait_for(agent.receive(), 60)
    return events


async def ask(agent: CliAgent, text: str = "hello") -> list[OutputEvent]:
    await agent.prompt(Prompt(text))
    return await to_end(agent)


def text_in(events: Sequence[OutputEvent], kind: str = "agent_token") -> str:
    return "".join(event.text for event in events if event.kind == kind)  # type: ignore[union-attr]


def plain(events: Sequence[OutputEvent]) -> list[dict[str, Any]]:
    """The events as JSON, without `native_session` and the duration of the run."""
    shown = [json.loads(event.encode()) for event in events if event.kind != "native_session"]
    for event in shown:
        event.pop("duration_ms", None)
    return shown


def end(events: Sequence[OutputEvent]) -> tuple[int, str]:
    assert isinstance(events[-1], SessionEnd)
    return events[-1].exit_code, events[-1].stop_reason


def alive(pid: int) -> bool:
    return not gone(pid)
