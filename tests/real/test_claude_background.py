"""Background tasks of the real claude, where the agent's `env` allows them: the CLI's own turns about them are no answers."""

from __future__ import annotations

import asyncio

from tests.real.aap_client import create_session
from tests.real.conftest import Home
from tests.real.models import Model

GRANTS = {"agent": {"tools": [{"name": "Agent", "trust": True}, {"name": "Bash", "trust": True}]}}


async def test_each_prompt_gets_its_own_answer_while_a_background_task_ends(home: Home, model: Model) -> None:
    home.env["CLAUDE_CODE_DISABLE_BACKGROUND_TASKS"] = ""
    async with home.gateway() as portico:
        aap = await create_session(portico.client, "[[plain]] hello")
        for n in range(3):
            await aap.send_turn("[[agentdefault]] go", **GRANTS)
            for m in range(4):
                assert await aap.send_turn(f"[[echo:answer {n}.{m}]]") == f"answer {n}.{m}"
                await asyncio.sleep(0.02 * m)
    reports = [text for body in model.bodies() if "task-notification" in (text := str(body["messages"][-1]))]
    assert reports, "the CLI has begun turns of its own"
