"""The keys page: keys are added, shown once, used and removed."""

from __future__ import annotations

import httpx
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.named_key import open_with_named_key


def status_with(daemon: ConsoleDaemon, key: str) -> int:
    return httpx.get(f"{daemon.url}/aap/v3/sessions", headers={"Authorization": f"Bearer {key}"}, timeout=60).status_code


def open_keys(windows: Windows) -> Page:
    context = windows.context(viewport={"width": 1440, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    return windows.open("/console/keys", context)


def test_a_key_is_added_shown_once_and_removed(windows: Windows, daemon: ConsoleDaemon) -> None:
    page = open_keys(windows)
    page.get_by_label("Name of the client").fill("phone")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="The key of phone")).to_be_focused()
    page.get_by_role("button", name="Copy the key").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    key = page.evaluate("navigator.clipboard.readText()")
    assert key == page.get_by_test_id("new-key").inner_text()
    assert status_with(daemon, key) == 200
    page.reload()
    line = page.get_by_role("row", name="phone")
    expect(line).to_contain_text("ago")
    assert key not in page.content()
    line.get_by_role("button", name="Remove the key phone").click()
    page.keyboard.press("Escape")
    assert status_with(daemon, key) == 200
    line.get_by_role("button", name="Remove the key phone").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove the key").click()
    expect(line).to_be_hidden()
    assert status_with(daemon, key) == 401


def test_a_name_that_is_refused_says_why(windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect("400|409")
    page = open_keys(windows)
    field = page.get_by_label("Name of the client")
    field.fill("no spaces allowed")
    page.get_by_role("button", name="Add a key").click()
    expect(page.get_by_role("alert")).to_contain_text("letters, digits")
    expect(field).to_have_attribute("aria-invalid", "true")
    daemon.api.post("/v1/keys", json={"name": "twice"})
    field.fill("twice")
    page.get_by_role("button", name="Add a key").click()
    expect(page.get_by_role("alert")).to_contain_text("twice")
    expect(field).to_have_value("twice")


def test_a_named_key_gets_a_sentence(windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect("403")
    page = open_with_named_key(windows, daemon, "/console/keys")
    expect(page.get_by_text("Only for the administrator")).to_be_visible()
