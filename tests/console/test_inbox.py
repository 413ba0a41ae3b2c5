"""The inbox over all sessions, the count in the title, notifications, and approvals on a phone."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.waiting_sessions import PHONE, call, expect_result, messages, ready, reject, until, waiting

NOTIFICATIONS = """
window.notified = []
window.Notification = class {
  static permission = "default"
  static async requestPermission() {
    window.asked = (window.asked ?? 0) + 1
    return Notification.permission = "granted"
  }
  constructor(title, options) {
    this.title = title
    this.body = options.body
    window.notified.push(this)
  }
  close() { this.closed = true }
}
"""


def of_session(page: Page, session: str) -> Locator:
    return page.locator(f".inbox-session:has(a[href$='{session}'])")


def test_the_inbox_has_what_waits_in_all_sessions(windows: Windows, daemon: ConsoleDaemon) -> None:
    page = windows.open("/console/inbox")
    expect(page.get_by_text("Nothing waits for you")).to_be_visible()
    expect(page).to_have_title(re.compile("^Portico|^[^(].*Portico$"))
    one = waiting(daemon, call("Bash", {"command": "first"}, result="ran"), prompt="Run the first")
    expect(of_session(page, one)).to_contain_text("first")
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    other = waiting(daemon, call("Bash", {"command": "second"}), prompt="Run the second")
    expect(page).to_have_title(re.compile(r"^\(2\) "))
    # The longest waiting first.
    expect(page.locator(".inbox-session h2")).to_have_text(["Run the first", "Run the second"])
    ready(page, 2)
    page.keyboard.press("y")
    expect(of_session(page, one)).to_have_count(0)
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    reject(of_session(page, other))
    expect(page.get_by_text("Nothing waits for you")).to_be_visible()
    expect(page).not_to_have_title(re.compile(r"^\("))
    expect_result(daemon, page, one, "Result: ran")
    expect_result(daemon, page, other, "Result: Tool call denied")


def test_arrow_keys_go_from_card_to_card(windows: Windows, daemon: ConsoleDaemon) -> None:
    one = waiting(daemon, call("Bash", {"command": "first"}, id="first"))
    other = waiting(daemon, call("Bash", {"command": "second"}, id="second", result="ran"))
    page = windows.open("/console/inbox")
    ready(page, 2)
    of_session(page, one).locator(".approval").focus()
    page.keyboard.press("ArrowDown")
    expect(of_session(page, other).locator(".approval")).to_be_focused()
    page.keyboard.press("y")
    expect(of_session(page, other)).to_have_count(0)
    assert daemon.session(one)["x-portico"]["state"] == "waiting"
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    expect(of_session(page, one)).to_have_count(0)


def test_notifications_are_opt_in(windows: Windows, daemon: ConsoleDaemon) -> None:
    context = windows.context()
    context.add_init_script(NOTIFICATIONS)
    page = windows.open("/console/inbox", context)
    one = waiting(daemon, call("Bash", {"command": "first"}))
    ready(page)
    assert page.evaluate("[window.notified.length, window.asked]") == [0, None]
    page.get_by_role("switch", name="Notify me").click()
    expect(page.get_by_role("switch", name="Notify me")).to_be_checked()
    assert page.evaluate("window.asked") == 1
    # What waits already is not news; what comes is, unless the user looks at it.
    page.goto("/console/")
    page.evaluate("Notification.permission = 'granted'")
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    other = waiting(daemon, call("Bash", {"command": "second"}), prompt="Run the second")
    until(page, "() => window.notified.length === 1")
    assert page.evaluate("[window.notified[0].title, window.notified[0].body]") == [
        "Run the second: asks for permission",
        "Bash second",
    ]
    page.evaluate("window.notified[0].onclick()")
    expect(page).to_have_url(re.compile(other))
    page.goto("/console/inbox")
    page.get_by_role("switch", name="Notify me").click()
    page.goto("/console/")
    expect(page).to_have_title(re.compile(r"^\(2\) "))
    third = waiting(daemon, call("Bash", {"command": "third"}))
    expect(page).to_have_title(re.compile(r"^\(3\) "))
    assert page.evaluate("window.notified.length") == 0
    for session in (one, other, third):
        daemon.api.delete(f"/aap/v3/sessions/{session}")


def test_an_approval_on_a_phone(windows: Windows, daemon: ConsoleDaemon) -> None:
    lines = "\n".join(f"echo line {n}" for n in range(200))
    long = waiting(daemon, call("Bash", {"command": lines}, result="ran"))
    page = windows.open(f"/console/sessions/{long}", windows.context(**PHONE))
    card = ready(page)
    for button in card.get_by_role("button").all():
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 40, button.inner_text()
        # Nothing is cut off at the side.
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    expect(card.locator("[data-kind=allow_once]")).to_be_in_viewport()
    daemon.api.delete(f"/aap/v3/sessions/{long}")


def test_a_rejection_with_a_reason_on_a_phone(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = waiting(daemon, call("Bash", {"command": "ls"}))
    page = windows.open("/console/inbox", windows.context(**PHONE))
    card = ready(page)
    card.get_by_role("button", name="Reject").tap()
    page.get_by_label("Reason, which the agent reads").fill("not from my phone")
    card.get_by_role("button", name="Reject", exact=True).last.tap()
    expect_result(daemon, page, session, "Result: Tool call denied: not from my phone")
    assert messages(daemon, session)[-1]["role"] == "assistant"
