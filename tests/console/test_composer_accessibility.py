"""Cards, menus and dialogs of the composer and the inbox as they are used: axe-core finds nothing, in both themes."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.test_accessibility import AXE, violations
from tests.console.waiting_sessions import PHONE, call, ready, waiting

TOOL = {"name": "get_weather", "description": "The weather.", "parameters": {"type": "object"}}
QUESTION = {"question": "Which?", "header": "One", "options": [{"label": "Red", "description": "warm"}, {"label": "Blue"}]}


@pytest.fixture(params=["light", "dark", "phone"])
def page(request: pytest.FixtureRequest, windows: Windows) -> Page:
    """A window of each theme, and of a phone."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make .clis/console/.installed")
    options = PHONE if request.param == "phone" else {"color_scheme": request.param}
    return windows.open(context=windows.context(**options))


def test_cards(daemon: ConsoleDaemon, page: Page) -> None:
    calls = [
        call("Bash", {"command": "ls\u202e", "description": "Lists", "timeout": 5}),
        call("Edit", {"file_path": "a.py", "old_string": "a\n", "new_string": "b\n"}),
        {"app_tool": {"name": "get_weather", "input": {"place": "Tokyo"}}},
    ]
    session = waiting(daemon, {"parallel": calls}, tools=[TOOL])
    question = waiting(daemon, {"tool_call": {"name": "AskUserQuestion", "question": True, "input": {"questions": [QUESTION]}}})
    page.goto("/console/inbox")
    ready(page, 4)
    page.keyboard.press("n")
    page.get_by_label("Result, as text or JSON").fill("sunny")
    page.get_by_role("button", name="Send result").click()
    page.get_by_text("Full input").first.click()
    assert violations(page) == []
    page.goto(f"/console/sessions/{session}")
    ready(page, 3)
    assert violations(page) == []
    for waits in (session, question):
        daemon.api.delete(f"/aap/v3/sessions/{waits}")


def test_menus_and_dialogs(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"commands": [{"name": "review", "description": "Reviews"}]}, {"text": "ok"}])
    daemon.send(session, "go")
    page.goto(f"/console/sessions/{session}")
    box = page.get_by_role("textbox", name="Message")
    box.press_sequentially("/re")
    expect(page.get_by_role("option")).to_have_count(1)
    assert violations(page) == []
    box.fill("")
    page.get_by_role("button", name="All options and tools").click()
    for tab in ("Options", "Agent's tools", "Application's tools"):
        page.get_by_role("tab", name=tab).click()
        assert violations(page) == [], tab
    page.keyboard.press("Escape")
    page.goto("/console/")
    page.get_by_role("button", name="Agent:").click()
    expect(page.get_by_role("option").first).to_be_visible()
    assert violations(page) == []
    page.keyboard.press("Escape")
    folder = page.get_by_role("combobox", name="Working folder")
    folder.fill(str(daemon.folder) + "/")
    expect(page.get_by_role("option").first).to_be_visible()
    assert violations(page) == []
