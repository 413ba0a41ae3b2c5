"""Several windows of one user: in step, and over one stream of changes."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.session_rows import choose, row, until

WIDE = {"width": 1440, "height": 900}


def count_streams(page: Page) -> list[str]:
    """A list that gets the address of each stream of changes that the page opens from now on."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url) if request.url.endswith("/updates") else None)
    return found


def test_two_windows_on_one_session_are_in_step(windows: Windows, daemon: ConsoleDaemon) -> None:
    context = windows.context(viewport=WIDE)
    session = daemon.new_session([{"text": "The first"}, {"text": " answer."}], [{"text": "The second answer."}])
    left = windows.open(f"/console/sessions/{session}", context)
    right = windows.open(f"/console/sessions/{session}", context)
    for page in (left, right):
        expect(page.get_by_role("heading", level=1)).to_be_visible()

    field = left.get_by_role("textbox", name=re.compile("message", re.I)).last
    field.fill("one")
    field.press("Enter")
    for page in (left, right):
        expect(page.locator(".pane")).to_contain_text("The first answer.")
        expect(row(page, session).locator(".row-text")).to_have_text("one")
    field = right.get_by_role("textbox", name=re.compile("message", re.I)).last
    field.fill("two")
    field.press("Enter")
    for page in (left, right):
        expect(page.locator(".pane")).to_contain_text("The second answer.")
        # Not in the text for screen readers, which has the last answer once more.
        expect(page.locator(".talk-row", has_text="The first answer.")).to_have_count(1)

    choose(left, session, "Rename")
    left.get_by_role("textbox", name="Title of the session").fill("Named on the left")
    left.keyboard.press("Enter")
    expect(row(right, session).locator(".row-text")).to_have_text("Named on the left")
    choose(right, session, "Delete")
    expect(row(right, session)).to_have_count(0)
    expect(row(left, session)).to_have_count(0)


def test_windows_share_the_stream_and_the_next_one_takes_over(windows: Windows, daemon: ConsoleDaemon) -> None:
    context = windows.context(viewport=WIDE)
    first = windows.open(context=context)
    first.locator(".session-list, .empty").first.wait_for()
    second = context.new_page()
    opened = count_streams(second)
    second.goto("/console/")
    session = daemon.new_session([{"text": "ok"}])
    expect(row(second, session)).to_be_visible()
    assert not opened

    first.close()
    until(second, lambda: bool(opened))
    later = daemon.new_session([{"text": "ok"}])
    expect(row(second, later)).to_be_visible()


def test_a_window_takes_over_from_one_that_is_suspended(windows: Windows, daemon: ConsoleDaemon) -> None:
    context = windows.context(viewport=WIDE)
    first = windows.open(context=context)
    first.locator(".session-list, .empty").first.wait_for()
    second = windows.open(context=context)
    opened = count_streams(second)
    second.locator(".session-list, .empty").first.wait_for()
    # As a phone does with a window in the background: no script of it runs any more.
    debugger = context.new_cdp_session(first)
    debugger.send("Debugger.enable")
    stopped: list[object] = []
    debugger.on("Debugger.paused", lambda event: stopped.append(event))
    debugger.send("Debugger.pause")
    until(second, lambda: bool(stopped))
    try:
        session = daemon.new_session([{"text": "ok"}])
        daemon.send(session, "hi")
        until(second, lambda: bool(opened), 60)
        expect(row(second, session)).to_be_visible()
    finally:
        debugger.send("Debugger.resume")


def test_the_theme_is_that_of_all_windows(windows: Windows) -> None:
    context = windows.context(viewport=WIDE, color_scheme="light")
    first, second = windows.open(context=context), windows.open(context=context)
    second.locator(".sidebar").wait_for()
    first.get_by_role("button", name="Settings").click()
    first.get_by_role("menuitemradio", name="Dark").click()
    for page in (first, second):
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"
    second.reload()
    expect(second.locator("html")).to_have_attribute("data-theme", "dark")
