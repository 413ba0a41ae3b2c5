"""Policy rules: which rule matches a call, and its verdict."""

from __future__ import annotations

import fnmatch
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from drivers.contract.driver_info import ToolGrant
from gateway.policy.paths import PathResolver
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
        ("a *b *", "a b", True),
        ("a *b *", "a", False),
        ("a*a", "a", False),
        ("a*?b", "ab", False),
        ("*a?c*", "xabxabc", True),
        ("*ab*ab", "ab", False),
        ("*ab*ba*", "aba", False),
        (" * *", "", False),
        ("a * *", "a *", True),
        ("a * *", "a", False),
    ],
)
def test_glob_patterns(pattern: str, text: str, matches: bool) -> None:
    assert glob(pattern, text) is matches


@pytest.mark.parametrize(
    ("tool", "decide", "expected"),
    [
        ("mcp__files__write", "deny", True),
        ("mcp__*", "ask", True),
        ("mc*", "deny", True),
        ("*write", "deny", True),
        ("mcp?_x", "deny", True),
        ("mcp__*", "allow", False),
        ("mcp", "deny", False),
        ("Bash", "deny", False),
    ],
)
def test_rules_that_may_match_a_tool_with_a_prefix(tool: str, decide: str, expected: bool) -> None:
    policy = Policy([rule(decide, tool)])
    assert policy.restricts_tool("mcp__*") is expected and policy.restricts_tool("*") is (decide != "allow")


@given(st.text("ab *?\n", max_size=8), st.text("ab \n", max_size=12))
def test_globs_are_as_fnmatch_has_them(pattern: str, text: str) -> None:
    expected = fnmatch.fnmatchcase(text, pattern) or (pattern.endswith(" *") and fnmatch.fnmatchcase(text, pattern[:-2]))
    assert glob(pattern, text) is expected


def test_time_of_a_glob_grows_with_the_length_of_the_text_only() -> None:
    text = "curl |" * 20_000
    before = time.thread_time()
    assert not glob("curl *|*l*|*u*|?*|*sh*", text)
    assert not glob("*curl ?*|*sh?", text)
    # A backtracking expression takes hours.
    assert time.thread_time() - before < 1


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


@pytest.mark.parametrize("path", ["//home/u/.ssh/id", "///home//u/.ssh/id", "/home/./u/.ssh/id", "/home/x/../u/.ssh/id"])
def test_path_is_denied_however_it_is_written(path: str) -> None:
    policy = Policy([rule("deny", "Read", file_path="/home/u/.ssh/*"), rule("deny", command="cat /home/u/.ssh/*")])
    assert policy.evaluate("Read", {"file_path": path}).verdict == "deny"
    assert verdict(policy, f"cat {path}") == "deny"
    assert verdict(policy, f"/bin/cat {path}") == "deny"


def test_links_and_the_working_directory_are_resolved_to_deny_and_ask(tmp_path: Path) -> None:
    secret, work = tmp_path / "secret", tmp_path / "work"
    secret.mkdir()
    work.mkdir()
    (secret / "id").touch()
    (work / "link").symlink_to(secret)
    (tmp_path / "alias").symlink_to(secret)
    resolve = PathResolver(lambda: work)

    def found(decide: str, pattern: str, path: str) -> str | None:
        return Policy([rule(decide, "Read", file_path=pattern)]).evaluate("Read", {"file_path": path}, resolve).verdict

    for decide in ("deny", "ask"):
        for path in (
            f"{work}/link/id",
            "link/id",
            "./link/id",
            "../secret/id",
            f"{secret}/id",
            f"{tmp_path}/alias/id",
            f"/{secret}//id",
        ):
            assert found(decide, f"{secret}/*", path) == decide, path
            assert found(decide, f"{tmp_path}/alias/*", path) == decide, path
            assert found(decide, f"{tmp_path}/alias/id", path) == decide, path
        assert found(decide, f"{secret}/*", "id") is None
    # To allow, the text itself must match.
    assert found("allow", f"{secret}/*", "link/id") is None
    assert found("allow", "link/*", "link/id") == "allow"


def test_relative_path_without_a_working_directory_is_compared_as_text() -> None:
    def gone() -> Path:
        raise FileNotFoundError

    policy = Policy([rule("deny", "Read", file_path="x/*")])
    assert policy.evaluate("Read", {"file_path": "x/../x/y"}, PathResolver(gone)).verdict == "deny"


def test_case_of_a_program_is_ignored_to_deny_and_ask() -> None:
    rules = [rule("deny", command="rm *"), rule("ask", command="git branch -D *"), rule("allow", command="make *")]
    policy = Policy(rules, ignore_case=False)
    assert [verdict(policy, line) for line in ("RM x", "/BIN/Rm x", "sudo Rm x", "MAKE x")] == ["deny", "deny", "deny", None]
    # Options and paths differ by case where the file system's names do.
    assert verdict(policy, "git branch -d x") is None
    assert verdict(Policy([rule("ask", command="*-D*")], ignore_case=False), "git branch -d x") is None
    ignoring = Policy(
        [rule("deny", "Read", file_path="/Users/u/.ssh/*"), rule("allow", "Read", file_path="/a/*")], ignore_case=True
    )
    assert ignoring.evaluate("Read", {"file_path": "/users/U/.SSH/id"}).verdict == "deny"
    assert ignoring.evaluate("Read", {"file_path": "/A/b"}).verdict is None


def test_calls_that_are_evaluated_outside_of_the_event_loop() -> None:
    policy = Policy([rule("deny", command="rm *"), rule("deny", "Read", file_path="/etc/*"), rule("allow", "Edit", path="a/*")])
    assert not policy.is_slow("Bash", {"command": "x" * 400})
    assert policy.is_slow("Bash", {"command": "x" * 600})
    assert policy.is_slow("Bash", {"command": ["x"] * 600})
    assert policy.is_slow("Read", {"file_path": "x"})
    assert not policy.is_slow("Edit", {"path": "x"})
    # What is evaluated in the event loop resolves no path.
    resolved = list[str]()
    assert policy.evaluate("Edit", {"path": "a/x"}, lambda path: resolved.append(path) or ()).verdict == "allow"
    assert resolved == []
    assert not policy.is_slow("Other", {"x": "x" * 9000})
