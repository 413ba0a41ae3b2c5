"""Policy rules with the real gemini: denied calls do not run even if trusted, allowed calls run without permission."""

from __future__ import annotations

import pytest

from tests.real.gemini import SHELL, Gemini, create_session

RULES = [
    {"tool": SHELL, "when": {"command": "touch allowed*"}, "decide": "allow"},
    {"tool": SHELL, "when": {"command": "touch denied*"}, "decide": "deny", "reason": "not permitted here"},
    {"tool": SHELL, "when": {"command": "touch asked*"}, "decide": "ask"},
]


@pytest.mark.parametrize("trust", [True, False])
async def test_the_rules_decide(gemini: Gemini, trust: bool) -> None:
    gemini.agent["policy"] = RULES
    async with gemini.gateway() as running:
        aap = await create_session(running.client, "[[run:touch allowed.txt; touch denied.txt]]", tools={SHELL: trust})
        assert aap.last["stopReason"] == "end_turn"
        assert not list(gemini.work.iterdir())
        await aap.send_turn("[[run:touch allowed.txt]]")
        await aap.send_turn("[[run:touch asked.txt]]", stop="tool_use")
        assert [path.name for path in gemini.work.iterdir()] == ["allowed.txt"]
        await aap.permit(True)
    assert sorted(path.name for path in gemini.work.iterdir()) == ["allowed.txt", "asked.txt"]
