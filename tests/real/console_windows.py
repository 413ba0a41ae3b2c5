"""The web console in a real browser, beside the event loop that serves the models of a real CLI."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.console.checked_pages import Windows
from tests.console.conftest import FLAGS
from tests.real.browser import find_browser

WIDE = {"width": 1440, "height": 900}
ANSWER_MS = 60_000
"""Milliseconds for an answer of a CLI, its start included."""


async def use_console(url: str, steps: Callable[[Windows], None]) -> None:
    """Do what a user does in windows of the console at this address. Raises AssertionError for errors of the pages too."""
    program = find_browser()
    if program is None:
        pytest.skip("no chromium or chrome on PATH; on Debian: apt-get install chromium-headless-shell")

    def use() -> None:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
            windows = Windows(browser, url)
            try:
                steps(windows)
            finally:
                windows.close()
                browser.close()
            assert not windows.problems

    await asyncio.to_thread(use)


def begin(windows: Windows, agent: str, prompt: str, **options: str) -> Page:
    """Start a session with an agent, by its title, in a new window, and send its first prompt.

    `options` are values of the agent's options as the list displays them, by the options' titles.
    """
    page = windows.open(viewport=WIDE)
    choose(page, "Agent", agent)
    for option, value in options.items():
        choose(page, option, value)
    begin_in(page, prompt)
    return page


def begin_in(page: Page, prompt: str) -> str:
    """Send the first message of the form for a new session. Return the session's id."""
    page.get_by_label("First message").fill(prompt)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/console/sessions/"))
    return page.url.rpartition("/")[2]


def choose(page: Page, list_name: str, value: str) -> None:
    """Choose a value in a list of the form for a new session, or of a session."""
    page.get_by_role("button", name=re.compile(f"^{list_name}: ")).click()
    page.get_by_role("option", name=re.compile(f"^{re.escape(value)}")).first.click()


def send(page: Page, prompt: str) -> None:
    """Send a message in a session."""
    page.locator(".composer textarea").fill(prompt)
    page.keyboard.press("Enter")


def waiting_call(page: Page) -> Locator:
    """The card of the only call that waits for an answer, once it takes one."""
    card = page.locator(".approval[data-ready=true]")
    expect(card).to_have_count(1, timeout=ANSWER_MS)
    return card


def allow(page: Page) -> None:
    """Allow the only call that waits, once it takes an answer."""
    waiting_call(page).locator("[data-kind=allow_once]").click()


def expect_end(page: Page, text: str) -> None:
    """Wait until the run has ended with this text."""
    expect(page.get_by_role("main")).to_contain_text(text, timeout=ANSWER_MS)
    expect(page.locator(".conversation-header")).to_contain_text("Idle", timeout=ANSWER_MS)
    expect(page.locator(".approval")).to_have_count(0)


def expect_answer(page: Page, text: str) -> None:
    """Wait until an answer of the agent has this text and is the end of its run."""
    row = page.locator(".talk-row", has=page.locator(".talk-answer", has_text=text)).last
    expect(row.locator("xpath=following-sibling::*[1]").locator(".run-end")).to_be_visible(timeout=ANSWER_MS)
    expect(page.locator(".conversation-header")).to_contain_text("Idle", timeout=ANSWER_MS)
    expect(page.locator(".approval")).to_have_count(0)
