"""Application-side tools: their editor, the results that the user gives, and mocked answers."""

from __future__ import annotations

import json

from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.waiting_sessions import cards, expect_result, open_session, ready, reject, until, waiting

WEATHER = {"name": "get_weather", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}
CALL = {"app_tool": {"name": "get_weather", "input": {"place": "Tokyo"}}}


def edit_tools(page: Page, text: str) -> None:
    """Write the tools in the dialog and use them."""
    page.get_by_role("button", name="All options and tools").click()
    page.get_by_role("tab", name="Application's tools").click()
    page.get_by_label("Tools as JSON").fill(text)
    page.get_by_role("button", name="Use these tools").click()


def test_the_user_gives_the_result(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, CALL, tools=[WEATHER])
    open_session(page, session)
    card = ready(page)
    expect(card).to_contain_text("Tokyo")
    card.get_by_label("Result, as text or JSON").fill("21 °C")
    card.get_by_role("button", name="Send result").click()
    expect_result(daemon, page, session, "Result: 21 °C")


def test_a_call_is_refused(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, CALL, tools=[WEATHER])
    open_session(page, session)
    reject(ready(page))
    expect_result(daemon, page, session, "Result: Tool call denied")


def test_tools_of_the_editor_with_a_mocked_answer_that_is_offered(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([CALL, {"text": "{last_result}"}])
    open_session(page, session)
    edit_tools(page, json.dumps([{**WEATHER, "answer": {"celsius": 21}}]))
    expect(page.get_by_text("Used from the next message on")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("textbox", name="Message").fill("How is the weather?")
    page.keyboard.press("Enter")
    card = ready(page)
    assert daemon.session(session)["tools"] == [WEATHER]
    expect(card.get_by_label("Result, as text or JSON")).to_have_value('{"celsius":21}')
    card.get_by_role("button", name="Send result").click()
    expect_result(daemon, page, session, '{"celsius":21}')


def test_a_mocked_answer_is_sent_by_itself_once_by_two_windows(daemon: ConsoleDaemon, windows: Windows) -> None:
    turn = [CALL, {"text": "{last_result}"}]
    session = daemon.new_session(turn, turn)
    context = windows.context()
    page = windows.open(f"/console/sessions/{session}", context)
    other = windows.open("/console/inbox", context)
    expect(other.get_by_role("heading", name="Inbox")).to_be_visible()
    edit_tools(page, json.dumps([{**WEATHER, "answer": "sunny", "automatic": True}]))
    page.keyboard.press("Escape")
    page.get_by_role("textbox", name="Message").fill("weather?")
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_contain_text("sunny")
    expect_result(daemon, page, session, "sunny")
    # Of another client's message too.
    daemon.send(session, "again", wait=False)
    until(page, "() => document.querySelector('main').innerText.split('sunny').length > 2")
    expect_result(daemon, page, session, "sunny")
    for window in (page, other):
        expect(window.locator("[role=alert]")).to_have_count(0)


def test_a_given_result_is_kept_for_later_calls(daemon: ConsoleDaemon, page: Page) -> None:
    turn = [CALL, {"text": "{last_result}"}]
    session = daemon.new_session(turn, turn, tools=[WEATHER])
    daemon.send(session, "weather?")
    open_session(page, session)
    card = ready(page)
    card.get_by_label("Result, as text or JSON").fill("rain")
    card.get_by_label("Answer later calls of this tool in this session with it").check()
    card.get_by_role("button", name="Send result").click()
    expect_result(daemon, page, session, "rain")
    daemon.send(session, "again", wait=False)
    until(page, "() => document.querySelector('main').innerText.split('rain').length > 2")
    expect(cards(page)).to_have_count(0)


def test_what_is_wrong_in_the_editor_is_said_in_words(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"text": "ok"}])
    open_session(page, session)
    edit_tools(page, '[\n  {"name": "a",}\n]')
    problem = page.locator(".tools-editor [role=alert]")
    expect(problem).to_contain_text("This is not JSON (line 2)")
    for text, words in (
        ('{"name": "a"}', "must be a list of tools"),
        ('[{"description": "x"}]', "Tool 1 needs a name"),
        ('[{"name": "a"}]', "The tool a needs a description"),
        ('[{"name": "a", "description": ""}, {"name": "a", "description": ""}]', "The name a is used twice"),
    ):
        page.get_by_label("Tools as JSON").fill(text)
        page.get_by_role("button", name="Use these tools").click()
        expect(problem).to_contain_text(words)
    page.get_by_label("Tools as JSON").fill("")
    page.get_by_role("button", name="Insert an example").click()
    page.get_by_role("button", name="Use these tools").click()
    expect(page.get_by_text("Used from the next message on")).to_be_visible()
