"""Sessions of a test as conversations in a window of the console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect

from tests.console.checked_pages import Windows

WIDE = {"width": 1440, "height": 900}
MODULE = "/console/assets/js/conversation/"


def open_conversation(windows: Windows, session: str, **options: Any) -> Page:
    """Open a session in a window, and wait until its log is there."""
    page = windows.open(f"/console/sessions/{session}", **{"viewport": WIDE, **options})
    expect(page.locator(".conversation .talk-list")).to_be_visible()
    return page


@contextmanager
def module_page(browser: Browser, url: str) -> Iterator[Page]:
    """A page of the daemon without the console in it, which imports its modules. It has the console's policy."""
    windows = Windows(browser, url)
    yield windows.open(f"{MODULE}timeline.js")
    windows.close()
    assert not windows.problems


def rows(page: Page) -> Locator:
    """The rows that are in the page."""
    return page.locator(".talk-row")


def at_the_end(page: Page) -> bool:
    """Whether the list is scrolled to its end."""
    return bool(
        page.evaluate(
            "() => { const e = document.querySelector('.talk-list'); return e.scrollHeight - e.clientHeight - e.scrollTop < 4; }"
        )
    )
