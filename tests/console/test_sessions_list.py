"""The list of sessions: what it shows, what it follows live, and what a user does in it."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import SESSIONS, ConsoleDaemon
from tests.console.session_rows import choose, row, until

ASK = [{"tool_call": {"name": "deploy", "input": {"command": "ls"}, "ask": True}}, {"text": "done"}]
WIDE = {"width": 1440, "height": 900}


def ids(page: Page) -> list[str]:
    return list(page.locator(".session-row").evaluate_all("(rows) => rows.map((row) => row.dataset.session)"))


def test_a_session_has_its_title_state_agent_and_time(page: Page, daemon: ConsoleDaemon) -> None:
    idle = daemon.new_session([{"title": "Parser tests"}, {"text": "ok"}])
    daemon.send(idle, "write tests")
    failed = daemon.new_session([{"stop": {"reason": "error", "message": "no more credits"}}])
    daemon.send(failed, "go on")
    waiting = daemon.new_session(ASK)
    daemon.send(waiting, "list the files")
    running = daemon.new_session([{"text": "working"}, {"wait_for_file": "never"}])
    daemon.send(running, "work", wait=False)

    for session, state, title in [
        (idle, "Idle", "Parser tests"),
        (failed, "Error", "go on"),
        (waiting, "Waiting for you", "list the files"),
        (running, "Running", "work"),
    ]:
        found = row(page, session)
        expect(found.locator(".state")).to_have_text(state)
        expect(found.locator(".row-text")).to_have_text(title)
        expect(found.locator(".row-agent")).to_have_text("script")
        expect(found.locator("time")).to_have_text("now")
    expect(page.get_by_role("link", name=re.compile("Inbox"))).to_contain_text("1")
    daemon.api.post(f"{SESSIONS}/{running}/cancel")
    expect(row(page, running).locator(".state")).to_have_text("Idle")


def test_sessions_are_grouped_by_folder_or_agent(page: Page, daemon: ConsoleDaemon) -> None:
    folder = daemon.scenes / "website"
    folder.mkdir()
    here = daemon.new_session(agent="echo", agent_fields={"options": {"cwd": str(folder)}})
    daemon.send(here, "hello")
    groups = page.locator(".session-group")
    expect(groups.filter(has=page.get_by_role("button", name="website")).locator(".session-row")).to_have_attribute(
        "data-session", here
    )

    page.get_by_role("button", name=re.compile("^website")).click()
    expect(row(page, here)).to_have_count(0)
    page.reload()
    expect(page.get_by_role("button", name=re.compile("^website"))).to_have_attribute("aria-expanded", "false")
    page.get_by_role("button", name=re.compile("^website")).click()
    expect(row(page, here)).to_be_visible()

    page.get_by_role("button", name="Group and filter").click()
    page.get_by_role("menuitemradio", name="Agent").click()
    expect(page.locator(".group-name", has_text="echo")).to_be_visible()
    expect(row(page, here).locator(".row-folder")).to_have_text("website")
    page.get_by_role("button", name="Group and filter").click()
    page.get_by_role("menuitemradio", name="Folder").click()


def test_the_list_is_filtered_by_state(page: Page, daemon: ConsoleDaemon) -> None:
    idle, waiting = daemon.new_session([{"text": "ok"}]), daemon.new_session(ASK)
    daemon.send(idle, "hi")
    daemon.send(waiting, "ls")
    expect(row(page, idle)).to_be_visible()
    page.get_by_role("button", name="Group and filter").click()
    page.get_by_role("menuitemradio", name="Waiting for you").click()
    expect(row(page, idle)).to_have_count(0)
    expect(row(page, waiting)).to_be_visible()
    page.get_by_role("button", name="Waiting for you Remove the filter").click()
    expect(row(page, idle)).to_be_visible()


def test_sessions_of_other_clients_appear_and_end_live(page: Page, daemon: ConsoleDaemon) -> None:
    expect(page.locator(".session-list, .empty").first).to_be_visible()
    session = daemon.new_session([{"text": "working"}, {"wait_for_file": "go-on"}, {"title": "All done"}, {"text": "ok"}])
    expect(row(page, session)).to_be_visible()
    daemon.send(session, "begin", wait=False)
    expect(row(page, session).locator(".state")).to_have_text("Running")
    (daemon.scenes / "go-on").touch()
    expect(row(page, session).locator(".state")).to_have_text("Idle")
    expect(row(page, session).locator(".row-text")).to_have_text("All done")
    daemon.api.delete(f"{SESSIONS}/{session}")
    expect(row(page, session)).to_have_count(0)


def test_the_newest_activity_comes_first(page: Page, daemon: ConsoleDaemon) -> None:
    first, second = daemon.new_session([{"text": "ok"}]), daemon.new_session([{"text": "ok"}])
    daemon.send(first, "one")
    daemon.send(second, "two")
    for session, title in ((first, "one"), (second, "two")):
        expect(row(page, session).locator(".row-text")).to_have_text(title)
    until(page, lambda: ids(page).index(second) < ids(page).index(first))
    daemon.send(first, "three")
    until(page, lambda: ids(page).index(first) < ids(page).index(second))


def test_what_was_not_seen_is_marked(page: Page, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "ok"}])
    daemon.send(session, "hi")
    mark = row(page, session).locator(".unread-mark")
    expect(mark).to_be_visible()
    expect(row(page, session).get_by_role("link")).to_have_accessible_name(re.compile("^Unread: hi"))
    row(page, session).get_by_role("link").click()
    expect(mark).to_have_count(0)
    page.get_by_role("link", name="New session", exact=True).click()
    daemon.send(session, "again")
    expect(mark).to_be_visible()
    choose(page, session, "Mark as read")
    expect(mark).to_have_count(0)
    choose(page, session, "Mark as unread")
    expect(mark).to_be_visible()


def test_a_session_is_renamed_in_place(page: Page, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"title": "The agent's title"}, {"text": "ok"}])
    daemon.send(session, "hi")
    choose(page, session, "Rename")
    field = page.get_by_role("textbox", name="Title of the session")
    expect(field).to_be_focused()
    field.fill("Mine: <b>bold</b> & more")
    field.press("Enter")
    expect(row(page, session).locator(".row-text")).to_have_text("Mine: <b>bold</b> & more")
    until(page, lambda: daemon.session(session)["x-portico"]["title"] == "Mine: <b>bold</b> & more")

    expect(row(page, session).get_by_role("link")).to_be_focused()
    page.keyboard.press("r")
    page.keyboard.type("thrown away")
    page.keyboard.press("Escape")
    expect(row(page, session).locator(".row-text")).to_have_text("Mine: <b>bold</b> & more")

    page.keyboard.press("r")
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.press("Enter")
    expect(row(page, session).locator(".row-text")).to_have_text("The agent's title")


def hold_back(page: Page, module: str) -> list[Route]:
    """Answer no request for a module of the console's next document. Return these requests."""
    held: list[Route] = []
    # What this document asked for is never answered after the next one has come.
    page.goto("about:blank")
    page.route(f"**/{module}", lambda route: held.append(route))
    return held


