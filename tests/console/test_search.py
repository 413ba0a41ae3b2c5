"""The search over titles and messages, and the quick switcher."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.console.console_daemon import ConsoleDaemon
from tests.console.session_rows import row


@pytest.fixture(scope="module")
def found(daemon: ConsoleDaemon) -> dict[str, str]:
    """Sessions with words that only they have."""
    sessions = {
        "title": daemon.new_session([{"title": "Zeppelin maintenance"}, {"text": "ok"}]),
        "answer": daemon.new_session([{"text": "The marmalade is in the upper cupboard <b>left</b>."}]),
        "question": daemon.new_session([{"text": "I do not know."}]),
    }
    daemon.send(sessions["title"], "hello")
    daemon.send(sessions["answer"], "where is it")
    daemon.send(sessions["question"], "Who plays the xylophone here?")
    return sessions


def test_messages_and_titles_are_found(page: Page, found: dict[str, str]) -> None:
    page.locator(".sidebar").get_by_role("button", name="Search").click()
    field = page.get_by_role("combobox", name="Search sessions and messages")
    expect(field).to_be_focused()
    for words, mark in [("marmala", "marmalade"), ("xylophone", "xylophone"), ('"upper cupboard"', "upper cupboard")]:
        field.fill(words)
        expect(page.get_by_role("option")).to_have_count(1)
        expect(page.get_by_role("option").locator("mark").first).to_have_text(mark)
    field.fill("zeppelin")
    expect(page.get_by_role("option").locator(".hit-title")).to_have_text("Zeppelin maintenance")
    field.fill("marmalade")
    expect(page.get_by_role("option").first.locator(".hit-text")).to_contain_text("<b>left</b>")
    expect(page.get_by_role("option").first.locator(".hit-role")).to_have_text("Agent")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/sessions/{found['answer']}"))
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("words", ["nosuchword", '"', "a AND", "*", "x:y", "( NEAR", "'; drop table sessions", "\u202e", "%_"])
def test_any_words_may_be_entered(page: Page, found: dict[str, str], words: str) -> None:
    page.goto("/console/agents")
    page.locator(".session-list").wait_for()
    page.keyboard.press("/")
    page.keyboard.type(words)
    expect(page.locator(".palette-note")).to_contain_text(re.compile("Nothing found|result"))
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_switcher_goes_to_sessions_and_pages(page: Page, found: dict[str, str]) -> None:
    expect(row(page, found["title"])).to_be_visible()
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Go to a session or page")
    expect(field).to_be_focused()
    page.keyboard.type("zepmai")
    expect(page.get_by_role("option").first).to_contain_text("Zeppelin maintenance")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/sessions/{found['title']}$"))
    page.keyboard.press("Control+k")
    page.keyboard.type("inbox")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/console/inbox$"))


def test_the_switcher_is_open_from_a_text_field_and_searches_messages(page: Page, found: dict[str, str]) -> None:
    page.locator(".session-list").wait_for()
    page.get_by_role("textbox").last.focus()
    page.keyboard.press("Control+k")
    page.keyboard.type("xylophone")
    page.get_by_role("option", name=re.compile("Search messages")).click()
    expect(page.get_by_role("combobox", name="Search sessions and messages")).to_have_value("xylophone")
    expect(page.locator("mark")).to_have_text("xylophone")


def test_enter_opens_what_was_typed_and_not_what_was_found_before(page: Page, found: dict[str, str]) -> None:
    page.goto("/console/agents")
    page.locator(".session-list").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("marmalade")
    expect(page.locator("mark")).to_have_text("marmalade")
    page.keyboard.press("Control+a")
    page.keyboard.type("xylophone")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/sessions/{found['question']}"))


def test_a_result_opens_beside_with_ctrl(page: Page, found: dict[str, str]) -> None:
    row(page, found["title"]).get_by_role("link").click()
    page.keyboard.press("Control+k")
    page.keyboard.type("xylophone")
    expect(page.get_by_role("option").first).to_contain_text("xylophone")
    page.keyboard.press("Control+Enter")
    expect(page).to_have_url(re.compile(f"/sessions/{found['title']}\\?also={found['question']}$"))
