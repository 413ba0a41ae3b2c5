"""Signing in and out, as a user does; and what pages of others can do with the cookie of somebody who is signed in."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.other_site import other_site
from tests.support.daemon import KEY

SEND = """async ([url, token]) => {
  const found = [];
  const tries = [
    {}, {credentials: "include"}, {credentials: "include", mode: "no-cors"},
    {credentials: "include", headers: {"X-Portico-Sign-In": token}},
    {credentials: "include", method: "POST", body: "{}", headers: {"Content-Type": "text/plain"}},
    {credentials: "include", method: "DELETE"},
  ];
  for (const options of tries)
    for (const path of ["/sessions", "/v1/sign-ins/current", "/aap/v3/sessions"])
      try {
        const response = await fetch(url + path, options);
        found.push(response.type === "opaque" ? "opaque" : response.status);
      } catch { found.push("refused"); }
  return [...new Set(found)];
}"""
"""Sends requests from a foreign page, with the cookie if the browser gives it, and a token that was guessed or stolen."""


def key_of(daemon: ConsoleDaemon, name: str) -> str:
    """Add a named key and return it."""
    return str(daemon.api.post("/v1/keys", json={"name": name}).json()["key"])


def app(page: Page) -> None:
    """Wait for the console of somebody who is signed in."""
    expect(page.get_by_role("button", name="New session").or_(page.get_by_role("link", name="New session")).first).to_be_visible()


def test_a_link_signs_in_once_and_leaves_no_trace_in_the_address(windows: Windows, daemon: ConsoleDaemon) -> None:
    link = daemon.api.post("/v1/sign-in-codes").json()["url"]
    page = windows.open(link, key=None)
    app(page)
    assert page.url == f"{daemon.url}/console/" and page.evaluate("history.length") <= 2
    [cookie] = page.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    assert cookie["name"] == f"portico_sign_in_{urlsplit(daemon.url).port}" and not page.evaluate("document.cookie")
    windows.expect("401")
    again = windows.open(link, key=None)
    expect(again.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(again.get_by_role("alert")).to_contain_text("portico open")
    log = daemon.log.read_text()
    assert "/v1/sign-ins" in log and link.partition("#code=")[2] not in log and cookie["value"] not in log and KEY not in log


def test_a_key_signs_in_and_sign_out_ends_it_in_all_windows(windows: Windows) -> None:
    windows.expect("401")
    page = windows.open(key=None)
    field = page.get_by_label("Key", exact=True)
    field.fill("wrong-key-0123456789")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    field.fill(KEY)
    page.keyboard.press("Enter")
    app(page)
    assert KEY not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])")
    page.evaluate("""() => {
      localStorage.setItem("portico.draft.new", JSON.stringify({text: "a secret", at: Date.now()}));
      localStorage.setItem("portico.mockedAnswers", JSON.stringify({sess_1: {lookup: {content: "a secret", automatic: true}}}));
      localStorage.setItem("portico.newSession", JSON.stringify({agent: "script", byAgent: {script: {cwd: "/a secret"}}}));
    }""")
    page.reload()
    app(page)
    second = windows.open(context=page.context)
    app(second)
    page.get_by_role("button", name=re.compile("menu|account|more|settings", re.IGNORECASE)).last.click()
    page.get_by_role("menuitem", name="Sign out").click()
    for window in (page, second):
        expect(window.get_by_role("heading", name="Sign in")).to_be_visible()
    assert "a secret" not in page.evaluate("JSON.stringify({...localStorage})")
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_the_sign_in_ends_with_its_key(windows: Windows, daemon: ConsoleDaemon) -> None:
    page = windows.open(key=key_of(daemon, "phone"))
    app(page)
    daemon.api.delete("/v1/keys/phone").raise_for_status()
    windows.expect("401")
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_pages_of_other_ports_and_hosts_get_nothing_by_the_cookie(windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect(".")
    context = windows.context()
    app(windows.open(context=context))
    token = windows.token(context)
    before = daemon.api.get("/aap/v3/sessions").json()
    with other_site() as other:
        for host in ("127.0.0.1", "localhost"):
            page = context.new_page()
            page.goto(other.url(host))
            outcomes = page.evaluate(SEND, [daemon.url, token])
            assert set(outcomes) <= {"refused", "opaque"}, (host, outcomes)
            # A form and a link are navigations, which have the cookie at most: the page that they get knows nobody.
            page.evaluate(f"""() => {{
              const form = document.createElement("form");
              form.method = "POST"; form.enctype = "text/plain"; form.action = "{daemon.url}/aap/v3/sessions";
              document.body.append(form); form.submit();
            }}""")
            page.wait_for_url(f"{daemon.url}/**")
            assert "error" in page.content()
        # Another port of this host gets the cookie, which is worth nothing without the token.
        assert other.cookies and all(token not in cookie for cookie in other.cookies)
        page = context.new_page()
        page.goto(other.url())
        assert token not in page.evaluate("JSON.stringify({...localStorage})")
    assert daemon.api.get("/aap/v3/sessions").json() == before
    app(windows.open(context=context))


def test_a_link_asks_before_it_changes_who_is_signed_in(windows: Windows, daemon: ConsoleDaemon) -> None:
    """Anybody with a key can make a link, and another page can open it."""
    first, guest = key_of(daemon, "tablet"), key_of(daemon, "guest")
    # The administrator's browser stays the administrator's.
    page = windows.open(link_of(daemon, guest))
    app(page)
    assert name_of(page, windows) is None
    # That of another key is asked, and stays so until the user chooses the link.
    context = windows.context(first)
    app(windows.open(context=context))
    page = windows.open(link_of(daemon, guest), context=context)
    expect(page.get_by_text("signed in with the key tablet")).to_be_visible()
    page.get_by_role("button", name="Stay with tablet").click()
    app(page)
    assert name_of(page, windows) == "tablet"
    page = windows.open(link_of(daemon, guest), context=context)
    page.get_by_role("button", name="Use the link").click()
    app(page)
    assert name_of(page, windows) == "guest"


def test_a_link_asks_where_the_sign_in_has_ended(windows: Windows, daemon: ConsoleDaemon) -> None:
    """Another page can delete the cookie of the administrator, and open a link of its own key then."""
    windows.expect("401")
    guest = key_of(daemon, "other-guest")
    context = windows.context()
    app(windows.open(context=context))
    context.clear_cookies()
    page = windows.open(link_of(daemon, guest), context=context)
    expect(page.get_by_text("its sign-in has ended")).to_be_visible()
    page.get_by_role("button", name="Enter a key").click()
    expect(page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()
    assert context.cookies() == []
    page = windows.open(link_of(daemon, guest), context=context)
    page.get_by_role("button", name="Use the link").click()
    app(page)
    assert name_of(page, windows) == "other-guest"


def test_a_page_of_another_port_signs_nobody_out(windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect("a request to another host")
    context = windows.context()
    app(windows.open(context=context))
    name = f"portico_sign_in_{urlsplit(daemon.url).port}"
    with other_site() as other:
        page = context.new_page()
        page.goto(other.url())
        for path in ("/console", "/console/", "/v1", "/v1/sign-ins", "/v1/sign-ins/current", "/aap"):
            page.evaluate(f"document.cookie = '{name}=other; path={path}'")
    page = windows.open(context=context)
    app(page)
    assert name_of(page, windows) is None


def link_of(daemon: ConsoleDaemon, key: str) -> str:
    """Return a link that signs in with the key."""
    answer = daemon.api.post("/v1/sign-in-codes", headers={"Authorization": f"Bearer {key}"})
    return str(answer.json()["url"])


def name_of(page: Page, windows: Windows) -> str | None:
    """Return the name of the key that the user of a page is signed in with, None for a default key."""
    token = windows.token(page.context)
    headers = {"X-Portico-Sign-In": token}
    found = page.evaluate("headers => fetch('/v1/sign-ins/current', {headers}).then((answer) => answer.json())", headers)
    assert found.keys() >= {"name"}, found
    return None if found["name"] is None else str(found["name"])
