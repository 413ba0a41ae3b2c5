"""The daemon is killed or stopped and started again: the page goes on by itself, without a lost or doubled line."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import SESSIONS, ConsoleDaemon
from tests.console.session_rows import row, until

INTERRUPTED = "ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|Failed to load resource|net::|was not loaded"
LINES = 400


WITHOUT_ANNOUNCEMENTS = """(pane) => {
  const copy = pane.cloneNode(true);
  copy.querySelectorAll("[role=status]").forEach((element) => element.remove());
  return copy.textContent;
}"""


def lines_of(page: Page) -> list[str]:
    return re.findall(r"line-\d+;", page.locator(".pane").evaluate(WITHOUT_ANNOUNCEMENTS))


def test_a_daemon_that_was_killed_in_mid_stream(page: Page, windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect(INTERRUPTED)
    before = [{"events": {"count": 40, "text": "line-{n}; "}}, {"wait_for_file": "never"}]
    session = daemon.new_session(before, [{"text": "I am back."}])
    row(page, session).get_by_role("link").click()
    daemon.send(session, "count", wait=False)
    expect(page.locator(".pane")).to_contain_text("line-39;")
    until(page, lambda: stored_lines(daemon, session) == 40)

    daemon.kill()
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    daemon.start()
    expect(page.get_by_text("Reconnecting")).to_have_count(0)
    expect(row(page, session).locator(".state")).to_have_text("Error")
    assert lines_of(page) == [f"line-{n};" for n in range(40)]

    daemon.send(session, "go on")
    expect(page.locator(".pane")).to_contain_text("I am back.")
    assert lines_of(page) == [f"line-{n};" for n in range(40)]
    page.reload()
    expect(page.locator(".pane")).to_contain_text("I am back.")
    assert lines_of(page) == [f"line-{n};" for n in range(40)]


def stored_lines(daemon: ConsoleDaemon, session: str) -> int:
    """How many lines the stored log has."""
    answer = daemon.api.get(f"{SESSIONS}/{session}/log", params={"limit": 1000}).json()
    return str(answer).count("line-")


def test_an_interrupted_connection_loses_and_doubles_nothing(page: Page, windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect(INTERRUPTED)
    slow = [{"text": {"text": "".join(f"line-{n}; " for n in range(LINES)), "chunk": 10, "every": 0.005}}]
    session = daemon.new_session(slow)
    row(page, session).get_by_role("link").click()
    daemon.send(session, "count", wait=False)
    expect(page.locator(".pane")).to_contain_text("line-5;")
    for _ in range(3):
        page.context.set_offline(True)
        page.wait_for_timeout(400)
        page.context.set_offline(False)
        page.wait_for_timeout(400)
    expect(page.locator(".pane")).to_contain_text(f"line-{LINES - 1};", timeout=60_000)
    assert lines_of(page) == [f"line-{n};" for n in range(LINES)]


def test_what_changed_while_it_was_down_is_shown(page: Page, windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect(INTERRUPTED)
    gone, kept = daemon.new_session([{"text": "ok"}]), daemon.new_session([{"text": "ok"}])
    expect(row(page, gone)).to_be_visible()
    expect(row(page, kept)).to_be_visible()
    page.context.set_offline(True)
    daemon.api.delete(f"{SESSIONS}/{gone}")
    made = daemon.new_session([{"text": "ok"}])
    daemon.send(kept, "renamed meanwhile")
    page.context.set_offline(False)
    expect(row(page, made)).to_be_visible(timeout=20_000)
    expect(row(page, gone)).to_have_count(0)
    expect(row(page, kept).locator(".row-text")).to_have_text("renamed meanwhile")


def test_a_page_that_is_opened_while_the_daemon_starts(page: Page, windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect(INTERRUPTED)
    session = daemon.new_session([{"text": "ok"}])
    expect(row(page, session)).to_be_visible()
    daemon.stop()
    page.get_by_role("link", name="New session", exact=True).click()
    daemon.start()
    made = daemon.new_session([{"text": "ok"}])
    expect(row(page, made)).to_be_visible(timeout=20_000)
    expect(row(page, session)).to_be_visible()
