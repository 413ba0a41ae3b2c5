"""Policy rules: which rule matches a call, and its verdict."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from drivers.contract.driver_info import ToolGrant
from gateway.policy.rules import Policy, Rule, glob


def rule(decide: str, tool: str = "Bash", **when: Any) -> Rule:
    return Rule.model_validate({"tool": tool, "when": when, "decide": decide, "reason": decide.upper()})


def verdict(policy: Policy, command: str) -> str | None:
    return policy.evaluate("Bash", {"command": command}).verdict


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("git *", "git", True),
        ("git *", "git status", True),
        ("git *", "github", False),
        ("git*", "github", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("a.c", "abc", False),
        ("[a]", "a", False),
        ("*", "", True),
        ("*b*", "a\nb\nc", True),
    ],
)
def test_glob_patterns(pattern: str, text: str, matches: bool) -> None:
    assert glob(pattern, text) is matches


def test_first_matching_rule_decides() -> None:
    policy = Policy([rule("allow", command="git status"), rule("deny", command="git *"), rule("ask", "B*")])
    assert policy.evaluate("Bash", {"command": "git status"}).rule == 0
    assert policy.evaluate("Bash", {"command": "git push"}).verdict == "deny"
    assert policy.evaluate("Bash", {"command": "ls"}).rule == 2
    assert policy.evaluate("Read", {"file_path": "x"}).verdict is None


def test_strictest_verdict_of_the_commands_of_a_line_counts() -> None:
    policy = Policy([rule("allow", command="git *"), rule("allow", command="npm test"), rule("deny", command="rm *")])
    assert verdict(policy, "git status && npm test") == "allow"
    assert verdict(policy, "git status; ls") is None
    assert verdict(policy, "git status; rm -rf /") == "deny"
    assert verdict(policy, "git status $(rm -rf /)") == "deny"
    assert verdict(policy, "git log > file") is None
    assert policy.evaluate("Bash", {"command": "git a && npm test"}).rule == 0


def test_final_deny_rule_does_not_affect_commands_that_an_earlier_rule_allows() -> None:
    policy = Policy([rule("allow", command="git *"), rule("deny")])
    assert verdict(policy, "git a && git b") == "allow"
    assert verdict(policy, "git a && make") == "deny"
    assert verdict(policy, "git a > b") == "deny"


def test_pattern_with_a_shell_operator_matches_the_whole_line() -> None:
    policy = Policy([rule("deny", command="curl *|*sh*")])
    assert verdict(policy, "curl http://x | sudo bash -x y") == "deny"
    assert verdict(policy, "curl http://x") is None
    with pytest.raises(ValidationError, match=r"when\.command: 'a \| b' has an operator of the shell"):
        rule("allow", command="a | b")


def test_nested_arguments_and_values_that_are_not_strings() -> None:
    policy = Policy([Rule.model_validate({"tool": "edit", "when": {"changes.path": "src/*", "dry": False}, "decide": "allow"})])
    changes = [{"path": "src/a"}, {"path": "src/b"}]
    assert policy.evaluate("edit", {"changes": changes, "dry": False}).verdict == "allow"
    assert policy.evaluate("edit", {"changes": changes, "dry": "x"}).verdict is None
    assert policy.evaluate("edit", {"changes": changes}).verdict is None
    assert policy.evaluate("edit", {"changes": [*changes, {"path": "etc/a"}], "dry": False}).verdict is None
    assert policy.evaluate("edit", {"changes": [*changes, {"path": "src/../etc/a"}], "dry": False}).verdict is None
    assert policy.evaluate("edit", ["no", "object"]).verdict is None
    number = Policy([Rule(tool="t", when={"n": 5, "deep.er": "{*}"}, decide="ask")])
    assert number.evaluate("t", {"n": 5, "deep": {"er": {"x": None}}}).verdict == "ask"
    assert number.evaluate("t", {"n": 5.5, "deep": {"er": {}}}).verdict is None


def test_one_matching_value_of_a_list_denies_the_call() -> None:
    policy = Policy([rule("deny", "edit", **{"changes.path": "/etc/*"})])
    assert policy.evaluate("edit", {"changes": [{"path": "a"}, {"path": "/etc/passwd"}]}).verdict == "deny"
    assert policy.evaluate("edit", {"changes": [{"path": "/home/../etc/passwd"}]}).verdict == "deny"
    assert policy.evaluate("edit", {"changes": [{"path": "a"}]}).verdict is None


def test_command_may_be_a_list_of_words() -> None:
    policy = Policy([rule("allow", command="git *"), rule("deny", command="rm *")])
    assert policy.evaluate("Bash", {"command": ["git", "a; b"]}).verdict == "allow"
    assert policy.evaluate("Bash", {"command": ["bash", "-lc", "rm x"]}).verdict == "deny"


def test_rule_without_a_command_pattern_matches_every_line() -> None:
    policy = Policy([rule("deny", command="rm *"), rule("allow", cwd="/tmp/*")])
    assert policy.evaluate("Bash", {"command": "echo > a", "cwd": "/tmp/x"}).verdict == "allow"
    assert policy.evaluate("Bash", {"command": "echo > a", "cwd": "/"}).verdict is None
    assert policy.evaluate("Bash", {"command": "echo $(rm a)", "cwd": "/tmp/x"}).verdict == "deny"


def test_effective_grants_do_not_trust_tools_with_restricting_rules() -> None:
    rules = [rule("deny", command="rm *"), rule("ask", "Web*"), rule("allow", "Read"), rule("deny", "Read")]
    policy = Policy([*rules, rule("allow", "Edit", x="y")])
    names = ("Bash", "WebFetch", "Read", "Edit", "Glob")
    given = [ToolGrant(name, trust) for name in names for trust in (True, False)]
    assert [(grant.name, grant.trust) for grant in policy.effective_grants(given) if grant.trust] == [
        ("Read", True), ("Read", True), ("Edit", True), ("Glob", True),
    ]  # fmt: skip
    assert policy.restricts and not Policy([rule("allow")]).restricts