def test_a_message_field_that_is_loaded_late_does_not_take_the_focus_from_a_title(page: Page, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "ok"}])
    daemon.send(session, "hi")
    held = hold_back(page, "composer/composer.js")
    page.goto("/console/agents")
    row(page, session).get_by_role("link").click()
    until(page, lambda: bool(held))
    page.keyboard.press("r")
    title = page.get_by_role("textbox", name="Title of the session")
    expect(title).to_be_focused()
    held[0].continue_()
    expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_visible()
    expect(title).to_be_focused()
    page.keyboard.type("Parser tests")
    page.keyboard.press("Enter")
    expect(row(page, session).locator(".row-text")).to_have_text("Parser tests")


def test_a_message_field_that_is_loaded_late_does_not_take_the_focus_from_the_list(page: Page, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "ok"}])
    daemon.send(session, "hi")
    held = hold_back(page, "composer/new-session.js")
    page.goto("/console/")
    until(page, lambda: bool(held))
    choose(page, session, "Rename")
    page.keyboard.type("Parser tests")
    page.keyboard.press("Enter")
    expect(row(page, session).get_by_role("link")).to_be_focused()
    held[0].continue_()
    expect(page.get_by_role("textbox", name="First message")).to_be_visible()
    expect(row(page, session).get_by_role("link")).to_be_focused()


def test_a_deletion_can_be_undone(page: Page, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "ok"}])
    daemon.send(session, "keep me")
    choose(page, session, "Delete")
    expect(row(page, session)).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(row(page, session)).to_be_visible()
    page.wait_for_timeout(6500)
    assert daemon.session(session)["x-portico"]["title"] == "keep me"


def test_a_deletion_without_undo_is_one(page: Page, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "ok"}])
    daemon.send(session, "away")
    row(page, session).get_by_role("link").click()
    # The message field takes the focus when the session has been loaded.
    expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_focused()
    row(page, session).get_by_role("link").focus()
    page.keyboard.press("Delete")
    expect(page).to_have_url(re.compile("/console/$"))
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    assert daemon.api.get(f"{SESSIONS}/{session}").status_code == 200
    until(page, lambda: daemon.api.get(f"{SESSIONS}/{session}").status_code == 404)
    expect(row(page, session)).to_have_count(0)


def test_a_deletion_is_done_when_the_page_is_left(windows: Windows, daemon: ConsoleDaemon) -> None:
    page, other = windows.open(viewport=WIDE), windows.open(viewport=WIDE)
    session = daemon.new_session([{"text": "ok"}])
    daemon.send(session, "away")
    choose(page, session, "Delete")
    expect(row(page, session)).to_have_count(0)
    page.close(run_before_unload=False)
    until(other, lambda: daemon.api.get(f"{SESSIONS}/{session}").status_code == 404)
    expect(row(other, session)).to_have_count(0)


