"""What an agent tells of its session by the Agent Client Protocol: its plan, its commands, its title; line by line."""

from __future__ import annotations

import json
from typing import Any

from drivers.acp_codec import AcpCodec
from drivers.acp_manner import Manner
from drivers.acp_opening import Wanted
from drivers.acp_permissions import Grants
from drivers.base import Prompt
from drivers.events import Commands, OutputEvent, Plan, PlanEntry, SlashCommand, Stdout, Title

HELP = {"name": "help", "description": "Helps."}
FIND = {"name": "find", "description": "Finds.", "input": {"hint": "what"}}
TOLD = Commands(commands=(SlashCommand(name="help", description="Helps."),))


class Agent:
    """An agent's side of a codec."""

    def __init__(self, manner: Manner | None = None, mode: str = "") -> None:
        self.codec = AcpCodec(Wanted("/work", mode=mode), Grants(), manner)
        self.answer(protocolVersion=1)

    def answer(self, **result: Any) -> list[OutputEvent]:
        """Answer the oldest request that is open."""
        lines = [json.loads(line) for line in bytes(self.codec.outbox).splitlines()]
        self.codec.outbox.clear()
        return self.say({"id": lines[-1]["id"], "result": result})

    def open(self) -> None:
        modes = {"availableModes": [{"id": "calm", "name": "Calm"}], "currentModeId": "calm"}
        assert self.answer(sessionId="s", modes=modes) == []

    def update(self, kind: str, session: str = "s", **fields: Any) -> list[OutputEvent]:
        params = {"sessionId": session, "update": {"sessionUpdate": kind, **fields}}
        return self.say({"method": "session/update", "params": params})

    def commands(self, *commands: dict[str, Any], session: str = "s") -> list[OutputEvent]:
        return self.update("available_commands_update", session, availableCommands=list(commands))

    def say(self, message: dict[str, Any]) -> list[OutputEvent]:
        return self.codec.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())


def running() -> Agent:
    agent = Agent()
    agent.open()
    agent.codec.prompt(Prompt("go"))
    return agent


def test_a_plan_is_the_runs() -> None:
    agent = running()
    steps = [
        {"content": "a", "priority": "high", "status": "in_progress"},
        {"content": "b", "priority": "low", "status": "pending"},
    ]
    plan = Plan(entries=(PlanEntry(content="a", priority="high", status="in_progress"), PlanEntry(content="b", priority="low")))
    assert agent.update("plan", entries=steps) == [plan]
    assert agent.update("plan", entries=[]) == [Plan(entries=())]
    # Before the session is open it is the replay of what was.
    assert Agent().update("plan", entries=steps) == []


def test_commands_are_told_whenever_they_come_and_once() -> None:
    agent = Agent(mode="calm")
    # Before `session/new` is answered, when nobody knows the session's id, and while its mode is set.
    assert agent.commands(HELP) == [TOLD]
    agent.open()
    assert agent.codec.phase == "starting"
    assert agent.commands(HELP, FIND) == [
        Commands(commands=(*TOLD.commands, SlashCommand(name="find", description="Finds.", hint="what")))
    ]
    agent.answer()
    assert agent.codec.phase == "ready"
    assert agent.commands(HELP) == [TOLD]
    agent.codec.prompt(Prompt("go"))
    assert agent.commands(HELP) == []
    assert agent.commands() == [Commands(commands=())]
    assert agent.commands(HELP, session="another") == []
    assert agent.codec.offer.commands == ()


def test_commands_are_not_told_where_a_slash_is_text() -> None:
    agent = Agent(Manner(slash_commands=False))
    agent.open()
    assert agent.commands(HELP) == []
    assert agent.codec.offer.commands == TOLD.commands


def test_a_title_comes_and_goes() -> None:
    agent = running()
    assert agent.update("session_info_update", updatedAt="2026-01-01T00:00:00Z") == []
    assert agent.update("session_info_update", title="One") == [Title(text="One")]
    assert agent.update("session_info_update", title="One") == []
    assert agent.update("session_info_update", title=None) == [Title(text=None)]


def test_what_is_not_as_it_should_be_is_shown() -> None:
    agent = running()
    for events in (agent.update("session_info_update", title=7), agent.update("plan", entries=7)):
        assert [type(event) for event in events] == [Stdout]
    assert agent.commands({"name": 7}, HELP) == [TOLD]
