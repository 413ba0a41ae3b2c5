"""Rules in force over the real codex: what is denied did not run although the client trusts it, what is allowed ran unasked."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.daemon import Running
from tests.model_server.openai import OpenAIServer
from tests.real.codex.conftest import Home
from tests.real.codex.talk import begin, calls_of, grant, received_text, results_of

RULES = [
    {"tool": "shell", "when": {"command": "touch allowed*"}, "decide": "allow"},
    {"tool": "shell", "when": {"command": "touch denied*"}, "decide": "deny", "reason": "not in this house"},
    {"tool": "shell", "when": {"command": "touch asked*"}, "decide": "ask"},
    {"tool": "apply_patch", "when": {"changes.path": "*secret*"}, "decide": "deny"},
]


@pytest.fixture
async def ruled(home: Home) -> AsyncIterator[Running]:
    home.agent["policy"] = RULES
    async with home.gateway() as running:
        yield running


def made(home: Home) -> list[str]:
    return sorted(path.name for path in home.work.iterdir())


@pytest.mark.parametrize("trust", [True, False])
async def test_what_is_denied_does_not_run(ruled: Running, home: Home, model: OpenAIServer, trust: bool) -> None:
    own = {"shell": trust, "apply_patch": trust}
    talk = await begin(ruled.client, "[[run:touch allowed.txt; touch denied.txt]]", own=own)
    (output,) = results_of(talk.first["messages"]).values()
    assert "not in this house" in output and made(home) == []
    assert any("not in this house" in text for text in received_text(model.bodies()[-1]))
    await talk.send_turn("[[patch:secret.txt]]")
    assert made(home) == []
    await talk.send_turn("[[run:touch allowed.txt]]")
    assert made(home) == ["allowed.txt"]


async def test_a_rule_asks_whatever_is_trusted(ruled: Running, home: Home) -> None:
    talk = await begin(ruled.client, "[[run:touch asked.txt]]", own={"shell": True, "apply_patch": True}, stop="tool_use")
    (call,) = calls_of(talk.first["messages"])
    assert made(home) == []
    answer = await talk.send(grant(call))
    assert (answer["stopReason"], made(home)) == ("end_turn", ["asked.txt"])
    await talk.send_turn("[[run:touch trusted.txt]]")
    assert made(home) == ["asked.txt", "trusted.txt"]


async def test_no_task_runs_without_its_rules(ruled: Running, home: Home) -> None:
    answer = await ruled.client.post("/v1/execute", json={"driver": "codex", "task": "[[run:touch denied.txt]]"})
    assert answer.status_code == 403 and made(home) == []
