"""A driver whose agents are objects in the test's process. They do what the test says, and note what no agent may be asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from drivers.contract.agent import GO_ON, Agent, PermissionReply, Prompt, Reply
from drivers.contract.agent_specs import Limits, SessionSpec, TaskSpec
from drivers.contract.driver_info import Capabilities, DriverInfo, Option, PermissionMode, Permissions, ToolSpec
from drivers.contract.errors import AgentGone, AgentUnavailable, InputFull, ResumeFailed
from drivers.contract.events import (
    AwaitedCall,
    Awaiting,
    Commands,
    Error,
    OutputEvent,
    SessionEnd,
    ToolCall,
    ToolResult,
)
from drivers.contract.messages import UserMessage, text_of
from drivers.runtime.cli_driver import Driver
from drivers.runtime.clock import Clock
from drivers.runtime.process import Spawner

CANCELLED = SessionEnd(exit_code=130, stop_reason="cancelled")
TOOLS = ("look", "change", "forbidden", "ask_user")
"""The agent's own tools: `look` is trusted by the client, a rule denies `forbidden`, and `ask_user` asks the user a question."""
APP_TOOL = ToolSpec("sky", "The weather.", {"type": "object"})
"""A tool of the client."""


HISTORY_AS_TEXT = "This conversation has begun before"
"""How a prompt begins that has the history (gateway/runs/history_as_text.py), for an agent that takes it in no other way."""


def _without_history(prompt: Prompt) -> tuple[list[str], Prompt]:
    """Return the texts of the user's messages in the history before a prompt, and the prompt itself."""
    _, history, new = prompt.text.split("\n\n", 2)
    messages = [json.loads(line) for line in history.split("\n")]
    known = [message.get("text", "") for message in messages if message["role"] == "user"]
    return known, Prompt(new) if new else GO_ON


@dataclass
class Behaviour:
    """What agents do. The defaults are those of an agent that works. The first three are for the next time only."""

    start: Literal["starts", "waits", "fails"] = "starts"
    resumes: bool = True
    missed_prompts: int = 0
    """How many of the next prompts find that the process has ended."""
    obeys: bool = True
    """Whether it ends its turn when it is interrupted. If not, it is killed after its grace time."""
    ends_slowly: bool = False
    steers: Literal["takes", "refuses", "is full"] = "takes"
    sets_mode: bool = True


