"""Policy rules in the configuration: errors and warnings at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.agents.configured_agents import Agents
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
def test_invalid_rule_is_rejected_with_its_path(rule: dict[str, Any], expected_text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(table(**rule))
    assert expected_text in str(refused.value)


def test_rule_for_an_unknown_tool_is_logged_as_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Agents(parse(table(tool="Shell", decide="deny")), {}, tmp_path)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("agents.demo.policy.1.tool: 'Shell' is no tool of the agent") and "lookup, shell, write_note" in line
