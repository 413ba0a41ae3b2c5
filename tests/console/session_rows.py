"""The list of sessions in the sidebar, as a test sees it."""

from __future__ import annotations

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


def until(page: Page, done: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something is so outside of the page, such as in the daemon."""
    for _ in range(int(seconds * 20)):
        if done():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not become so")
