"""A codec that debounces: events are held back until the CLI has been silent."""

from __future__ import annotations

import asyncio

from drivers.codecs.output_event_lines import EventLineCodec
from drivers.contract.agent import Prompt, Reply, ToolReply
from drivers.contract.capabilities import SupportsDebounce
from drivers.contract.events import Awaiting, OutputEvent
from tests.drivers.small_programs import OpenAgent, to_end, until
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

TWO_CALLS = """
read(); emit("native_session", native_id="n"); read()
emit("awaiting", calls=[{"id": "a", "wants": "result"}])
time.sleep(0.02)
emit("awaiting", calls=[{"id": "b", "wants": "result"}])
read(); read()
emit("agent_token", text="on"); emit("session_end", exit_code=0, duration_ms=0)
read()
"""


NEVER_SILENT = """
read(); emit("native_session", native_id="n"); read()
emit("awaiting", calls=[{"id": "a", "wants": "result"}])
while True: emit("agent_token", text="x"); time.sleep(0.01)
"""


class Gathering(EventLineCodec, SupportsDebounce):
    """Announces all calls together after a silence of so many seconds."""

    max_held_seconds = 35.0

    def __init__(self, silence: float = 1.0) -> None:
        super().__init__(b"{}\n")
        self.held: list[Awaiting] = []
        self.lines = 0
        self._silence = silence

    def receive(self, line: bytes) -> list[OutputEvent]:
        events = super().receive(line)
        self.lines += 1
        if events and isinstance(events[0], Awaiting):
            self.held.append(events[0])
            self.phase = "running"
            return []
        return events

    def debounce_seconds(self) -> float | None:
        return self._silence if self.held and self.phase == "running" else None

    def debounced_events(self) -> list[OutputEvent]:
        calls = tuple(call for awaiting in self.held for call in awaiting.calls)
        self.held.clear()
        self.phase = "waiting"
        return [Awaiting(calls=calls)]


async def test_calls_that_come_one_after_the_other_are_announced_together(open_agent: OpenAgent, clock: ManualClock) -> None:
    codec = Gathering()
    agent = await open_agent(TWO_CALLS, codec=codec)
    await agent.prompt(Prompt("go"))
    reading = asyncio.create_task(until(agent, "awaiting"))
    await wait_until(lambda: len(codec.held) == 2)
    await clock.expire(1.0)
    *_, awaiting = await reading
    assert isinstance(awaiting, Awaiting) and [call.id for call in awaiting.calls] == ["a", "b"]
    replies: list[Reply] = [ToolReply("a", "1"), ToolReply("b", "2")]
    for reply in replies:
        await agent.reply(reply)
    assert [event.kind for event in await to_end(agent)] == ["agent_token", "session_end"]


async def test_calls_are_announced_although_the_cli_is_never_silent(open_agent: OpenAgent, clock: ManualClock) -> None:
    codec = Gathering(silence=30.0)
    agent = await open_agent(NEVER_SILENT, codec=codec)
    await agent.prompt(Prompt("go"))
    reading = asyncio.create_task(until(agent, "awaiting"))
    for _ in range(2):
        before = codec.lines
        await wait_until(lambda: codec.held and codec.lines > before + 1)  # noqa: B023 it is awaited here
        await clock.advance(10.0)
    before = codec.lines
    await wait_until(lambda: codec.lines > before)
    # The silence would be over 30 s after what was written since.
    await clock.expire(15.0)
    *_, awaiting = await reading
    assert isinstance(awaiting, Awaiting) and [call.id for call in awaiting.calls] == ["a"]
