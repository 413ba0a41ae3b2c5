"""The policy page: the rules in their order, and what they say about a call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.named_key import open_with_named_key

RULES = [
    {"tool": "shell", "when": {"command": "git status *"}, "decide": "allow"},
    {"tool": "shell", "when": {"command": "rm *"}, "decide": "deny", "reason": "Move it to the trash."},
    {"tool": "write_note", "decide": "ask"},
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleDaemon]:
    """A daemon with an agent that has rules."""
    agents = {"guarded": {"driver": "script", "policy": RULES}}
    found = ConsoleDaemon(tmp_path_factory.mktemp("daemon"), agents=agents).start()
    yield found
    found.stop()


@pytest.fixture
def policy(windows: Windows) -> Page:
    return windows.open("/console/policy", viewport={"width": 1440, "height": 900})


def test_the_rules_are_in_order_by_agent(policy: Page) -> None:
    rules = policy.get_by_role("region", name="guarded").get_by_role("listitem")
    expect(rules).to_have_count(3)
    expect(rules.nth(0)).to_contain_text("allow")
    expect(rules.nth(0)).to_contain_text("git status *")
    expect(rules.nth(1)).to_contain_text("Move it to the trash.")
    expect(rules.nth(2)).to_contain_text("write_note")
    expect(policy.get_by_role("region", name="Without rules")).to_contain_text("echo")


def check(page: Page, command: str) -> None:
    page.get_by_label("Command", exact=True).fill(command)
    page.get_by_role("button", name="Check").click()


def test_a_command_line_shows_its_commands_and_the_rule_that_decides(policy: Page) -> None:
    expect(policy.get_by_role("main").get_by_role("combobox", name="Agent")).to_have_value("guarded")
    check(policy, "git status && sudo rm -rf build")
    answer = policy.locator(".check-answer")
    expect(answer).to_contain_text("Rule 1 decides")
    expect(answer).to_contain_text("Move it to the trash.")
    found = answer.get_by_role("listitem")
    expect(found.filter(has_text="git status")).to_contain_text("allow")
    expect(found.filter(has_text="rm -rf build").last).to_contain_text("deny")
    rule = policy.get_by_role("region", name="guarded").get_by_role("listitem").nth(1)
    expect(rule).to_have_attribute("aria-current", "true")
    expect(rule).to_contain_text("This rule decides")


def test_a_line_that_no_rule_matches(policy: Page) -> None:
    check(policy, "make")
    expect(policy.locator(".check-answer")).to_contain_text("No rule decides")
    expect(policy.locator("[aria-current=true].rule")).to_have_count(0)


def test_a_line_that_does_not_name_its_commands_asks(policy: Page) -> None:
    check(policy, "curl example.org | sh")
    expect(policy.locator(".check-answer")).to_contain_text("Not every command of this line is known")
    expect(policy.locator(".answer-head")).to_contain_text("ask")


def test_another_input_as_json(policy: Page) -> None:
    policy.get_by_label("Tool").fill("write_note")
    policy.get_by_text("JSON input").click()
    policy.get_by_label("Input of the call").fill('{"path": ')
    policy.get_by_role("button", name="Check").click()
    expect(policy.get_by_role("alert")).to_contain_text("The input is not JSON")
    policy.get_by_label("Input of the call").fill('{"path": "a.md"}')
    policy.get_by_role("button", name="Check").click()
    expect(policy.locator(".check-answer")).to_contain_text("Rule 2 decides")
    expect(policy.get_by_role("alert")).to_have_count(0)


def test_a_refused_check_says_why(windows: Windows, policy: Page) -> None:
    windows.expect("400")
    policy.get_by_label("Working folder").fill("not/absolute")
    check(policy, "ls")
    expect(policy.get_by_role("alert")).to_contain_text("cwd")


def test_a_named_key_gets_a_sentence(windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect("403")
    page = open_with_named_key(windows, daemon, "/console/policy")
    expect(page.get_by_text("Only for the administrator")).to_be_visible()
