"""Sessions that wait for the user, and what the tests of approvals look for in a page."""

from __future__ import annotations

import time
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.console.console_daemon import ConsoleDaemon

SECONDS = 30
"""What is waited for at most."""
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 1}


def call(name: str, given: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A step that asks for permission."""
    return {"tool_call": {"name": name, "ask": True, "input": given, **fields}}


def waiting(daemon: ConsoleDaemon, *steps: Any, prompt: str = "Go on", **fields: Any) -> str:
    """A session whose first turn waits at the last of these steps, and then says the last result."""
    session = daemon.new_session([*steps, {"text": "Result: {last_result}"}], **fields)
    daemon.send(session, prompt)
    assert daemon.session(session)["x-portico"]["state"] == "waiting"
    return session


def open_session(page: Page, session: str) -> None:
    page.goto(f"/console/sessions/{session}")


def cards(page: Page) -> Locator:
    """The cards of calls that wait."""
    return page.locator(".approval")


def ready(page: Page, count: int = 1) -> Locator:
    """The cards, once there are so many and they take answers."""
    expect(page.locator(".approval[data-ready=true]")).to_have_count(count)
    return cards(page)


def allowable(card: Locator) -> Locator:
    """The card, once all of its input was in view and it can be allowed."""
    expect(card).to_have_attribute("data-seen", "true")
    expect(card).to_have_attribute("data-ready", "true")
    return card


def reject(card: Locator) -> None:
    """Reject, skip or refuse the call of a card, without a reason."""
    card.locator(".approval-actions .danger").click()
    card.page.keyboard.press("Enter")


def choose(card: Locator, name: str) -> None:
    """Make one of the choices in the menu of a card."""
    card.locator(".approval-others").click()
    card.page.get_by_role("menuitem", name=name, exact=True).click()


def messages(daemon: ConsoleDaemon, session: str) -> list[dict[str, Any]]:
    """The history of a session."""
    answer = daemon.api.get(f"/aap/v3/sessions/{session}/history", params={"type": "full"})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["history"]["full"])


def result_of(daemon: ConsoleDaemon, session: str) -> str:
    """What the agent has said last."""
    content = messages(daemon, session)[-1]["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])


def expect_result(daemon: ConsoleDaemon, page: Page, session: str, text: str) -> None:
    """Wait until the session is idle and its agent has said this text."""
    expect(page.locator(".approval")).to_have_count(0)
    deadline = time.monotonic() + SECONDS
    while daemon.session(session)["x-portico"]["state"] != "idle" and time.monotonic() < deadline:
        page.wait_for_timeout(25)
    found = result_of(daemon, session)
    assert found == text, found


def until(page: Page, condition: str) -> None:
    """Wait until a function of the page returns true.

    `Page.wait_for_function` needs `eval`, which the console's policy forbids.
    """
    deadline = time.monotonic() + SECONDS
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"not within {SECONDS} seconds: {condition}"
        page.wait_for_timeout(25)
