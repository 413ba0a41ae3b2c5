"""Updates of an ACP agent about its plan, its slash commands and its title, line by line."""

from __future__ import annotations

from drivers.acp.agent_profile import AgentProfile
from drivers.contract.agent import Prompt
from drivers.contract.events import Commands, ContextUse, Plan, PlanEntry, SlashCommand, Stdout, Title, Usage
from tests.drivers.acp.small_agent import Agent

HELP = {"name": "help", "description": "Helps."}
FIND = {"name": "find", "description": "Finds.", "input": {"hint": "what"}}
HELP_COMMANDS = Commands(commands=(SlashCommand(name="help", description="Helps."),))


def running() -> Agent:
    agent = Agent()
    agent.open()
    agent.codec.prompt(Prompt("go"))
    return agent


def test_a_plan_belongs_to_its_run() -> None:
    agent = running()
    steps = [
        {"content": "a", "priority": "high", "status": "in_progress"},
        {"content": "b", "priority": "low", "status": "pending"},
    ]
    plan = Plan(entries=(PlanEntry(content="a", priority="high", status="in_progress"), PlanEntry(content="b", priority="low")))
    assert agent.update("plan", entries=steps) == [plan]
    assert agent.update("plan", entries=[]) == [Plan(entries=())]
    # Before the session is open a plan is part of the replay.
    assert Agent().update("plan", entries=steps) == []


def test_commands_are_reported_at_any_time_and_once() -> None:
    agent = Agent(mode="calm")
    # Before `session/new` is answered, when the session id is not known yet, and while its mode is set.
    assert agent.commands(HELP) == [HELP_COMMANDS]
    agent.open()
    assert agent.codec.phase == "starting"
    assert agent.commands(HELP, FIND) == [
        Commands(commands=(*HELP_COMMANDS.commands, SlashCommand(name="find", description="Finds.", hint="what")))
    ]
    agent.answer()
    assert agent.codec.phase == "ready"
    assert agent.commands(HELP) == [HELP_COMMANDS]
    agent.codec.prompt(Prompt("go"))
    assert agent.commands(HELP) == []
    assert agent.commands() == [Commands(commands=())]
    assert agent.commands(HELP, session="another") == []
    assert agent.codec.session.commands == ()


def test_commands_are_not_reported_where_a_slash_is_text() -> None:
    agent = Agent(AgentProfile(slash_commands=False))
    agent.open()
    assert agent.commands(HELP) == []
    assert agent.codec.session.commands == HELP_COMMANDS.commands


def test_only_commands_that_a_prompt_may_be_are_listed() -> None:
    agent = Agent(AgentProfile(is_command=lambda name: name != "help"))
    agent.open()
    assert agent.commands(HELP) == [Commands(commands=())]
    assert agent.codec.session.commands == ()


def test_a_title_is_set_and_removed() -> None:
    agent = running()
    assert agent.update("session_info_update", updatedAt="2026-01-01T00:00:00Z") == []
    assert agent.update("session_info_update", title="One") == [Title(text="One")]
    assert agent.update("session_info_update", title="One") == []
    assert agent.update("session_info_update", title=None) == [Title(text=None)]


def test_the_use_of_the_context_is_reported_between_runs_too() -> None:
    agent = Agent()
    agent.open()
    for _ in range(2):
        assert agent.update("usage_update", used=5, size=100) == [ContextUse(used=5, size=100)]
        assert agent.update("usage_update", "another", used=5, size=100) == []
        agent.codec.prompt(Prompt("go"))
        agent.answer(stopReason="end_turn")


def test_the_cost_of_a_run_is_what_the_cost_of_the_session_has_grown_by() -> None:
    agent = running()
    usage = {"inputTokens": 3, "outputTokens": 2, "thoughtTokens": 1, "totalTokens": 5}
    for total, cost in ((0.5, 0.5), (0.75, 0.25)):
        agent.update("usage_update", used=5, size=100, cost={"amount": total, "currency": "USD"})
        [used, _] = agent.answer(stopReason="end_turn", usage=usage)
        assert used == Usage(input_tokens=3, output_tokens=2, reasoning_tokens=1, cost_usd=cost)
        agent.codec.prompt(Prompt("go"))
    agent.update("usage_update", used=5, size=100, cost={"amount": 9, "currency": "EUR"})
    assert [event.kind for event in agent.answer(stopReason="end_turn")] == ["session_end"]


def test_malformed_updates_are_reported_as_stdout() -> None:
    agent = running()
    for events in (agent.update("session_info_update", title=7), agent.update("plan", entries=7)):
        assert [type(event) for event in events] == [Stdout]
    assert agent.commands({"name": 7}, HELP) == [HELP_COMMANDS]