def test_a_fork_is_a_session_of_its_own(page: Page, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "first answer"}], [{"remember": True}])
    daemon.send(session, "one")
    row(page, session).get_by_role("link").click()
    choose(page, session, "Fork")
    page.wait_for_url(lambda url: "/sessions/" in url and session not in url)
    copy = page.url.rsplit("/", 1)[1]
    assert daemon.session(copy)["x-portico"]["forkedFrom"] == session
    history = daemon.api.get(f"{SESSIONS}/{copy}/history", params={"type": "full"}).json()["history"]["full"]
    assert [message["content"] for message in history] == ["one", "first answer"]
    expect(row(page, copy).get_by_role("link")).to_have_attribute("aria-current", "page")


def test_sessions_are_open_side_by_side(page: Page, daemon: ConsoleDaemon) -> None:
    made = [daemon.new_session([{"text": f"answer of {n}"}]) for n in range(3)]
    for n, session in enumerate(made):
        daemon.send(session, f"question {n}")
    row(page, made[0]).get_by_role("link").click()
    choose(page, made[1], "Open beside")
    row(page, made[2]).get_by_role("link").focus()
    page.keyboard.press("o")
    panes = page.locator(".pane")
    expect(panes).to_have_count(3)
    for n, session in enumerate(made):
        expect(page.locator(f'.pane[data-session="{session}"]')).to_contain_text(f"answer of {n}")
    page.reload()
    expect(panes).to_have_count(3)
    panes.first.get_by_role("button", name="Close this pane").click()
    expect(page).to_have_url(re.compile(f"/sessions/{made[1]}\\?also={made[2]}$"))
    page.go_back()
    expect(panes).to_have_count(3)


def test_the_list_is_used_by_keys(page: Page, daemon: ConsoleDaemon) -> None:
    made = [daemon.new_session([{"text": "ok"}]) for _ in range(3)]
    for session in made:
        daemon.send(session, "hi")
    for session in made:
        expect(row(page, session)).to_be_visible()
    # The newest is the first: the list does not change any more.
    until(page, lambda: [one for one in ids(page) if one in made] == made[::-1])
    page.locator("body").click(position={"x": 700, "y": 20})
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    order = ids(page)
    page.keyboard.press("j")
    expect(row(page, order[0]).get_by_role("link")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    expect(row(page, order[2]).get_by_role("link")).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/sessions/{order[1]}$"))


def test_a_hostile_title_is_text(page: Page, daemon: ConsoleDaemon) -> None:
    title = "<img src=x onerror=alert(1)> \u202eevil\u202c \x1b[31mred"
    session = daemon.new_session([{"title": title}, {"text": "ok"}])
    daemon.send(session, "hi")
    text = row(page, session).locator(".row-text")
    expect(text).to_have_text("<img src=x onerror=alert(1)> [U+202E]evil[U+202C] ^[[31mred")
    assert text.evaluate("(e) => getComputedStyle(e).unicodeBidi") == "isolate"
    assert not page.locator(".session-row img").count()


def test_what_is_typed_behind_a_shortcut_is_for_its_field(page: Page, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "ok"}])
    daemon.send(session, "hi")
    expect(row(page, session).locator(".row-text")).to_have_text("hi")
    expect(row(page, session)).to_contain_text("Idle")
    page.wait_for_timeout(500)
    row(page, session).get_by_role("link").focus()
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": 5})
    page.keyboard.type("rfork you")
    page.keyboard.press("Enter")
    expect(row(page, session).locator(".row-text")).to_have_text("fork you")
    page.keyboard.type("/jump")
    expect(page.get_by_role("combobox", name="Search sessions and messages")).to_have_value("jump")


def test_older_sessions_are_listed_by_scrolling(windows: Windows, daemon: ConsoleDaemon, tmp_path: Path) -> None:
    for found in daemon.api.get(SESSIONS, params={"state": "waiting"}).json()["sessions"]:
        daemon.api.delete(f"{SESSIONS}/{found['sessionId']}")
    waiting = daemon.new_session(ASK)
    daemon.send(waiting, "ls")
    for _ in range(230):
        daemon.new_session(agent="echo")
    page = windows.open(viewport=WIDE)
    # It waits since before all of them.
    expect(page.get_by_role("link", name=re.compile("^Inbox"))).to_contain_text("1")
    expect(row(page, waiting)).to_be_visible()
    page.get_by_role("button", name="Group and filter").click()
    page.get_by_role("menuitemradio", name="Time").click()
    rows = page.locator(".session-row")
    expect(rows.first).to_be_visible()
    assert rows.count() <= 200
    total = len(daemon.api.get(SESSIONS, params={"limit": 1000}).json()["sessions"])
    until(page, lambda: (rows.last.scroll_into_view_if_needed(), rows.count() >= min(total, 230))[1])
    assert rows.count() >= 230