@dataclass
class ScriptedDriver(Driver):
    """`agents` are all that were opened, `starting` the gates of those whose start waits."""

    clock: Clock
    seeds: bool = True
    name = "scripted"
    behaviour: Behaviour = field(default_factory=Behaviour)
    agents: list[ScriptedAgent] = field(default_factory=list)
    starting: list[asyncio.Future[bool]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    missed_prompts: int = 0
    """Prompts for agents whose process had ended."""
    prompted: Callable[[ScriptedAgent, Prompt], None] = lambda agent, prompt: None
    """Called before an agent gets a prompt."""

    def info(self) -> DriverInfo:
        return DriverInfo(
            "Scripted",
            "Does what a test says.",
            tools=tuple(ToolSpec(name, name, {"type": "object"}) for name in TOOLS),
            options=(
                Option("pace", "Pace", "How fast it is.", default="slow"),
                Option("mode", "Mode", "What it asks about.", default="ask"),
            ),
            capabilities=Capabilities(app_tools=True, steers=True, seeds=self.seeds, compaction=True),
            permissions=Permissions(
                modes=(PermissionMode("auto", "Auto", "The CLI decides."),), question_tools=frozenset({"ask_user"})
            ),
        )

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> ScriptedAgent:
        behaviour = self.behaviour
        if spec.seed.resume is not None and not behaviour.resumes:
            behaviour.resumes = True
            raise ResumeFailed("the native session is gone")
        start, behaviour.start = behaviour.start, "starts"
        if start == "fails":
            raise AgentUnavailable("its program is broken")
        if start == "waits":
            gate = asyncio.get_running_loop().create_future()
            self.starting.append(gate)
            try:
                if not await gate:
                    raise AgentUnavailable("its program has ended")
            finally:
                self.starting.remove(gate)
        agent = ScriptedAgent(self, spec, limits)
        self.agents.append(agent)
        return agent

    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        raise NotImplementedError

    def alive(self, session_id: str | None = None) -> list[ScriptedAgent]:
        """The agents that live: all, or those of one session."""
        return [agent for agent in self.agents if agent.alive and session_id in (None, agent.session_id)]


class ScriptedAgent(Agent):
    """An agent as the runtime makes it of a CLI (drivers/runtime/cli_agent.py), without a process.

    `told` has the texts of the user's messages that it knows: those of its history, and those that it got. `sent` has the events
    of each of its prompts.
    """

    def __init__(self, driver: ScriptedDriver, spec: SessionSpec, limits: Limits) -> None:
        self.driver, self.spec, self.number = driver, spec, len(driver.agents) + 1
        assert spec.state is not None
        self.session_id = spec.state.name
        self.native_id = spec.seed.resume or f"native-{self.number}"
        self.phase: Literal["idle", "running", "waiting", "gone"] = "idle"
        self.interrupted = False
        self.calls: list[ToolCall] = []
        self.sent: list[list[OutputEvent]] = []
        self._clock, self._grace = driver.clock, limits.grace
        self._ready: list[OutputEvent] = []
        self._between: list[OutputEvent] = []
        self._news = asyncio.Event()
        self._awaited: dict[str, AwaitedCall] = {}
        self._replies: dict[str, Reply] = {}
        self._ending: asyncio.Task[None] | None = None
        self._commands: Callable[[Commands], None] | None = None
        self.told = [text_of(message.content) for message in spec.seed.history if isinstance(message, UserMessage)]

    # -- what the gateway asks of it --------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.phase != "gone"

    @property
    def in_turn(self) -> bool:
        return self.phase in ("running", "waiting")

    @property
    def ending(self) -> bool:
        """Whether somebody ends it, which takes its time."""
        return self._ending is not None

    async def prompt(self, prompt: Prompt) -> None:
        if self.driver.behaviour.missed_prompts:
            self.driver.behaviour.missed_prompts -= 1
            self.exit()
        if not self.alive:
            self.driver.missed_prompts += 1
            raise AgentGone("the agent's process has ended")
        if self.in_turn:
            self.driver.violations.append(f"agent {self.number} got a prompt while another one is at work")
        if prompt.text.startswith(HISTORY_AS_TEXT):
            known, prompt = _without_history(prompt)
            self.told += known
        self.sent.append([*self._between])
        self.driver.prompted(self, prompt)
        self.phase, self.interrupted = "running", False
        self._ready, self._between = [*self._between], []
        if not prompt.go_on:
            self.told.append(prompt.text)

    async def receive(self) -> Sequence[OutputEvent]:
        while not self._ready:
            if not self.alive:
                raise AgentGone("the agent's process has ended")
            self._news.clear()
            await self._news.wait()
        events, self._ready = self._ready, []
        return events

    async def reply(self, reply: Reply) -> None:
        if not self.alive:
            raise AgentGone("the agent's process has ended")
        if reply.call_id not in self._awaited or reply.call_id in self._replies:
            self.driver.violations.append(f"agent {self.number} got an answer to {reply.call_id}, which it does not wait for")
        self._replies[reply.call_id] = reply
        if self.phase == "waiting" and all(call.optional or call.id in self._replies for call in self._awaited.values()):
            self.phase = "running"
            # The answers come one after the other, without a pause.
            asyncio.get_running_loop().call_soon(self._go_on)

    async def steer(self, prompt: Prompt) -> bool:
        if self.driver.behaviour.steers == "is full":
            raise InputFull("the agent has not read earlier messages")
        if self.phase != "running" or self.interrupted or self.driver.behaviour.steers == "refuses":
            return False
        self.told.append(prompt.text)
        return True

    async def set_mode(self, mode: str) -> bool:
        return self.alive and self.driver.behaviour.sets_mode

    def watch_commands(self, reported: Callable[[Commands], None]) -> bool:
        self._commands = reported
        return True

    async def interrupt(self, grace: float | None = None) -> None:
        if self.phase == "idle":
            self.exit()
        elif self.in_turn:
            self.interrupted = True
            if self.driver.behaviour.obeys:
                self.send(CANCELLED)
            else:
                self._clock.call_later(self._grace if grace is None else grace, self._kill_turn, len(self.sent))

    async def close(self, grace: float | None = None) -> None:
        grace = self._grace if grace is None else grace
        if self.alive and self._ending is None:
            self._ending = asyncio.create_task(self._end(grace if self.driver.behaviour.ends_slowly else 0.0))
        elif self._ending is not None and not grace:
            self.exit()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end(self, grace: float) -> None:
        if grace:
            await self._clock.sleep(grace)
        self.exit()

    def _kill_turn(self, turn: int) -> None:
        if self.in_turn and turn == len(self.sent):
            self.exit()

    def _go_on(self) -> None:
        if self.phase != "running":
            return
        awaited, replies = self._awaited, self._replies
        self._awaited, self._replies = {}, {}
        for call_id, call in awaited.items():
            name, reply = next(one.name for one in self.calls if one.id == call_id), replies.get(call_id)
            granted = not isinstance(reply, PermissionReply) or reply.allowed
            if call.wants == "permission" or not granted:
                self.send(ToolResult(tool_call_id=call_id, output=f"{call_id} {granted}", is_error=not granted))
            self.send(ToolCall(id=call_id, name=name, status="completed" if granted else "failed"))

    # -- what the test lets it do -----------------------------------------------------------------------------------------

    def send(self, *events: OutputEvent) -> None:
        """Put out events: of its turn, or what belongs to none."""
        for event in events:
            if not self.in_turn:
                self._between.append(event)
                if isinstance(event, Commands) and self._commands is not None:
                    self._commands(event)
                continue
            self._ready.append(event)
            self.sent[-1].append(event)
            if isinstance(event, ToolCall) and event.status == "started":
                self.calls.append(event)
            elif isinstance(event, Awaiting):
                self.phase, self._awaited, self._replies = "waiting", {call.id: call for call in event.calls}, {}
            elif isinstance(event, SessionEnd):
                self.phase, self._awaited = "idle", {}
        self._news.set()

    def exit(self) -> None:
        """End its process, in its turn or between two turns."""
        if self.interrupted and self.in_turn:
            self.send(CANCELLED)
        elif self.in_turn:
            self.send(Error(message="the program ended in the middle of the run"), SessionEnd(exit_code=1, stop_reason="error"))
        self.phase = "gone"
        self._news.set()
