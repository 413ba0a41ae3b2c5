"""The tools of a scenario: trusted, untrusted, application-side, in parallel, in sub-agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from drivers.contract.agent import PermissionReply, Prompt, ToolReply
from drivers.contract.agent_specs import SessionSeed
from drivers.contract.driver_info import ToolGrant
from drivers.contract.errors import AgentUnavailable
from drivers.contract.messages import ImageBlock, TextBlock, UserMessage
from tests.drivers.script.script_runs import (
    CLOCK,
    ROOT,
    WEATHER,
    Open,
    ask,
    end,
    plain,
    text_in,
    to_end,
    until,
)


async def test_a_trusted_tool_runs_inline(open_agent: Open) -> None:
    steps = [{"tool_call": {"id": "c", "name": "lookup", "input": {"query": "{prompt}"}, "result": [1, "{prompt}"]}}]
    events = plain(await ask(await open_agent(steps, tools=(ToolGrant("lookup", trust=True),))))
    assert events[:-1] == [
        {"kind": "tool_call", "id": "c", "name": "lookup", "status": "started", "input": {"query": "hello"}},
        {"kind": "tool_result", "tool_call_id": "c", "output": [1, "hello"], "is_error": False},
        {"kind": "tool_call", "id": "c", "name": "lookup", "status": "completed"},
    ]


async def test_a_tool_that_is_not_enabled_does_not_run(open_agent: Open, tmp_path: Path) -> None:
    steps = [{"tool_call": {"name": "shell", "write_file": {"path": "ran", "text": ""}}}, {"text": "{last_result}"}]
    events = await ask(await open_agent(steps, tools=(ToolGrant("lookup", trust=True),)))
    assert text_in(events) == "The tool shell is not enabled in this session."
    assert [event["status"] for event in plain(events) if event["kind"] == "tool_call"] == ["started", "failed"]
    assert not (tmp_path / "ran").exists()


async def test_a_tool_that_fails(open_agent: Open) -> None:
    events = plain(await ask(await open_agent([{"tool_call": {"id": "c", "name": "Private", "error": "disk full"}}])))
    assert events[1] == {"kind": "tool_result", "tool_call_id": "c", "output": "disk full", "is_error": True}
    assert events[2]["status"] == "failed"


@pytest.mark.parametrize(
    ("granted", "reason", "output", "status"),
    [
        (True, None, "written", "completed"),
        (False, "not today", "Tool call denied: not today", "failed"),
        (False, None, "Tool call denied", "failed"),
    ],
)
async def test_an_untrusted_tool_needs_permission(
    open_agent: Open, tmp_path: Path, granted: bool, reason: str | None, output: str, status: str
) -> None:
    call = {"id": "c", "name": "write_note", "result": "written", "write_file": {"path": "a/note", "text": "{prompt}"}}
    agent = await open_agent([{"tool_call": call}, {"text": "{last_result}"}], tools=(ToolGrant("write_note"),))
    await agent.prompt(Prompt("hello"))
    events = plain(await until(agent, "awaiting"))
    assert events[-1] == {"kind": "awaiting", "calls": [{"id": "c", "wants": "permission"}]}
    assert not (tmp_path / "a").exists()
    await agent.reply(PermissionReply("c", "allow" if granted else "deny", reason))
    rest = await to_end(agent)
    assert text_in(rest) == output
    assert [event["status"] for event in plain(rest) if event["kind"] == "tool_call"] == [status]
    assert (tmp_path / "a" / "note").exists() == granted


async def test_the_field_ask_requires_permission_for_a_trusted_tool_too(open_agent: Open) -> None:
    agent = await open_agent([{"tool_call": {"id": "c", "name": "shell", "ask": True}}], tools=(ToolGrant("shell", trust=True),))
    await agent.prompt(Prompt("hello"))
    await until(agent, "awaiting")
    await agent.reply(PermissionReply("c", "allow"))
    assert end(await to_end(agent)) == (0, "end_turn")


async def test_an_application_side_tool_waits_for_its_result(open_agent: Open) -> None:
    agent = await open_agent([{"app_tool": {"id": "c", "name": "get_weather"}}, {"text": "{results.c}"}], app_tools=(WEATHER,))
    await agent.prompt(Prompt("hello"))
    await until(agent, "awaiting")
    await agent.reply(ToolReply("c", (TextBlock(text="18°"), ImageBlock(url="https://x/y.png"))))
    events = await to_end(agent)
    assert text_in(events) == "18°"
    assert "tool_result" not in {event.kind for event in events}


async def test_an_application_side_tool_that_is_not_declared_fails(open_agent: Open) -> None:
    events = await ask(await open_agent([{"app_tool": {"name": "get_time"}}, {"text": "{last_result}"}], app_tools=(WEATHER,)))
    assert text_in(events) == "The application has no tool get_time."


@pytest.mark.parametrize("order", [("weather", "clock", "note"), ("note", "clock", "weather")])
async def test_parallel_calls_of_every_kind(open_agent: Open, tmp_path: Path, order: Sequence[str]) -> None:
    (tmp_path / "tools.json").write_bytes((ROOT / "tests/scenarios/tools.json").read_bytes())
    tools = (ToolGrant("lookup", trust=True), ToolGrant("write_note"))
    agent = await open_agent("tools.json", tools=tools, app_tools=(WEATHER, CLOCK))
    await agent.prompt(Prompt("hello"))
    events = plain(await until(agent, "awaiting"))
    kinds = [event.get("status", event["kind"]) for event in events]
    assert kinds == ["agent_token", "started", "started", "started", "started", "tool_result", "completed", "awaiting"]
    wants = [("weather", "result"), ("clock", "result"), ("note", "permission")]
    assert [(call["id"], call["wants"]) for call in events[-1]["calls"]] == wants
    for call in order:
        await agent.reply(PermissionReply(call, "allow") if call == "note" else ToolReply(call, f"<{call}>"))
    rest = await to_end(agent)
    assert text_in(rest) == 'The weather: <weather>. The time: <clock>. The note: {"written": 5}.'
    assert [e["id"] for e in plain(rest) if e["kind"] == "tool_call"] == ["weather", "clock", "note"]
    assert (tmp_path / "notes" / "tokyo.md").read_text() == "Tokyo"


async def test_ids_are_new_in_every_turn_and_after_a_restart(open_agent: Open) -> None:
    scenario = [{"parallel": [{"tool_call": {"name": "A"}}, {"tool_call": {"name": "B"}}]}]
    agent = await open_agent(scenario)
    again = await open_agent(scenario, seed=SessionSeed(history=(UserMessage(content="1"), UserMessage(content="2"))))
    runs = [await ask(agent), await ask(agent), await ask(again)]
    ids = [event["id"] for run in runs for event in plain(run) if event.get("status") == "started"]
    assert len(set(ids)) == 6


async def test_a_subagent_is_the_parent_of_its_calls(open_agent: Open) -> None:
    steps = [{"subagent": {"id": "s", "label": "reads", "steps": [{"tool_call": {"id": "c", "name": "Read"}}]}}]
    events = plain(await ask(await open_agent(steps)))
    assert [(event["kind"], event.get("status"), event.get("parent_id")) for event in events[:-1]] == [
        ("subagent", "started", None),
        ("tool_call", "started", "s"),
        ("tool_result", None, None),
        ("tool_call", "completed", "s"),
        ("subagent", "completed", None),
    ]


async def test_choices_of_a_call_are_the_agents_own_answers(open_agent: Open) -> None:
    choices = [{"id": "rule", "name": "Allow `{prompt}`", "kind": "allow_always"}]
    call = {"id": "c", "name": "Private", "choices": choices, "result": "ran"}
    agent = await open_agent([{"tool_call": call}, {"text": "{last_result} by {choices.c}"}])
    await agent.prompt(Prompt("git push"))
    events = plain(await until(agent, "awaiting"))
    own = {"id": "rule", "name": "Allow `git push`", "kind": "allow_always"}
    assert events[-1] == {"kind": "awaiting", "calls": [{"id": "c", "wants": "permission", "choices": [own]}]}
    await agent.reply(PermissionReply("c", "allow", choice="rule"))
    assert text_in(await to_end(agent)) == "ran by rule"


async def test_a_choice_without_a_kind_is_refused(open_agent: Open) -> None:
    with pytest.raises(AgentUnavailable, match=r"turns\[0\].steps\[0\].tool_call.choices\[0\]: needs kind"):
        await open_agent([{"tool_call": {"name": "Private", "choices": [{"id": "rule", "name": "Allow"}]}}])


async def test_a_question_waits_for_the_users_answer(open_agent: Open) -> None:
    questions = [{"question": "Which color?", "options": [{"label": "Red"}, {"label": "Blue"}]}]
    call = {"id": "q", "name": "AskUserQuestion", "question": True, "input": {"questions": questions}}
    agent = await open_agent([{"tool_call": call}, {"text": "{results.q}"}])
    await agent.prompt(Prompt("hello"))
    events = plain(await until(agent, "awaiting"))
    assert events[-1] == {"kind": "awaiting", "calls": [{"id": "q", "wants": "answer"}]}
    await agent.reply(ToolReply("q", "Blue"))
    assert text_in(await to_end(agent)) == "Blue"
