"""The frame of the console: pages, themes, keys, sizes of the window, and what it is to a screen reader."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.quiet import settle
from tests.console.session_rows import row

PAGES = ["/", "/inbox", "/agents", "/policy", "/audit", "/metrics", "/keys", "/nothing-here"]
SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desktop": (1440, 900)}


@pytest.fixture(scope="module")
def sessions(daemon: ConsoleDaemon) -> dict[str, str]:
    """One session of each state."""
    text = "Some **text**, `code` and a list:\n\n- one\n- two\n\n```python\nprint(1)\n```"
    asked = {"name": "deploy", "input": {"command": "git push --force"}, "ask": True}
    made = {
        "idle": daemon.new_session([{"thinking": "Hm."}, {"text": text}]),
        "waiting": daemon.new_session([{"tool_call": asked}]),
        "error": daemon.new_session([{"stop": {"reason": "error", "message": "429: the model is overloaded"}}]),
        "running": daemon.new_session([{"text": "working"}, {"wait_for_file": "never"}]),
    }
    for name, session in made.items():
        daemon.send(session, f"please be {name}", wait=name != "running")
    return made


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_a_title_a_heading_and_an_address(page: Page, sessions: dict[str, str], path: str) -> None:
    page.goto(f"/console{path}")
    expect(page).to_have_title(re.compile("Portico$"))
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.get_by_role("main")).to_have_count(1)


def test_back_and_forward_go_through_the_pages(page: Page, sessions: dict[str, str]) -> None:
    row(page, sessions["idle"]).get_by_role("link").click()
    expect(page).to_have_title(re.compile("please be idle"))
    page.get_by_role("link", name="Agents").click()
    expect(page).to_have_title(re.compile("Agents"))
    page.go_back()
    expect(page).to_have_title(re.compile("please be idle"))
    page.go_forward()
    expect(page).to_have_title(re.compile("Agents"))


def test_a_session_that_does_not_exist_is_named_so(page: Page, windows: Windows) -> None:
    windows.expect("404")
    page.goto("/console/sessions/sess_00000000000000000000000000000000")
    expect(page.get_by_text("There is no such session")).to_be_visible()


def test_every_page_is_reached_by_keys(page: Page, sessions: dict[str, str]) -> None:
    row(page, sessions["idle"]).wait_for()
    # The form takes the focus when it has been loaded.
    expect(page.get_by_label("First message")).to_be_focused()
    for keys, path in [("gi", "inbox"), ("ga", "agents"), ("gp", "policy"), ("gu", "audit"), ("gm", "metrics"), ("gk", "keys")]:
        page.evaluate("document.activeElement.blur()")
        for key in keys:
            page.keyboard.press(key)
        expect(page).to_have_url(re.compile(f"/console/{path}$"))
    page.keyboard.press("n")
    expect(page).to_have_url(re.compile("/console/$"))
    expect(page.get_by_label("First message")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("a")
    assert page.url.endswith("/console/"), "keys that are typed into the message are no shortcuts"


def test_a_shortcut_is_there_as_soon_as_the_page_is(page: Page, sessions: dict[str, str]) -> None:
    # A key that follows at once is an event of its own, a task after this one.
    page.add_init_script(
        """new MutationObserver((changes, observer) => {
            if (!document.querySelector(".session-list")) return;
            observer.disconnect();
            document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "/", bubbles: true, cancelable: true}));
            const {port1, port2} = new MessageChannel();
            port1.onmessage = () => (window.nextKeyGoesTo = document.activeElement.ariaLabel);
            port2.postMessage(null);
        }).observe(document, {subtree: true, childList: true})"""
    )
    page.goto("/console/agents")
    expect(page.get_by_role("combobox", name="Search sessions and messages")).to_be_focused()
    assert page.evaluate("window.nextKeyGoesTo") == "Search sessions and messages"


def test_the_shortcuts_are_listed(page: Page, sessions: dict[str, str]) -> None:
    page.goto("/console/agents")
    row(page, sessions["idle"]).wait_for()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    labels = [
        "Next session in the list",
        "Go to a session or page",
        "Search sessions and messages",
        "Rename the session",
        "Inbox",
    ]
    for label in labels:
        expect(dialog.get_by_text(label, exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_shortcuts_of_a_single_key_can_be_switched_off(page: Page, sessions: dict[str, str]) -> None:
    page.goto("/console/agents")
    row(page, sessions["idle"]).wait_for()
    page.keyboard.press("?")
    page.get_by_label("Shortcuts of a single key").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    page.keyboard.press("/")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.url.endswith("/console/agents")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("menuitem", name="Keyboard shortcuts").click()
    page.get_by_label("Shortcuts of a single key").check()
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    expect(page).to_have_url(re.compile("/console/$"))


def test_the_menu_is_used_by_keys(page: Page) -> None:
    page.goto("/console/nothing-here")
    button = page.get_by_role("button", name="Settings")
    button.focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitemradio", name="System")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitemradio", name="Light")).to_be_focused()
    page.keyboard.press("d")
    expect(page.get_by_role("menuitemradio", name="Dark")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("menu")).to_have_count(0)
    expect(button).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_the_systems_until_one_is_chosen(windows: Windows, scheme: Any) -> None:
    page = windows.open(color_scheme=scheme)
    dark = "rgb(20, 22, 26)"
    background = "getComputedStyle(document.body).backgroundColor"
    assert (page.evaluate(background) == dark) == (scheme == "dark")
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("menuitemradio", name="Light" if scheme == "dark" else "Dark").click()
    assert (page.evaluate(background) == dark) == (scheme == "light")
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("menuitemradio", name="System").click()
    assert (page.evaluate(background) == dark) == (scheme == "dark")


def test_on_a_phone_the_list_is_a_drawer(windows: Windows, sessions: dict[str, str]) -> None:
    page = windows.open(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    expect(page.locator(".sidebar")).to_have_count(0)
    page.get_by_role("button", name="Sessions and pages").tap()
    row(page, sessions["idle"]).get_by_role("link").tap()
    expect(page).to_have_url(re.compile(sessions["idle"]))
    expect(page.locator(".sidebar")).to_have_count(0)
    page.get_by_role("button", name="Sessions and pages").tap()
    page.keyboard.press("Escape")
    expect(page.locator(".sidebar")).to_have_count(0)
    page.get_by_role("button", name="Sessions and pages").tap()
    page.touchscreen.tap(375, 400)
    expect(page.locator(".sidebar")).to_have_count(0)


TOO_SMALL = """() => [...document.querySelectorAll("button, a.button, a.icon-button, select, summary, [role^=menuitem]")]
  .filter((e) => e.checkVisibility() && !e.closest("dialog:not([open])") && !e.disabled)
  .map((e) => [e, e.getBoundingClientRect()])
  .filter(([, r]) => r.width > 0 && (r.height < 39.5 || r.width < 32))
  .map(([e, r]) => `${e.outerHTML.slice(0, 120)} ${Math.round(r.width)}x${Math.round(r.height)}`)"""

TOO_WIDE = """(width) => [...document.querySelectorAll("body *")]
  .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === "visible")
  .filter((e) => e.getBoundingClientRect().left + e.scrollWidth > width + 1 && !e.closest("pre, .tab-list, svg"))
  .map((e) => e.outerHTML.slice(0, 100))"""


@pytest.mark.parametrize("path", ["/", "/inbox", "session", "drawer"])
def test_on_a_phone_targets_are_large(windows: Windows, sessions: dict[str, str], path: str) -> None:
    at = f"/sessions/{sessions['waiting']}" if path == "session" else "/" if path == "drawer" else path
    page = windows.open(f"/console{at}", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.get_by_role("heading", level=1).first.wait_for()
    if path == "drawer":
        page.get_by_role("button", name="Sessions and pages").tap()
        row(page, sessions["idle"]).wait_for()
    settle(page)
    assert not page.evaluate(TOO_SMALL)


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_wider_than_the_window(windows: Windows, sessions: dict[str, str], size: str) -> None:
    width, height = SIZES[size]
    page = windows.open(viewport={"width": width, "height": height})
    for path in [*PAGES, *(f"/sessions/{sessions[state]}" for state in ("idle", "waiting", "error"))]:
        page.goto(f"/console{path}")
        page.get_by_role("heading", level=1).first.wait_for()
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert not page.evaluate(TOO_WIDE, width), path
