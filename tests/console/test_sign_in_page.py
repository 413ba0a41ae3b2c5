"""The sign-in page: by the link of `portico open`, by a key, and out again."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.support.daemon import KEY

REFUSED = "401|400|403|429"


def stranger(windows: Windows, path: str = "/console/") -> Page:
    """A window of somebody who is not signed in."""
    windows.expect(REFUSED)
    page = windows.context(key=None).new_page()
    page.goto(path)
    return page


def code_of(daemon: ConsoleDaemon) -> str:
    answer = daemon.api.post("/v1/sign-in-codes")
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["code"])


def test_the_link_signs_in_and_its_code_is_gone(windows: Windows, daemon: ConsoleDaemon) -> None:
    code = code_of(daemon)
    page = windows.context(key=None).new_page()
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    windows.expect("401")
    page.goto(f"/console/#code={code}")
    expect(page.get_by_role("navigation", name="Sessions and pages")).to_be_visible()
    assert page.url.endswith("/console/")
    assert not any(code in address for address in addresses)
    page.reload()
    expect(page.get_by_role("navigation", name="Sessions and pages")).to_be_visible()
    page.go_back()
    assert code not in page.url


def test_a_used_link_says_so(windows: Windows, daemon: ConsoleDaemon) -> None:
    code = code_of(daemon)
    httpx.post(f"{daemon.url}/v1/sign-ins", json={"code": code}, trust_env=False, timeout=60)
    page = stranger(windows, f"/console/#code={code}")
    expect(page.get_by_role("alert")).to_contain_text("portico open")
    expect(page.get_by_label("Key")).to_be_visible()
    assert code not in page.url


def test_the_link_of_an_open_session_leads_to_it(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "ok"}])
    page = windows.context(key=None).new_page()
    windows.expect("401")
    page.goto(f"/console/sessions/{session}#code={code_of(daemon)}")
    expect(page.locator(f'.pane[data-session="{session}"]')).to_be_visible()
    assert page.url.endswith(f"/console/sessions/{session}")


def test_a_key_signs_in(windows: Windows) -> None:
    page = stranger(windows)
    field = page.get_by_label("Key")
    expect(field).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text(re.compile("Enter a key"))
    page.keyboard.type("wrong-key-0123456789")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    field.fill(KEY)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation", name="Sessions and pages")).to_be_visible()
    assert KEY not in page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie")


def test_signing_out_does_so_in_all_windows(windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect(REFUSED)
    session = daemon.new_session([{"text": "ok"}])
    context = windows.context(viewport={"width": 1440, "height": 900})
    first, second = windows.open(context=context), windows.open(f"/console/sessions/{session}", context)
    expect(second.locator(".session-row").first).to_be_visible()
    first.get_by_role("button", name="Settings").click()
    first.get_by_role("menuitem", name="Sign out").click()
    for page in (first, second):
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        expect(page.locator(".session-row")).to_have_count(0)
    first.get_by_label("Key").fill(KEY)
    first.keyboard.press("Enter")
    for page in (first, second):
        expect(page.locator(".session-row").first).to_be_visible()


def test_a_sign_in_that_has_ended_elsewhere_shows_the_page(windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect(REFUSED)
    made = daemon.api.post("/v1/keys", json={"name": "guest"}).json()["key"]
    context = windows.context(key=made, viewport={"width": 1440, "height": 900})
    page = windows.open(context=context)
    expect(page.locator(".who")).to_have_text("guest")
    expect(page.locator(".sidebar .empty")).to_be_visible()
    daemon.api.delete("/v1/keys/guest")
    # Its streams end, and the next request is refused.
    page.evaluate("document.querySelector('a[href$=audit]')?.click()")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("signed out")


@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits(windows: Windows, width: int) -> None:
    windows.expect(REFUSED)
    page = windows.context(key=None, viewport={"width": width, "height": 700}).new_page()
    page.goto("/console/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_link_does_not_replace_a_sign_in_by_itself(windows: Windows, daemon: ConsoleDaemon) -> None:
    """Anybody with a key can make one, and what is written then would be in sessions of that key."""
    key = daemon.api.post("/v1/keys", json={"name": "phone"}).json()["key"]
    headers = {"Authorization": f"Bearer {key}"}
    code = httpx.post(f"{daemon.url}/v1/sign-in-codes", headers=headers, trust_env=False, timeout=60).json()["code"]
    for_administrator = windows.open(f"/console/#code={code}")
    expect(for_administrator.get_by_role("navigation", name="Sessions and pages")).to_be_visible()
    # The code was not used.
    assert httpx.post(f"{daemon.url}/v1/sign-ins", json={"code": code}, trust_env=False, timeout=60).json()["name"] == "phone"

    page = windows.context(key=key).new_page()
    windows.expect("401")
    for button, name in (("Stay with phone", "phone"), ("Use the link", None)):
        page.goto("about:blank")
        page.goto(f"/console/#code={code_of(daemon)}")
        expect(page.get_by_role("heading", name="Another sign-in")).to_be_visible()
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("navigation", name="Sessions and pages")).to_be_visible()
        who = page.evaluate(
            "async () => (await (await fetch('/v1/sign-ins/current', "
            "{ headers: { 'X-Portico-Sign-In': localStorage.getItem('portico.signIn') } })).json()).name"
        )
        assert who == name
    daemon.api.delete("/v1/keys/phone")
