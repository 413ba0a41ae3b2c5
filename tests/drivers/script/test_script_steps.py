"""The output of the steps of a scenario, and the choice of its turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import SessionSeed
from drivers.contract.events import AgentToken
from drivers.contract.messages import AssistantMessage, ImageBlock, TextBlock, UserMessage
from tests.drivers.script.script_runs import (
    Open,
    ask,
    end,
    plain,
    text_in,
    to_end,
)


async def test_without_a_scenario_the_prompt_is_echoed(open_agent: Open) -> None:
    agent = await open_agent(options={"pace": "fast"})
    events = await ask(agent, "a prompt of mine")
    assert "a prompt of mine" in text_in(events)
    assert {"native_session", "thinking", "agent_token", "usage", "session_end"} == {event.kind for event in events}
    assert end(events) == (0, "end_turn")


async def test_text_is_streamed_in_deltas_of_the_chunk(open_agent: Open) -> None:
    events = await ask(await open_agent([{"text": {"text": "abcdefgh", "chunk": 3}}, {"thinking": "hm"}]))
    assert [event.text for event in events if isinstance(event, AgentToken)] == ["abc", "def", "gh"]
    assert text_in(events, "thinking") == "hm"


async def test_simple_steps_are_events(open_agent: Open) -> None:
    steps = [
        {"message_end": {"discarded": True}},
        {"usage": {"input_tokens": 3, "cache_read": 2}},
        {"hook": {"name": "PreCommit", "id": "h"}},
    ]
    events = plain(await ask(await open_agent(steps)))
    assert events == [
        {"kind": "message_end", "discarded": True},
        {"kind": "usage", "input_tokens": 3, "output_tokens": 0, "cache_read": 2, "cache_write": 0},
        {"kind": "hook", "id": "h", "name": "PreCommit", "status": "completed"},
        {"kind": "session_end", "exit_code": 0, "stop_reason": "end_turn"},
    ]


async def test_a_plan_commands_and_a_title(open_agent: Open) -> None:
    steps = [
        {"plan": [{"content": "Do {prompt}.", "status": "in_progress"}, {"content": "Rest.", "priority": "low"}]},
        {"commands": [{"name": "shout", "description": "Overridden.", "hint": "what"}, {"name": "hush"}]},
        {"title": "About {prompt}"},
        {"title": ""},
    ]
    scenario = {"start": [{"commands": [{"name": "hush"}]}, {"title": "New"}], "turns": [{"steps": steps}]}
    events = plain(await ask(await open_agent(scenario), "it"))
    hush = {"name": "hush", "description": ""}
    assert [event for event in events if event["kind"] != "native_session"] == [
        {"kind": "commands", "commands": [hush]},
        {"kind": "title", "text": "New"},
        {"kind": "plan", "entries": [
            {"content": "Do it.", "priority": "medium", "status": "in_progress"},
            {"content": "Rest.", "priority": "low", "status": "pending"},
        ]},
        {"kind": "commands", "commands": [{"name": "shout", "description": "Overridden.", "hint": "what"}, hush]},
        {"kind": "title", "text": "About it"},
        {"kind": "title", "text": None},
        {"kind": "session_end", "exit_code": 0, "stop_reason": "end_turn"},
    ]  # fmt: skip


async def test_placeholders_are_filled_in(open_agent: Open) -> None:
    text = '{prompt}|{turn}|{images}|{system}|{model}|{options.token}|{last_result}|{results.x}|{{prompt}}|{{|{"a": {}}'
    scenario = {"model": "paper-1", "turns": [{"steps": [{"text": text}]}]}
    agent = await open_agent(scenario, seed=SessionSeed(system="Be kind."), options={"token": "s3cret"})
    await agent.prompt(
        Prompt((TextBlock(text="hi"), ImageBlock(url="https://x/y.png"), ImageBlock(url="data:image/png;base64,AA")))
    )
    assert text_in(await to_end(agent)) == 'hi|1|2|Be kind.|paper-1|s3cret|||{prompt}|{|{"a": {}}'


async def test_the_additional_directories_are_a_placeholder(open_agent: Open, tmp_path: Path) -> None:
    more = (tmp_path / "one", tmp_path / "two")
    agent = await open_agent([{"text": "<{additional_directories}>"}], additional_directories=more)
    assert text_in(await ask(agent)) == f"<{more[0]}\n{more[1]}>"
    assert text_in(await ask(await open_agent([{"text": "<{additional_directories}>"}]))) == "<>"


async def test_the_model_is_announced(open_agent: Open) -> None:
    events = await ask(await open_agent({"model": "paper-1", "turns": [{"steps": []}]}))
    assert json.loads(events[0].encode())["model"] == "paper-1"


async def test_remember_outputs_the_history_and_the_session(open_agent: Open) -> None:
    history = (UserMessage(content="one"), AssistantMessage(content="1"), UserMessage(content=(TextBlock(text="two"),)))
    agent = await open_agent([{"remember": True}], seed=SessionSeed(history=history))
    await ask(agent, "three")
    assert json.loads(text_in(await ask(agent, "four"))) == ["one", "two", "three"]


async def test_the_environment_is_that_of_the_spec(open_agent: Open) -> None:
    steps = [{"env": "GREETING"}, {"text": "\n"}, {"env": "HOME"}, {"text": "\n"}, {"env": "*"}]
    agent = await open_agent(steps, env={"GREETING": "ahoy"})
    greeting, home, names = text_in(await ask(agent)).split("\n")
    assert (greeting, home) == ("GREETING=ahoy", "HOME is not set")
    assert {"GREETING", "PORTICO_AGENT_ID"} <= set(names.split()) <= {"GREETING", "PORTICO_AGENT_ID", "LC_CTYPE"}


@pytest.mark.parametrize(("stop", "exit_code"), [("end_turn", 0), ("max_tokens", 0), ("refusal", 0), ("error", 1)])
async def test_stop_ends_the_turn_with_its_reason(open_agent: Open, stop: str, exit_code: int) -> None:
    events = await ask(await open_agent([{"stop": stop}]))
    assert end(events) == (exit_code, stop)
    assert ("error" in {event.kind for event in events}) == (stop == "error")


async def test_an_error_has_its_message_and_the_session_continues(open_agent: Open) -> None:
    agent = await open_agent({"turns": [{"steps": [{"stop": {"reason": "error", "message": "no {prompt}"}}]}, {"steps": []}]})
    events = plain(await ask(agent, "luck"))
    assert events[0] == {"kind": "error", "message": "no luck"}
    assert end(await ask(agent)) == (0, "end_turn")


TURNS = {
    "turns": [
        {"when": "(?i)weather", "steps": [{"text": "rain"}]},
        {"steps": [{"text": "first"}]},
        {"steps": [{"text": "second"}]},
    ]
}


async def test_turns_match_or_go_in_order_and_the_last_repeats(open_agent: Open) -> None:
    agent = await open_agent(TURNS)
    prompts = ["Weather?", "a", "the weather", "b", "c"]
    assert [text_in(await ask(agent, prompt)) for prompt in prompts] == ["rain", "first", "rain", "second", "second"]


async def test_a_restart_continues_at_the_next_turn(open_agent: Open) -> None:
    history = (UserMessage(content="weather"), AssistantMessage(content="rain"), UserMessage(content="a"))
    assert text_in(await ask(await open_agent(TURNS, seed=SessionSeed(history=history)))) == "second"
    assert text_in(await ask(await open_agent(TURNS, seed=SessionSeed(history=history[:2])))) == "first"


async def test_a_prompt_without_a_turn_is_an_error(open_agent: Open) -> None:
    events = await ask(await open_agent({"turns": [{"when": "x", "steps": []}]}))
    assert end(events) == (1, "error")
