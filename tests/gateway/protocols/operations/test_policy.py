"""`/v1/policy`: the rules in force, and what they say about a call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import RunningGateway, gateway_config, http_client, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import expect_error

RULES = [
    {"tool": "shell", "when": {"command": "git status *"}, "decide": "allow"},
    {"tool": "shell", "when": {"command": "rm *"}, "decide": "deny", "reason": "never"},
    {"tool": "write_note", "when": {"path": "/etc/*"}, "decide": "deny"},
    {"tool": "lookup", "decide": "ask"},
]


@pytest.fixture
async def ruled(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway whose script agent has rules."""
    agent = {"driver": "script", "cwd": str(tmp_path), "policy": RULES}
    async with run_gateway(gateway_config(tmp_path, agents={"script": agent})) as running:
        yield running


async def check(running: RunningGateway, tool: str, given: Any, **more: Any) -> dict[str, Any]:
    answer = await running.client.post("/v1/policy/check", json={"agent": "script", "tool": tool, "input": given, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_rules_of_all_agents_in_order(ruled: RunningGateway) -> None:
    agents = {one["agent"]: one["rules"] for one in (await ruled.client.get("/v1/policy")).json()["agents"]}
    assert agents["echo"] == []
    expected = [{"index": n, "when": {}, "reason": None, **rule} for n, rule in enumerate(RULES)]
    assert agents["script"] == expected
    assert (await ruled.client.get("/v1/policy?agent=script")).json() == {"agents": [{"agent": "script", "rules": expected}]}
    assert "no agent 'x'" in await expect_error(ruled.client.get("/v1/policy?agent=x"), 400)
    # Invalid check is refused.
    for body in (
        {"tool": "x"},
        {"agent": "nobody", "tool": "x"},
        {"agent": "script", "tool": ""},
        {"agent": "script", "tool": "x", "cwd": "relative"},
        {"agent": "script", "tool": "x", "cwd": "/a\0b"},
        {"agent": "script", "tool": "x", "inputs": {}},
    ):
        await expect_error(ruled.client.post("/v1/policy/check", json=body), 400)


async def test_calls_are_explained_as_a_session_decides_them(ruled: RunningGateway, tmp_path: Path) -> None:
    # Command line is explained command by command.
    for line, decision, rule, commands in (
        ("git status", "allow", 0, [("git status", "allow", 0)]),
        ("git status; rm -r x", "deny", 1, [("git status", "allow", 0), ("rm -r x", "deny", 1)]),
        ("git status && make", "none", None, [("git status", "allow", 0), ("make", "none", None)]),
        ("$X", "ask", 1, [("$X", "none", None)]),
    ):
        answer = await check(ruled, "shell", {"command": line})
        assert answer["decision"] == decision, (line, decision)
        assert (answer["rule"] or {}).get("index") == rule, (line, decision)
        assert [(one["text"], one["decision"], one["rule"]) for one in answer["commands"]] == commands, (line, decision)
        (read,) = answer["lines"]
        assert (read["argument"], read["text"], read["known"]) == ("command", line, line != "$X"), (line, decision)
        assert (answer["reason"] == "never") == (decision == "deny"), (line, decision)
    # Nested and listed command lines are found.
    given = {"steps": [{"cmd": ["bash", "-c", "rm x"]}, {"cmd": "ls"}]}
    answer = await check(ruled, "other", given)
    assert (answer["decision"], answer["rule"]) == ("none", None)
    assert [line["argument"] for line in answer["lines"]] == ["steps.cmd", "steps.cmd"]
    assert {"rm x", "ls"} <= {command["text"] for command in answer["commands"]}
    # Paths are resolved in the given folder.
    (tmp_path / "link").symlink_to("/etc")
    assert (await check(ruled, "write_note", {"path": "link/passwd"}))["decision"] == "deny"
    assert (await check(ruled, "write_note", {"path": "link/passwd"}, cwd="/usr"))["decision"] == "none"
    assert (await check(ruled, "write_note", {"path": "passwd"}, cwd="/etc"))["decision"] == "deny"
    # Check is what a session does.
    agent = ruled.gateway.agents.get("script")
    for tool, given in (("lookup", {}), ("lookup", None), ("shell", {"command": "rm x"}), ("shell", []), ("nothing", 5)):
        evaluation = agent.policy.evaluate(tool, given)
        answer = await check(ruled, tool, given)
        assert answer["decision"] == (evaluation.verdict or "none")
        assert (answer["rule"] or {}).get("index") == evaluation.rule


async def test_named_keys_do_not_see_rules(ruled: RunningGateway) -> None:
    async with http_client(ruled.url) as phone:
        phone.headers["authorization"] = f"Bearer {await add_key(ruled.gateway, 'phone')}"
        await expect_error(phone.get("/v1/policy"), 403)
        await expect_error(phone.post("/v1/policy/check", json={"agent": "script", "tool": "x"}), 403)
