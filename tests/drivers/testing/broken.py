"""Drivers and agents with one fault each, derived from the echo driver. Their codecs are in broken_codecs.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drivers.codecs.json_lines import JsonLineCodec
from drivers.codecs.output_event_lines import EventLineCodec, open_request
from drivers.codecs.turn_codec import TurnCodec
from drivers.contract.agent import Agent, Prompt
from drivers.contract.agent_specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.contract.codec import Command, Launch
from drivers.contract.driver_info import Capabilities, DriverInfo, Option, Probe, ToolSpec
from drivers.contract.errors import AgentUnavailable, ResumeFailed
from drivers.contract.events import AgentToken, Error, NativeSession, OutputEvent, SessionEnd
from drivers.echo.driver import EchoDriver
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.cli_driver import Driver
from drivers.runtime.process import Spawner
from drivers.runtime.turn_process import TurnProcessDriver


class With(EchoDriver):
    """The echo driver with other facts about itself."""

    def __init__(self, **facts: Any) -> None:
        self._facts = facts

    def info(self) -> DriverInfo:
        return replace(super().info(), **self._facts)


class Named(EchoDriver):
    name = "no name"


class ChangesItsVersion(EchoDriver):
    """Declares another version each time."""

    def __init__(self) -> None:
        self._times = 0

    def info(self) -> DriverInfo:
        self._times += 1
        return replace(super().info(), version=f"{self._times}.0.0")


class FailsInfo(EchoDriver):
    def info(self) -> DriverInfo:
        raise RuntimeError("no info")


class FailsProbe(EchoDriver):
    async def probe(self, spec: AgentSpec, spawner: Spawner) -> Probe:
        return Probe(problem="it does not run here")


class LeaksTheSpec(EchoDriver):
    """Puts a part of the session spec into the arguments."""

    def __init__(self, what: Callable[[SessionSpec], str]) -> None:
        self._what = what

    def info(self) -> DriverInfo:
        return replace(super().info(), options=(Option("token", "Token", "A secret.", secret=True),))

    def session(self, spec: SessionSpec) -> Launch:
        launch = super().session(spec)
        return replace(launch, command=replace(launch.command, argv=(*launch.command.argv, self._what(spec))))


class LeaksTheTask(EchoDriver):
    def task(self, spec: TaskSpec) -> Launch:
        launch = super().task(spec)
        return replace(launch, command=replace(launch.command, argv=(*launch.command.argv, f"--task={spec.task}")))


class Coded(EchoDriver):
    """The echo driver with another codec, in sessions and tasks."""

    def __init__(self, codec: type[EventLineCodec]) -> None:
        self._codec = codec

    def session(self, spec: SessionSpec) -> Launch:
        return replace(super().session(spec), codec=self._codec(open_request(spec)))

    def task(self, spec: TaskSpec) -> Launch:
        return replace(super().task(spec), codec=self._codec(once=True))


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
def emit(**event): print(json.dumps(event), flush=True)
emit(kind="native_session", native_id="one")
for line in sys.stdin:
    if json.loads(line)["type"] == "prompt":
        emit(kind="agent_token", text="x")
        emit(kind="session_end", exit_code=0)
"""
ONE_TURN = ECHO + "        break\n"
FAILS = ECHO.replace(
    'emit(kind="session_end", exit_code=0)', 'emit(kind="error", message="no"); emit(kind="session_end", exit_code=1)'
)
MUTE = ECHO.replace('emit(kind="agent_token", text="x")', "continue")


class IgnoresInterrupts(CliAgent):
    """Ignores interrupts."""

    async def interrupt(self) -> None:
        return


class LeavesItsProcess(CliAgent):
    """Does not end its process when it is closed."""

    async def close(self, grace: float | None = None) -> None:
        return


class ReportsAlive(CliAgent):
    """Reports that it is alive after its process has ended."""

    @property
    def alive(self) -> bool:
        return True


class AcceptsPromptsAfterExit(CliAgent):
    """Accepts prompts after its process has ended."""

    async def prompt(self, prompt: Any) -> None:
        if self.alive:
            await super().prompt(prompt)


class Resuming(EchoDriver):
    """Has a native session; `refuse` returns the error of resuming a session, or None."""

    def __init__(self, refuse: Callable[[str], Exception | None] = lambda native_id: None, reported: str = "one") -> None:
        self._refuse, self._reported = refuse, reported

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        if spec.seed.resume is not None and (error := self._refuse(spec.seed.resume)):
            raise error
        return await super().open(spec, spawner, limits)

    def session(self, spec: SessionSpec) -> Launch:
        reported = self._reported

        class Identified(EventLineCodec):
            def receive(self, line: bytes) -> list[OutputEvent]:
                events = super().receive(line)
                self.native_id = "one"
                return [NativeSession(native_id=reported) if isinstance(event, AgentToken) else event for event in events]

        return replace(super().session(spec), codec=Identified(open_request(spec)))


def only_one(native_id: str) -> Exception | None:
    return None if native_id == "one" else ResumeFailed("it is gone")


def wrong_word(native_id: str) -> Exception | None:
    return None if native_id == "one" else AgentUnavailable("it is gone")


class TurnByTurn(TurnProcessDriver):
    """Runs this program for each turn, which gets the id of the session to resume as its argument and writes events."""

    name = "turn-by-turn"

    def __init__(self, program: str) -> None:
        self._program = program

    def info(self) -> DriverInfo:
        return replace(EchoDriver().info(), tools=(tool({"type": "object"}),), capabilities=Capabilities())

    def turn(self, spec: SessionSpec, prompt: Prompt) -> Launch:
        resumed = (spec.seed.resume,) if spec.seed.resume else ()
        return Launch(Command((*_python(self._program), *resumed), spec.cwd, spec.env, prompt.text.encode()), TurnByTurnCodec())

    async def has_session(self, spec: SessionSpec, spawner: Spawner) -> bool:
        return spec.seed.resume == "one"


class TurnByTurnCodec(TurnCodec, JsonLineCodec):
    def dispatch(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        if "session" in message:
            self.native_id = message["session"]
            return [NativeSession(native_id=message["session"])]
        self.run_result = SessionEnd(exit_code=1, stop_reason="error")
        return [Error(message=message["error"])]


REFUSES_SESSIONS = """
import json, sys
if sys.argv[1:] == ["one"] or not sys.argv[1:]:
    sys.exit(print(json.dumps({"session": "one"})))
"""
REPORTS_THE_ERROR = REFUSES_SESSIONS + 'print(json.dumps({"error": "no such session"}))'
REPORTS_THE_SESSION = (
    REFUSES_SESSIONS + 'print(json.dumps({"session": sys.argv[1]}))\nprint(json.dumps({"error": "no such session"}))'
)


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
