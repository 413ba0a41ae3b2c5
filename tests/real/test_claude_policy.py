"""Rules in force over the real claude: what is denied did not run although the client trusts it, what is allowed ran unasked."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.daemon import run_gateway
from tests.model_server.scenarios import ToolUse
from tests.real.tool_bench import Bench, bash, deny, grant

RULES = [
    {"tool": "Bash", "when": {"command": "touch allowed*"}, "decide": "allow"},
    {"tool": "Bash", "when": {"command": "touch denied*"}, "decide": "deny", "reason": "not in this house"},
    {"tool": "Bash", "when": {"command": "touch asked*"}, "decide": "ask"},
    {"tool": "Write", "when": {"file_path": "*.secret"}, "decide": "deny"},
]
REFUSED = "Tool call denied: not in this house"


@pytest.fixture
async def ruled(unstarted_bench: Bench) -> AsyncIterator[Bench]:
    config = unstarted_bench.config()
    config["agents"]["claude"]["policy"] = RULES
    async with run_gateway(config) as running:
        running.client.timeout = 120
        yield dataclasses.replace(unstarted_bench, client=running.client)


def made(bench: Bench) -> list[str]:
    return sorted(path.name for path in bench.work.iterdir())


@pytest.mark.parametrize("trust", [True, False])
async def test_denied_calls_do_not_run_and_allowed_ones_need_no_permission(ruled: Bench, trust: bool) -> None:
    write = ToolUse("Write", {"file_path": f"{ruled.work}/my.secret", "content": "x"})
    lines = ("touch denied", "touch allowed; touch denied2", "touch allowed1 && touch allowed2", "bash -c 'touch denied3'")
    turn = await ruled.start(ruled.model_calls(*map(bash, lines), write), own={"Bash": trust, "Write": trust})
    assert turn.stop == "end_turn"
    received_text = [turn.results[call] for call in turn.calls]
    assert (received_text[0], received_text[1], received_text[3], received_text[4]) == (
        REFUSED,
        REFUSED,
        REFUSED,
        "Tool call denied",
    )
    assert made(ruled) == ["allowed1", "allowed2"]
    reported = [block["content"] for block in ruled.results_sent().values() if block.get("is_error")]
    assert len(reported) == 4 and sum("not in this house" in str(text) for text in reported) == 3


async def test_an_ask_rule_overrides_trust(ruled: Bench) -> None:
    text = ruled.model_calls(bash("touch trusted"), bash("touch asked"), bash("touch denied"), bash("touch asked2"))
    turn = await ruled.start(text, own={"Bash": True})
    trusted, asked, denied, asked2 = turn.calls
    assert turn.results == {denied: REFUSED} and turn.stop == "tool_use"
    assert "asked" not in made(ruled)
    turn_2 = await ruled.answer(turn.session, grant(asked), deny(asked2, "no"))
    assert turn_2.results.keys() == {trusted, asked, asked2} and turn_2.results[asked2] == "Tool call denied: no"
    assert (turn_2.stop, made(ruled)) == ("end_turn", ["asked", "trusted"])
    history = await ruled.history(turn.session)
    answered = [message["toolCallId"] for message in history if message["role"] == "tool"]
    assert sorted(answered) == sorted(turn.calls)


async def test_rules_apply_to_the_calls_of_a_subagent(ruled: Bench) -> None:
    ruled.model_calls(bash("touch denied"), bash("touch allowed"), name="inner")
    task: dict[str, Any] = {"description": "sub", "prompt": "go [[inner]]", "subagent_type": "general-purpose"}
    turn = await ruled.start(ruled.model_calls(ToolUse("Agent", task)), own={"Agent": True, "Bash": True})
    assert (turn.stop, made(ruled)) == ("end_turn", ["allowed"])


async def test_a_task_is_rejected_if_the_agent_has_rules(ruled: Bench) -> None:
    assert ruled.client is not None
    answer = await ruled.client.post("/v1/execute", json={"driver": "claude", "task": ruled.model_calls(bash("touch denied"))})
    assert answer.status_code == 403 and "agents.claude.policy" in answer.json()["error"]
    assert made(ruled) == []
