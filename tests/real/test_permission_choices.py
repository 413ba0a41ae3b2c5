"""A permission of the real claude, answered over AAP by one of the CLI's own choices, which the CLI applies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.real.tool_bench import Bench, bash


async def choices(bench: Bench, session: str) -> dict[str, dict[str, str]]:
    """The choices about the only pending call, by their ids."""
    assert bench.client is not None
    answer = await bench.client.get(f"/aap/v3/sessions/{session}")
    (call,) = answer.json()["x-portico"]["pendingCalls"]
    assert (call["name"], call["wants"]) == ("Bash", "permission")
    return {choice["id"]: choice for choice in call["choices"]}


def choose(call: str, choice: str, granted: bool = True) -> dict[str, Any]:
    return {"role": "tool_permission", "toolCallId": call, "granted": granted, "x-portico": {"choice": choice}}


async def test_rule_of_the_cli_is_chosen_over_aap(bench: Bench) -> None:
    # The CLI keeps the rules of a project in its repository.
    git = await asyncio.create_subprocess_exec("git", "init", "-q", str(bench.work))
    assert await git.wait() == 0
    turn = await bench.start(bench.model_calls(bash("git push a")), own={"Bash": False}, options={"mode": "default"})
    assert turn.stop == "tool_use"
    found = await choices(bench, turn.session)
    assert list(found) == ["allow_once", "rule:0", "allow_always", "reject_once", "reject_always"]
    assert found["rule:0"]["kind"] == "allow_always" and "git push" in found["rule:0"]["name"]
    refused = await bench.answer(turn.session, choose(turn.calls[0], "rule:0", granted=False))
    assert refused.status == 400 and "grants the call" in refused.error
    answered = await bench.answer(turn.session, choose(turn.calls[0], "rule:0"))
    assert answered.stop == "end_turn" and list(answered.results) == turn.calls
    rules = json.loads((bench.work / ".claude" / "settings.local.json").read_text())
    assert rules["permissions"]["allow"] == ["Bash(git push *)"]
    # The rule holds: such a command is not asked about, another one is.
    assert (await bench.send_turn(turn.session, bench.model_calls(bash("git push b")))).stop == "end_turn"
    other = await bench.send_turn(turn.session, bench.model_calls(bash("git pull")))
    assert other.stop == "tool_use"
    rejected = await bench.answer(turn.session, choose(other.calls[0], "reject_always", granted=False))
    assert rejected.stop == "end_turn"
    # Disabled in this session.
    assert (await bench.get(turn.session))["agent"]["tools"] == []
