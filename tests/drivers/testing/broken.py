"""Drivers with one thing wrong, each over the echo driver, for the checks to find."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drivers.agent import CliAgent
from drivers.base import (
    Agent,
    AgentSpec,
    AgentUnavailable,
    DriverInfo,
    Limits,
    Option,
    Probe,
    ResumeFailed,
    SessionSpec,
    TaskSpec,
    ToolSpec,
)
from drivers.codec import Command, Launch
from drivers.driver import Driver
from drivers.echo import EchoDriver
from drivers.event_lines import EventLineCodec, open_request
from drivers.events import AgentToken, Error, NativeSession, OutputEvent, SessionEnd, Stdout, ToolResult
from drivers.process import Spawner


class With(EchoDriver):
    """The echo driver with other facts about itself."""

    def __init__(self, **facts: Any) -> None:
        self._facts = facts

    def info(self) -> DriverInfo:
        return replace(super().info(), **self._facts)


class Named(EchoDriver):
    name = "no name"


class Restless(EchoDriver):
    """Says something else each time."""

    def __init__(self) -> None:
        self._times = 0

    def info(self) -> DriverInfo:
        self._times += 1
        return replace(super().info(), version=f"{self._times}.0.0")


class Speechless(EchoDriver):
    def info(self) -> DriverInfo:
        raise RuntimeError("cannot say")


class Unprobed(EchoDriver):
    async def probe(self, spec: AgentSpec, spawner: Spawner) -> Probe:
        return Probe(problem="it does not run here")


class Talkative(EchoDriver):
    """Puts what it is told into the arguments."""

    def __init__(self, what: Callable[[SessionSpec], str]) -> None:
        self._what = what

    def info(self) -> DriverInfo:
        return replace(super().info(), options=(Option("token", "Token", "A secret.", secret=True),))

    def session(self, spec: SessionSpec) -> Launch:
        launch = super().session(spec)
        return replace(launch, command=replace(launch.command, argv=(*launch.command.argv, self._what(spec))))


class TalkativeTask(EchoDriver):
    def task(self, spec: TaskSpec) -> Launch:
        launch = super().task(spec)
        return replace(launch, command=replace(launch.command, argv=(*launch.command.argv, f"--say={spec.task}")))


class Coded(EchoDriver):
    """The echo driver with another codec, in sessions and tasks."""

    def __init__(self, codec: type[EventLineCodec]) -> None:
        self._codec = codec

    def session(self, spec: SessionSpec) -> Launch:
        return replace(super().session(spec), codec=self._codec(open_request(spec)))

    def task(self, spec: TaskSpec) -> Launch:
        return replace(super().task(spec), codec=self._codec(once=True))


class Coming(EventLineCodec):
    """What it gives for the events of a line is up to `change`."""

    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return events

    def receive(self, line: bytes) -> list[OutputEvent]:
        return self.change(super().receive(line))

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        return self.change(super().exited(exit_code, stderr))


class EndsTwice(Coming):
    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [twin for event in events for twin in ([event, event] if isinstance(event, SessionEnd) else [event])]


class NeverEnds(Coming):
    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [event for event in events if not isinstance(event, SessionEnd)]


class GoesOnAfterItsEnd(Coming):
    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [*events, AgentToken(text="late")] if any(isinstance(event, SessionEnd) for event in events) else events


class SilentlyFails(Coming):
    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        failing = SessionEnd(exit_code=1, stop_reason="error")
        return [failing if isinstance(event, SessionEnd) else event for event in events if not isinstance(event, Error)]


class FindsResults(Coming):
    """Tells of the results of calls that nobody made."""

    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [*(ToolResult(tool_call_id="1", output="x") for event in events if isinstance(event, AgentToken)), *events]


class Texts(Coming):
    """Gives texts instead of events."""

    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return ["text" if isinstance(event, AgentToken) else event for event in events]  # type: ignore[misc]


class Loses(Coming):
    """Drops what it does not understand."""

    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [event for event in events if not isinstance(event, Stdout)]


class Trusting(EventLineCodec):
    """Believes that every line is what it should be."""

    def receive(self, line: bytes) -> list[OutputEvent]:
        if not line.startswith(b'{"kind"') or not line.endswith(b"}"):
            raise ValueError(f"what is this: {line!r}")
        return super().receive(line)


class Gullible(EventLineCodec):
    """Takes every end for the end of a run of its own."""

    def receive(self, line: bytes) -> list[OutputEvent]:
        events = super().receive(line)
        return [SessionEnd(exit_code=0)] if b"session_end" in line else events


class Wishful(EventLineCodec):
    """Takes a process that has died for one that has done its work."""

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self.phase != "running":
            return []
        self.phase = "ready"
        return [SessionEnd(exit_code=0)]


class LeavesOpen(EventLineCodec):
    """Has no word for a process that dies."""

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        return [] if exit_code else super().exited(exit_code, stderr)


class Repeats(EventLineCodec):
    """Tells the end of a run whenever its process exits."""

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        return [Error(message="it ended"), SessionEnd(exit_code=exit_code or 1, stop_reason="error")]


class Programmed(EchoDriver):
    """The echo driver with another program for its sessions."""

    def __init__(self, program: str, agent: type[CliAgent] = CliAgent, task: str | None = None) -> None:
        self._program, self._agent, self._task = program, agent, task

    def session(self, spec: SessionSpec) -> Launch:
        return replace(super().session(spec), command=Command(_python(self._program), spec.cwd, spec.env))

    def task(self, spec: TaskSpec) -> Launch:
        launch = super().task(spec)
        return launch if self._task is None else replace(launch, command=Command(_python(self._task), spec.cwd, spec.env, b""))

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        return await self._agent.start(self.session(spec), spawner, limits)


def _python(code: str) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", "-c", code


ECHO = """
import json, sys, subprocess
def say(**event): print(json.dumps(event), flush=True)
say(kind="native_session", native_id="one")
for line in sys.stdin:
    if json.loads(line)["type"] == "prompt":
        say(kind="agent_token", text="x")
        say(kind="session_end", exit_code=0)
