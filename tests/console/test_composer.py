"""Messages: keys that send, drafts, history, errors in words, and what there is to do while a run is at work."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import SESSIONS, ConsoleDaemon
from tests.console.conversations import at_the_end
from tests.console.session_rows import row, until
from tests.console.waiting_sessions import call, messages, open_session, ready, waiting

SAYS = [{"text": "You said: {prompt}"}]


def box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def users(daemon: ConsoleDaemon, session: str) -> list[str]:
    """What users have sent."""
    return [message["content"] for message in messages(daemon, session) if message["role"] == "user"]


def expect_text(page: Page, text: str) -> None:
    expect(page.get_by_role("main")).to_contain_text(text)


def release(daemon: ConsoleDaemon, name: str) -> None:
    """Let a `wait_for_file` step go on."""
    (daemon.scenes / name).touch()


def test_enter_sends_and_shift_enter_begins_a_line(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session(SAYS)
    open_session(page, session)
    expect(box(page)).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    expect(box(page)).to_have_value("")
    expect_text(page, "You said: one")
    assert users(daemon, session) == ["one\ntwo"]


def test_a_setting_sends_with_ctrl_enter(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session(SAYS)
    open_session(page, session)
    page.get_by_role("button", name="How messages are sent").click()
    page.get_by_role("menuitemradio", name="Ctrl+Enter").click()
    box(page).click()
    page.keyboard.type("one")
    page.keyboard.press("Enter")
    page.keyboard.type("two")
    expect(box(page)).to_have_value("one\ntwo")
    page.reload()
    expect(box(page)).to_have_value("one\ntwo")
    box(page).press("Control+Enter")
    expect_text(page, "You said: one")


def test_a_blank_message_is_not_sent(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session(SAYS)
    open_session(page, session)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    box(page).fill("  \n ")
    box(page).press("Enter")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    assert daemon.session(session)["x-portico"]["lastSeq"] == 0


def test_drafts_are_kept_by_session(daemon: ConsoleDaemon, page: Page) -> None:
    one, other = daemon.new_session(SAYS), daemon.new_session(SAYS)
    open_session(page, one)
    box(page).fill("for the first")
    open_session(page, other)
    expect(box(page)).to_have_value("")
    box(page).fill("for the other")
    open_session(page, one)
    expect(box(page)).to_have_value("for the first")
    box(page).press("Enter")
    expect_text(page, "You said: for the first")
    page.reload()
    expect(box(page)).to_have_value("")
    open_session(page, other)
    expect(box(page)).to_have_value("for the other")


def test_a_draft_is_stored_before_the_page_can_be_left(daemon: ConsoleDaemon, page: Page) -> None:
    """What an effect stored after the next frame would be lost, or would come back after it was sent."""
    session = daemon.new_session(SAYS)
    open_session(page, session)
    field = box(page)
    write = """(field) => {
      Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(field, "not lost");
      field.dispatchEvent(new Event("input", { bubbles: true }));
      location.reload();
    }"""
    field.evaluate(write)
    expect(page.locator("body")).to_be_visible()
    expect(box(page)).to_have_value("not lost")
    stored = box(page).evaluate(
        """(field) => {
          field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
          return JSON.stringify({ ...localStorage });
        }"""
    )
    assert "not lost" not in stored
    expect_text(page, "You said: not lost")


def test_a_refused_message_is_a_draft_where_its_session_was_left(daemon: ConsoleDaemon, windows: Windows) -> None:
    windows.expect("409 \\(Conflict\\)")
    session, other = daemon.new_session(SAYS), daemon.new_session(SAYS)
    page = windows.open(f"/console/sessions/{session}")
    refused: list[Route] = []
    page.route(f"**{SESSIONS}/{session}/turns", lambda route: refused.append(route), times=1)
    box(page).fill("wait for me")
    box(page).press("Enter")
    expect(box(page)).to_have_value("")
    row(page, other).get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"{other}$"))
    expect(box(page)).to_have_value("")
    until(page, lambda: bool(refused))
    with page.expect_response(f"**{SESSIONS}/{session}/turns"):
        refused[0].fulfill(status=409, json={"error": {"message": "at work", "type": "conflict"}})
    row(page, session).get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"{session}$"))
    expect(box(page)).to_have_value("wait for me")


def test_arrow_up_brings_back_what_was_sent(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session(SAYS)
    # Of another client too.
    daemon.send(session, "first")
    daemon.send(session, "second")
    open_session(page, session)
    box(page).press("ArrowUp")
    expect(box(page)).to_have_value("second")
    box(page).press("ArrowUp")
    expect(box(page)).to_have_value("first")
    box(page).press("ArrowUp")
    expect(box(page)).to_have_value("first")
    box(page).press("ArrowDown")
    expect(box(page)).to_have_value("second")
    box(page).press("ArrowDown")
    expect(box(page)).to_have_value("")
    # In a text of its own the key moves the caret.
    box(page).fill("mine")
    box(page).press("ArrowUp")
    expect(box(page)).to_have_value("mine")


def test_writing_several_lines_leaves_the_conversation_at_its_end(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"text": "One more line.\n\n" * 60 + "The end."}])
    daemon.send(session, "go")
    open_session(page, session)
    expect(page.locator(".talk-answer")).to_contain_text("The end.")
    box(page).focus()
    for _ in range(4):
        page.keyboard.type("some words")
        page.keyboard.press("Shift+Enter")
        # The list has its new height after a frame, and an event of its scrolling after another one.
        for _ in range(3):
            page.evaluate("() => new Promise(requestAnimationFrame)")
    until(page, lambda: at_the_end(page))
    expect(page.get_by_role("button", name="To the end")).to_have_count(0)


def test_a_refused_message_stays_with_the_servers_words(daemon: ConsoleDaemon, windows: Windows) -> None:
    windows.expect("409 \\(Conflict\\)")
    session = waiting(daemon, call("Bash", {"command": "ls"}), {"wait_for_file": "refused"}, {"text": "done"})
    page = windows.open(f"/console/sessions/{session}")
    box(page).fill("and this")
    pending = daemon.session(session)["x-portico"]["pendingCalls"][0]["toolCallId"]
    answer = {"role": "tool_permission", "toolCallId": pending, "granted": True}
    # An answer of another client that the page does not know yet.
    page.route(
        f"**{SESSIONS}/{session}/turns", lambda route: (daemon.send(session, answer, wait=False), route.continue_())[1], times=1
    )
    box(page).press("Enter")
    problem = page.locator(".composer-problem")
    expect(problem).to_contain_text("this session is at work on a turn")
    expect(box(page)).to_have_value("and this")
    release(daemon, "refused")
    expect_text(page, "done")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
    box(page).press("Enter")
    expect(problem).to_have_count(0)
    expect(box(page)).to_have_value("")


def test_a_message_whose_connection_is_lost_runs_once(daemon: ConsoleDaemon, windows: Windows) -> None:
    windows.expect("ERR_FAILED|Failed to load")
    session = daemon.new_session(SAYS)
    page = windows.open(f"/console/sessions/{session}")
    keys = []

    def lose(route: object) -> None:
        """Let the server have the request, and the page no response."""
        keys.append(route.request.headers["idempotency-key"])  # type: ignore[attr-defined]
        if len(keys) < 3:
            route.fetch()  # type: ignore[attr-defined]
            route.abort()  # type: ignore[attr-defined]
        else:
            route.continue_()  # type: ignore[attr-defined]

    page.route(f"**{SESSIONS}/{session}/turns", lose)
    box(page).fill("once")
    box(page).press("Enter")
    expect_text(page, "You said: once")
    expect(page.locator(".outgoing")).to_have_count(0)
    assert len(keys) == 3 and len({*keys}) == 1
    assert users(daemon, session) == ["once"]


def test_stop_ends_the_run(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"text": "Working on it, slowly"}, {"hang": True}], SAYS)
    open_session(page, session)
    box(page).fill("go")
    box(page).press("Enter")
    expect_text(page, "Working on it")
    page.get_by_role("button", name="Stop").last.click()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert daemon.session(session)["x-portico"]["state"] == "idle"
    box(page).fill("next")
    box(page).press("Enter")
    expect_text(page, "You said: next")


def test_esc_stops_the_run(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"text": "Working on it, slowly"}, {"hang": True}])
    open_session(page, session)
    box(page).fill("go")
    box(page).press("Enter")
    expect_text(page, "Working on it")
    expect(page.get_by_role("button", name="Stop").last).to_be_visible()
    box(page).press("Escape")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert daemon.session(session)["x-portico"]["state"] == "idle"


def test_messages_are_queued_while_a_run_is_at_work(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"text": "Working on it, slowly"}, {"wait_for_file": "queued"}], SAYS)
    open_session(page, session)
    box(page).fill("go")
    box(page).press("Enter")
    expect_text(page, "Working on it")
    box(page).fill("one more")
    box(page).press("Enter")
    expect(page.locator(".outgoing")).to_contain_text("Queued")
    box(page).fill("and another")
    page.get_by_role("button", name="Queue").click()
    expect(page.locator(".outgoing")).to_have_count(2)
    # They are in the daemon: they stay when the window is closed.
    page.reload()
    expect(page.locator(".outgoing")).to_have_count(2)
    release(daemon, "queued")
    expect_text(page, "You said: and another")
    expect(page.locator(".outgoing")).to_have_count(0)
    assert users(daemon, session) == ["go", "one more", "and another"]


def queue_message(page: Page, text: str) -> Locator:
    """Queue a message behind the run at work, and return what the conversation shows of it."""
    box(page).fill(text)
    page.get_by_role("button", name="Queue", exact=True).click()
    found = page.locator(".queued", has_text=text)
    expect(found).to_contain_text("Queued")
    return found


def test_queued_messages_are_edited_moved_and_removed(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"text": "Working on it, slowly"}, {"wait_for_file": "edited"}], SAYS)
    open_session(page, session)
    box(page).fill("go")
    box(page).press("Enter")
    expect_text(page, "Working on it")
    for text in ("the first", "the second", "the third"):
        queue_message(page, text)
    page.locator(".queued", has_text="the third").get_by_role("button", name="Earlier").click()
    expect(page.locator(".queued .prompt-text")).to_have_text(["the first", "the third", "the second"])
    page.locator(".queued", has_text="the third").get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Queued message").fill("in other words")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".queued .prompt-text")).to_have_text(["the first", "in other words", "the second"])
    page.locator(".queued", has_text="the first").get_by_role("button", name="Remove").click()
    expect(page.locator(".queued .prompt-text")).to_have_text(["in other words", "the second"])
    release(daemon, "edited")
    expect_text(page, "You said: the second")
    expect(page.locator(".queued")).to_have_count(0)
    assert users(daemon, session) == ["go", "in other words", "the second"]


def test_a_stopped_queue_goes_on(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"text": "Working on it, slowly"}, {"hang": True}], SAYS)
    open_session(page, session)
    box(page).fill("go")
    box(page).press("Enter")
    expect_text(page, "Working on it")
    queue_message(page, "kept")
    page.get_by_role("button", name="Stop").last.click()
    expect(page.locator(".queue-stopped")).to_contain_text("the run was cancelled")
    expect(page.locator(".queued")).to_contain_text("waits until you go on")
    assert daemon.session(session)["x-portico"]["queueStopped"] == "cancelled"
    page.get_by_role("button", name="Go on", exact=True).click()
    expect_text(page, "You said: kept")
    expect(page.locator(".queue-stopped")).to_have_count(0)


def held(page: Page) -> list[Route]:
    """The requests of this window that begin turns or answer calls. They are held here until the test continues them."""
    found: list[Route] = []
    page.route(
        re.compile("/(turns|queue)$"), lambda route: found.append(route) if route.request.method == "POST" else route.continue_()
    )
    return found


def test_a_message_is_queued_behind_a_run_that_another_client_has_just_begun(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"text": "Working on it, slowly"}, {"wait_for_file": "other-client"}], SAYS)
    open_session(page, session)
    requests = held(page)
    box(page).fill("one more")
    box(page).press("Enter")
    until(page, lambda: bool(requests))
    daemon.send(session, "go", wait=False)
    expect_text(page, "Working on it")
    requests[0].continue_()
    expect(page.locator(".outgoing")).to_contain_text("Queued")
    release(daemon, "other-client")
    expect_text(page, "You said: one more")
    assert users(daemon, session) == ["go", "one more"]


@pytest.mark.parametrize("preferred", ["Queue", "Steer"])
def test_a_message_does_not_cancel_calls_whose_answers_are_being_sent(daemon: ConsoleDaemon, page: Page, preferred: str) -> None:
    step = call("Bash", {"command": "ls"}, result="a file")
    answered = f"answered-{preferred}"
    session = daemon.new_session([step, {"wait_for_file": answered}, {"text": "It has run."}], SAYS)
    daemon.send(session, "go")
    open_session(page, session)
    page.get_by_role("button", name="How messages are sent").click()
    page.get_by_role("menuitemradio", name=preferred).click()
    requests = held(page)
    ready(page).locator("[data-kind=allow_once]").click()
    until(page, lambda: bool(requests))
    box(page).fill("and then this")
    expect(page.get_by_role("button", name="Queue")).to_be_visible()
    expect(page.get_by_role("button", name="Steer")).to_have_count(0)
    box(page).press("Enter")
    until(page, lambda: len(requests) == 2)
    for request in requests:
        request.continue_()
    expect(page.locator(".outgoing")).to_contain_text("Queued")
    release(daemon, answered)
    expect_text(page, "It has run.")
    expect_text(page, "You said: and then this")
    assert users(daemon, session) == ["go", "and then this"]


def test_a_queued_message_is_taken_back(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"text": "Working on it, slowly"}, {"wait_for_file": "taken-back"}, {"text": " Done."}], SAYS)
    open_session(page, session)
    box(page).fill("go")
    box(page).press("Enter")
    expect_text(page, "Working on it")
    box(page).fill("no, not this")
    box(page).press("Enter")
    expect(page.locator(".outgoing")).to_contain_text("Queued")
    page.locator(".outgoing").get_by_role("button", name="Remove").click()
    expect(page.locator(".outgoing")).to_have_count(0)
    until(page, lambda: daemon.session(session)["x-portico"]["queued"] == 0)
    release(daemon, "taken-back")
    expect_text(page, "Done.")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert users(daemon, session) == ["go"]


def test_a_message_steers_the_run(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session(
        [{"text": "Working on it, slowly"}, {"wait_for_file": "steered"}, {"text": " Steered: {steered}"}]
    )
    open_session(page, session)
    box(page).fill("go")
    box(page).press("Enter")
    expect_text(page, "Working on it")
    box(page).fill("to the left")
    page.get_by_role("button", name="Steer").click()
    expect(page.locator(".outgoing")).to_have_count(0)
    expect_text(page, "to the left")
    release(daemon, "steered")
    expect_text(page, "Steered: to the left")


def test_what_enter_does_during_a_run_is_a_setting(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session(
        [{"text": "Working on it, slowly"}, {"wait_for_file": "setting"}, {"text": " Steered: {steered}"}]
    )
    open_session(page, session)
    page.get_by_role("button", name="How messages are sent").click()
    page.get_by_role("menuitemradio", name="Steer").click()
    box(page).fill("go")
    box(page).press("Enter")
    expect_text(page, "Working on it")
    expect(box(page)).to_have_attribute("placeholder", "Tell the agent at work")
    box(page).fill("now")
    box(page).press("Enter")
    expect(page.locator(".outgoing")).to_have_count(0)
    release(daemon, "setting")
    expect_text(page, "Steered: now")


def test_a_message_instead_of_an_answer_cancels_the_calls(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"tool_call": {"name": "Bash", "ask": True, "input": {"command": "ls"}}}], SAYS)
    daemon.send(session, "go")
    open_session(page, session)
    expect(box(page)).to_have_attribute("placeholder", "A message cancels the call that waits. Esc: answer by keys")
    expect(box(page)).not_to_be_focused()
    box(page).fill("something else")
    box(page).press("Enter")
    expect_text(page, "You said: something else")
    expect(page.locator(".approval")).to_have_count(0)


def test_a_message_of_one_window_is_in_the_other(daemon: ConsoleDaemon, windows: Windows) -> None:
    session = daemon.new_session(SAYS)
    one, other = windows.open(f"/console/sessions/{session}"), windows.open(f"/console/sessions/{session}")
    expect(box(other)).to_be_visible()
    box(one).fill("to both")
    box(one).press("Enter")
    for page in (one, other):
        expect_text(page, "You said: to both")
    for page in (one, other):
        expect(page.get_by_role("article", name="Your message")).to_have_count(1)
