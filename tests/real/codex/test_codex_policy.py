"""Policy rules with the real codex: denied calls do not run even if trusted, allowed calls run without permission."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.model_server.openai import OpenAIServer
from tests.real.codex.aap_client import calls_of, create_session, grant, message_texts, results_of
from tests.real.codex.conftest import Home
from tests.support.daemon import RunningGateway

RULES = [
    {"tool": "shell", "when": {"command": "touch allowed*"}, "decide": "allow"},
    {"tool": "shell", "when": {"command": "touch denied*"}, "decide": "deny", "reason": "not permitted here"},
    {"tool": "shell", "when": {"command": "touch asked*"}, "decide": "ask"},
    {"tool": "apply_patch", "when": {"changes.path": "*secret*"}, "decide": "deny"},
]


@pytest.fixture
async def policy_gateway(home: Home) -> AsyncIterator[RunningGateway]:
    home.agent["policy"] = RULES
    async with home.gateway() as running:
        yield running


def made(home: Home) -> list[str]:
    return sorted(path.name for path in home.work.iterdir())


@pytest.mark.parametrize("trust", [True, False])
async def test_denied_calls_do_not_run(policy_gateway: RunningGateway, home: Home, model: OpenAIServer, trust: bool) -> None:
    own = {"shell": trust, "apply_patch": trust}
    aap = await create_session(policy_gateway.client, "[[run:touch allowed.txt; touch denied.txt]]", own=own)
    (output,) = results_of(aap.first["messages"]).values()
    assert "not permitted here" in output and made(home) == []
    assert any("not permitted here" in text for text in message_texts(model.bodies()[-1]))
    await aap.send_turn("[[patch:secret.txt]]")
    assert made(home) == []
    await aap.send_turn("[[run:touch allowed.txt]]")
    assert made(home) == ["allowed.txt"]


async def test_an_ask_rule_overrides_trust(policy_gateway: RunningGateway, home: Home) -> None:
    aap = await create_session(
        policy_gateway.client, "[[run:touch asked.txt]]", own={"shell": True, "apply_patch": True}, stop="tool_use"
    )
    (call,) = calls_of(aap.first["messages"])
    assert made(home) == []
    answer = await aap.send(grant(call))
    assert (answer["stopReason"], made(home)) == ("end_turn", ["asked.txt"])
    await aap.send_turn("[[run:touch trusted.txt]]")
    assert made(home) == ["asked.txt", "trusted.txt"]


async def test_a_task_is_rejected_if_the_agent_has_rules(policy_gateway: RunningGateway, home: Home) -> None:
    answer = await policy_gateway.client.post("/v1/execute", json={"driver": "codex", "task": "[[run:touch denied.txt]]"})
    assert answer.status_code == 403 and made(home) == []