"""
ONE_TURN = ECHO + "        break\n"
FAILS = ECHO.replace(
    'say(kind="session_end", exit_code=0)', 'say(kind="error", message="no"); say(kind="session_end", exit_code=1)'
)
MUTE = ECHO.replace('say(kind="agent_token", text="x")', "continue")


class Deaf(CliAgent):
    """Does not listen when it is interrupted."""

    async def interrupt(self) -> None:
        return


class Immortal(CliAgent):
    """Leaves its process alone when it is closed."""

    async def close(self, grace: float | None = None) -> None:
        return


class Unaware(CliAgent):
    """Thinks that it lives."""

    @property
    def alive(self) -> bool:
        return True


class Patient(CliAgent):
    """Takes prompts though its process is gone."""

    async def prompt(self, prompt: Any) -> None:
        if self.alive:
            await super().prompt(prompt)


class Resuming(EchoDriver):
    """Has a native session; what becomes of one that is to be resumed is up to `refuse`."""

    def __init__(self, refuse: Callable[[str], Exception | None] = lambda native_id: None, told: str = "one") -> None:
        self._refuse, self._told = refuse, told

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        if spec.resume is not None and (error := self._refuse(spec.resume)):
            raise error
        return await super().open(spec, spawner, limits)

    def session(self, spec: SessionSpec) -> Launch:
        told = self._told

        class Identified(EventLineCodec):
            def receive(self, line: bytes) -> list[OutputEvent]:
                events = super().receive(line)
                self.native_id = "one"
                return [NativeSession(native_id=told) if isinstance(event, AgentToken) else event for event in events]

        return replace(super().session(spec), codec=Identified(open_request(spec)))


def only_one(native_id: str) -> Exception | None:
    return None if native_id == "one" else ResumeFailed("it is gone")


def wrong_word(native_id: str) -> Exception | None:
    return None if native_id == "one" else AgentUnavailable("it is gone")


class Closed(Driver):
    """No CliDriver: an agent without a process or a codec."""

    name = "closed"

    def info(self) -> DriverInfo:
        return EchoDriver().info()

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        return InProcess()

    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        agent = InProcess()
        await agent.prompt(None)
        return agent


class InProcess(Agent):
    def __init__(self) -> None:
        self._ready: list[OutputEvent] = []
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed

    async def prompt(self, prompt: Any) -> None:
        self._ready = [AgentToken(text="x"), SessionEnd(exit_code=0)]

    async def receive(self) -> Sequence[OutputEvent]:
        events, self._ready = self._ready, []
        return events

    async def reply(self, reply: Any) -> None:
        raise NotImplementedError

    async def interrupt(self) -> None:
        return

    async def close(self, grace: float | None = None) -> None:
        self._closed = True


def tool(schema: Mapping[str, Any], name: str = "look") -> ToolSpec:
    return ToolSpec(name, "Looks.", schema)


def option(name: str = "mood", **fields: Any) -> Option:
    return Option(name, fields.pop("title", "Mood"), "How it feels.", **fields)
