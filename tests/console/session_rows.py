"""The list of sessions in the sidebar, as a test sees it."""

from __future__ import annotations

import time
from collections.abc import Callable

from playwright.sync_api import Locator, Page


def row(page: Page, session: str) -> Locator:
    """The row of a session."""
    return page.locator(f'.session-row[data-session="{session}"]')


def choose(page: Page, session: str, action: str) -> None:
    """Open the menu of a session's row, and choose an action."""
    found = row(page, session)
    found.hover()
    found.get_by_role("button", name="Actions for").click()
    page.get_by_role("menuitem", name=action).click()


def until(page: Page, done: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something is so that Playwright's assertions do not look at, such as in the daemon."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"it did not become so in {seconds} seconds"
        page.wait_for_timeout(50)
