"""Rules in the configuration: what is refused at the start, and what is warned of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.agents.configured import Agents
from gateway.config import parse
from gateway.errors import ConfigError


def table(**rule: Any) -> dict[str, Any]:
    return {"agents": {"demo": {"driver": "script", "policy": [{"tool": "shell", "decide": "deny"}, rule]}}}


@pytest.mark.parametrize(
    ("rule", "expected_text"),
    [
        ({"tool": "shell", "decide": "maybe"}, "agents.demo.policy.1.decide: "),
        ({"decide": "deny"}, "agents.demo.policy.1.tool: "),
        ({"tool": "shell", "decide": "deny", "wen": {}}, "agents.demo.policy.1.wen: unknown key; did you mean 'when'?"),
        ({"tool": "shell", "decide": "deny", "when": {"a": ["b"]}}, "agents.demo.policy.1.when.a"),
        ({"tool": "shell", "decide": "deny", "when": {"a..b": "c"}}, "agents.demo.policy.1.when: "),
        ({"tool": "shell", "decide": "allow", "when": {"command": "a; b"}}, "when.command: 'a; b' has an operator of the shell"),
    ],
)
def test_a_bad_rule_is_named(rule: dict[str, Any], expected_text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(table(**rule))
    assert expected_text in str(refused.value)


def test_a_rule_about_no_tool_of_the_agent_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Agents(parse(table(tool="Shell", decide="deny")), {}, tmp_path)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("agents.demo.policy.1.tool: 'Shell' is no tool of the agent") and "lookup, shell, write_note" in line
