"""Policy rules with the real claude: denied calls do not run even if trusted, allowed calls run without permission."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.model_server.scenarios import ToolUse
from tests.real.tool_bench import Bench, bash, deny, grant
from tests.support.daemon import run_gateway

RULES = [
    {"tool": "Bash", "when": {"command": "touch allowed*"}, "decide": "allow"},
    {"tool": "Bash", "when": {"command": "touch denied*"}, "decide": "deny", "reason": "not permitted here"},
    {"tool": "Bash", "when": {"command": "touch asked*"}, "decide": "ask"},
    {"tool": "Write", "when": {"file_path": "*.secret"}, "decide": "deny"},
]
DENIED = "Tool call denied: not permitted here"


@pytest.fixture
async def policy_bench(unstarted_bench: Bench) -> AsyncIterator[Bench]:
    config = unstarted_bench.config()
    config["agents"]["claude"]["policy"] = RULES
    async with run_gateway(config) as running:
        running.client.timeout = 120
        yield dataclasses.replace(unstarted_bench, client=running.client)


def made(bench: Bench) -> list[str]:
    return sorted(path.name for path in bench.work.iterdir())


@pytest.mark.parametrize("trust", [True, False])
async def test_denied_calls_do_not_run_and_allowed_ones_need_no_permission(policy_bench: Bench, trust: bool) -> None:
    write = ToolUse("Write", {"file_path": f"{policy_bench.work}/my.secret", "content": "x"})
    lines = ("touch denied", "touch allowed; touch denied2", "touch allowed1 && touch allowed2", "bash -c 'touch denied3'")
    turn = await policy_bench.start(policy_bench.model_calls(*map(bash, lines), write), own={"Bash": trust, "Write": trust})
    assert turn.stop == "end_turn"
    results = [turn.results[call] for call in turn.calls]
    assert (results[0], results[1], results[3], results[4]) == (
        DENIED,
        DENIED,
        DENIED,
        "Tool call denied",
    )
    assert made(policy_bench) == ["allowed1", "allowed2"]
    reported = [block["content"] for block in policy_bench.results_sent().values() if block.get("is_error")]
    assert len(reported) == 4 and sum("not permitted here" in str(text) for text in reported) == 3


async def test_an_ask_rule_overrides_trust(policy_bench: Bench) -> None:
    text = policy_bench.model_calls(bash("touch trusted"), bash("touch asked"), bash("touch denied"), bash("touch asked2"))
    turn = await policy_bench.start(text, own={"Bash": True})
    trusted, asked, denied, asked2 = turn.calls
    assert turn.results == {denied: DENIED} and turn.stop == "tool_use"
    assert "asked" not in made(policy_bench)
    turn_2 = await policy_bench.answer(turn.session, grant(asked), deny(asked2, "no"))
    assert turn_2.results.keys() == {trusted, asked, asked2} and turn_2.results[asked2] == "Tool call denied: no"
    assert (turn_2.stop, made(policy_bench)) == ("end_turn", ["asked", "trusted"])
    history = await policy_bench.history(turn.session)
    answered = [message["toolCallId"] for message in history if message["role"] == "tool"]
    assert sorted(answered) == sorted(turn.calls)


async def test_rules_apply_to_the_calls_of_a_subagent(policy_bench: Bench) -> None:
    policy_bench.model_calls(bash("touch denied"), bash("touch allowed"), name="inner")
    task: dict[str, Any] = {"description": "sub", "prompt": "go [[inner]]", "subagent_type": "general-purpose"}
    turn = await policy_bench.start(policy_bench.model_calls(ToolUse("Agent", task)), own={"Agent": True, "Bash": True})
    assert (turn.stop, made(policy_bench)) == ("end_turn", ["allowed"])


async def test_a_task_is_rejected_if_the_agent_has_rules(policy_bench: Bench) -> None:
    assert policy_bench.client is not None
    answer = await policy_bench.client.post(
        "/v1/execute", json={"driver": "claude", "task": policy_bench.model_calls(bash("touch denied"))}
    )
    assert answer.status_code == 403 and "agents.claude.policy" in answer.json()["error"]
    assert made(policy_bench) == []
