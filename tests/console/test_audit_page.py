"""The audit page: decisions about tool calls, with a search, filters and pages."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.named_key import open_with_named_key

TOOLS = [{"name": "lookup", "trust": True}, {"name": "shell", "trust": True}]


@pytest.fixture(scope="module")
def sessions(daemon: ConsoleDaemon) -> list[str]:
    """Two sessions: one with 70 decisions, then one with 3."""
    calls = [{"tool_call": {"name": "lookup", "input": {"query": f"number {n}"}}} for n in range(70)]
    first = daemon.new_session(calls, agent_fields={"tools": TOOLS})
    daemon.send(first, "begin")
    commands = [{"tool_call": {"name": "shell", "input": {"command": command}}} for command in ("make", "ls 'a b' <b>", "pwd")]
    second = daemon.new_session(commands, agent_fields={"tools": TOOLS})
    daemon.send(second, "begin")
    return [first, second]


@pytest.fixture
def audit(windows: Windows, sessions: list[str]) -> Page:
    context = windows.context(viewport={"width": 1440, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    return windows.open("/console/audit", context)


def test_newest_first_in_pages(audit: Page) -> None:
    lines = audit.locator(".audit-entry")
    expect(lines).to_have_count(50)
    expect(lines.first).to_contain_text("pwd")
    audit.get_by_role("button", name="Show older decisions").click()
    expect(lines).to_have_count(73)
    expect(lines.last).to_contain_text("number 0")
    expect(audit.get_by_role("button", name="Show older decisions")).to_have_count(0)


def test_search_and_filters(audit: Page, sessions: list[str]) -> None:
    lines = audit.locator(".audit-entry")
    audit.get_by_label("Search").fill("number 42")
    expect(lines).to_have_count(1)
    expect(audit).to_have_url(re.compile("q=number"))
    audit.get_by_label("Search").fill("")
    audit.get_by_label("Tool").fill("shell")
    expect(lines).to_have_count(3)
    audit.get_by_label("Outcome").select_option("denied")
    expect(audit.get_by_text("No decision matches these filters")).to_be_visible()
    audit.get_by_role("button", name="Clear").click()
    expect(lines).to_have_count(50)
    audit.get_by_role("textbox", name="Session").fill(sessions[1])
    expect(lines).to_have_count(3)
    audit.reload()
    expect(lines).to_have_count(3)


def test_a_decision_has_details_and_links(audit: Page, sessions: list[str]) -> None:
    line = audit.locator(".audit-entry", has_text="ls 'a b' <b>")
    line.get_by_role("button").first.click()
    expect(line).to_contain_text("trust")
    line.get_by_role("button", name="Copy as JSON").click()
    expect(line.get_by_role("button", name="Copy as JSON")).to_contain_text("Copied")
    copied = json.loads(audit.evaluate("navigator.clipboard.readText()"))
    assert (copied["tool"], copied["outcome"], copied["sessionId"]) == ("shell", "trusted", sessions[1])
    line.get_by_role("button", name="only this session").click()
    expect(audit.locator(".audit-entry")).to_have_count(3)
    line.get_by_role("link").click()
    expect(audit).to_have_url(re.compile(f"/console/sessions/{sessions[1]}$"))


def test_a_named_key_sees_its_own_decisions(windows: Windows, daemon: ConsoleDaemon, sessions: list[str]) -> None:
    page = open_with_named_key(windows, daemon, "/console/audit")
    expect(page.get_by_text("No tool call has been decided about yet")).to_be_visible()
