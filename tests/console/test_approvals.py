"""Calls that wait for permission: their cards, and the answers by mouse and keys, in one window and in two."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import SESSIONS, ConsoleDaemon
from tests.console.waiting_sessions import allowable, call, cards, choose, expect_result, open_session, ready, reject, waiting

RULE = {"id": "rule", "name": "Always allow `git push *`", "kind": "allow_always"}


def test_a_card_has_the_exact_command_and_what_cannot_be_seen(daemon: ConsoleDaemon, page: Page) -> None:
    given = {"command": "git push\n\u202etxet\u200b --force", "description": "Publishes the branch", "timeout": 5}
    session = waiting(daemon, call("Bash", given))
    open_session(page, session)
    card = ready(page)
    expect(card.get_by_role("heading")).to_have_accessible_name("Bash asks for permission")
    expect(card.locator(".exact-block pre").first).to_have_text("git push\nU+202EtxetU+200B --force")
    expect(card.locator(".approval-comment")).to_have_text("Publishes the branch")
    expect(card.locator(".approval-fields")).to_contain_text("timeout")
    card.get_by_text("Full input").click()
    expect(card.locator(".approval-json pre")).to_contain_text('"description": "Publishes the branch"')


def test_an_edit_is_a_diff(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, call("Edit", {"file_path": "a.py", "old_string": "one = 1\n", "new_string": "one = 2\n"}))
    open_session(page, session)
    card = ready(page)
    expect(card).to_contain_text("a.py")
    expect(card).to_contain_text("one = 1")
    expect(card).to_contain_text("one = 2")
    expect(card.locator(".approval-fields")).to_have_count(0)


HIDDEN = "rm -rf /"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("Edit", {"file_path": "a.py", "old_string": "a", "new_string": "b", "content": HIDDEN}),
        ("Edit", {"file_path": "a.py", "old_string": "a", "new_string": "b" * 400_000 + "\n" + HIDDEN}),
        ("MultiEdit", {"file_path": "a.py", "edits": [{"old_string": "a", "new_string": "b", "then": HIDDEN}]}),
        ("create_note", {"path": "a.md", "content": "a note", "text": HIDDEN}),
        ("Patch", {"changes": [{"path": "a.py", "new_text": "a"}, {"file": HIDDEN}]}),
        ("Patch", {"path": HIDDEN, "changes": [{"path": "a.py", "new_text": "a"}]}),
        ("Run", {"command": ["ls"], "cmd": HIDDEN}),
    ],
)
def test_a_card_leaves_nothing_of_the_input_out(daemon: ConsoleDaemon, page: Page, name: str, given: dict[str, Any]) -> None:
    open_session(page, waiting(daemon, call(name, given)))
    expect(ready(page).locator(".approval-input > :not(details)").get_by_text(HIDDEN).first).to_be_visible()


@pytest.mark.parametrize(
    ("name", "result"),
    [("Allow", "Result: ran"), ("Reject", "Result: Tool call denied")],
)
def test_an_answer_by_mouse(daemon: ConsoleDaemon, page: Page, name: str, result: str) -> None:
    session = waiting(daemon, call("Bash", {"command": "ls"}, result="ran"))
    open_session(page, session)
    card = ready(page)
    card.get_by_role("button", name=name).click()
    if name == "Reject":
        # With a reason, or without.
        expect(card.get_by_label("Reason, which the agent reads")).to_be_focused()
        card.get_by_role("button", name="Reject").click()
    expect_result(daemon, page, session, result)
    expect(page.get_by_role("main")).to_contain_text(result)


def test_the_key_y_allows_once(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, call("Bash", {"command": "ls"}, result="ran"))
    open_session(page, session)
    ready(page)
    page.keyboard.press("y")
    expect_result(daemon, page, session, "Result: ran")


def test_the_answers_are_allow_always_and_reject(daemon: ConsoleDaemon, page: Page) -> None:
    """No single key makes a choice that holds for later calls: `a` opens the menu that says what they are."""
    own = [RULE, {"id": "mode", "name": "Yes, and use auto mode\u202e", "kind": "allow_always"}]
    steps = [call("Bash", {"command": "git push"}, id="push", choices=own, result="ran"), {"text": "chosen: {choices.push}"}]
    session = daemon.new_session(steps)
    daemon.send(session, "push")
    open_session(page, session)
    card = ready(page)
    expect(card.locator(".approval-actions button")).to_have_text(
        [re.compile(f"^{name}") for name in ("Allow", "Always", "Reject")]
    )
    page.keyboard.press("a")
    expect(page.get_by_role("menuitem")).to_have_text(
        ["Always allow `git push *`", "Yes, and use auto modeU+202E", "Always allow Bash in this session"]
    )
    for key in ("a", "y", "1"):
        page.keyboard.press(key)
    assert daemon.session(session)["x-portico"]["state"] == "waiting"
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect_result(daemon, page, session, "chosen: rule")


def test_a_plan_is_not_approved_into_another_mode_by_a_key(daemon: ConsoleDaemon, page: Page) -> None:
    own = [
        {"id": "mode:autoMode", "name": "Yes, and use auto mode", "kind": "allow_always"},
        {"id": "mode:default", "name": "Yes, manually approve edits", "kind": "allow_once"},
        {"id": "mode:read-only", "name": "Yes, and approve each change", "kind": "allow_once"},
        {"id": "keep", "name": "No, keep planning", "kind": "reject_once"},
    ]
    steps = [call("ExitPlanMode", {"plan": "# Do it"}, id="plan", choices=own), {"text": "chosen: {choices.plan}"}]
    session = daemon.new_session(steps)
    daemon.send(session, "plan")
    open_session(page, session)
    card = ready(page)
    names = ("Yes, manually approve edits", "Others", "Reject")
    expect(card.locator(".approval-actions button")).to_have_text([re.compile(f"^{name}") for name in names])
    card.locator(".approval-others").click()
    expect(page.get_by_role("menuitem")).to_have_text(["Yes, and use auto mode", "Yes, and approve each change"])
    page.keyboard.press("Escape")
    page.keyboard.press("y")
    expect_result(daemon, page, session, "chosen: mode:default")


def test_always_this_tool_trusts_it_in_the_session(daemon: ConsoleDaemon, page: Page) -> None:
    note = {"tool_call": {"name": "write_note", "input": {"path": "a", "text": "b"}, "result": "written"}}
    turn = [note, {"text": "{last_result}"}]
    session = daemon.new_session(turn, turn, agent_fields={"tools": [{"name": "write_note"}]})
    daemon.send(session, "write")
    open_session(page, session)
    choose(ready(page), "Always allow write_note in this session")
    expect_result(daemon, page, session, "written")
    assert daemon.session(session)["agent"]["tools"] == [{"name": "write_note", "trust": True}]
    assert daemon.send(session, "again")["stopReason"] == "end_turn"


def test_never_this_tool_disables_it(daemon: ConsoleDaemon, page: Page) -> None:
    note = {"tool_call": {"name": "write_note", "input": {"path": "a", "text": "b"}}}
    session = waiting(daemon, note, agent_fields={"tools": [{"name": "write_note"}, {"name": "lookup"}]})
    open_session(page, session)
    choose(ready(page), "Never allow write_note in this session")
    expect_result(daemon, page, session, "Result: Tool call denied")
    assert daemon.session(session)["agent"]["tools"] == [{"name": "lookup", "trust": False}]


def test_the_key_n_asks_for_the_reason_that_the_agent_reads(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, call("Bash", {"command": "rm -rf build"}))
    open_session(page, session)
    ready(page)
    page.keyboard.press("n")
    field = page.get_by_label("Reason, which the agent reads")
    expect(field).to_be_focused()
    # The keys are text here.
    page.keyboard.type("nay, ask me first")
    expect(field).to_have_value("nay, ask me first")
    page.keyboard.press("Enter")
    expect_result(daemon, page, session, "Result: Tool call denied: nay, ask me first")


def test_letters_right_behind_n_are_the_reason(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, call("Bash", {"command": "rm -rf build"}))
    open_session(page, session)
    ready(page)
    throttle = page.context.new_cdp_session(page)
    throttle.send("Emulation.setCPUThrottlingRate", {"rate": 20})
    page.keyboard.type("nay, any yak")
    expect(page.get_by_label("Reason, which the agent reads")).to_have_value("ay, any yak")
    throttle.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    page.keyboard.press("Enter")
    expect_result(daemon, page, session, "Result: Tool call denied: ay, any yak")


def test_keys_in_the_message_are_text_and_esc_goes_to_the_card(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, call("Bash", {"command": "ls"}, result="ran"))
    open_session(page, session)
    ready(page)
    box = page.get_by_role("textbox", name="Message")
    box.click()
    page.keyboard.type("yan")
    expect(box).to_have_value("yan")
    assert daemon.session(session)["x-portico"]["state"] == "waiting"
    page.keyboard.press("Escape")
    expect(cards(page)).to_be_focused()
    assert daemon.session(session)["x-portico"]["state"] == "waiting"
    page.keyboard.press("y")
    expect_result(daemon, page, session, "Result: ran")


def test_a_card_that_appears_does_not_take_the_focus_of_the_message(daemon: ConsoleDaemon, page: Page) -> None:
    """Somebody who begins to write "yes, but" at that moment approves nothing."""
    session = daemon.new_session(
        [{"wait_for_file": "ask"}, call("Bash", {"command": "ls"}, result="ran"), {"text": "Result: {last_result}"}]
    )
    open_session(page, session)
    box = page.get_by_role("textbox", name="Message")
    box.fill("go")
    box.press("Enter")
    expect(page.get_by_role("button", name="Stop").last).to_be_visible()
    # So long that the field seems to be left.
    page.wait_for_timeout(1200)
    (daemon.scenes / "ask").touch()
    ready(page)
    expect(box).to_be_focused()
    page.keyboard.type("yes, but")
    expect(box).to_have_value("yes, but")
    assert daemon.session(session)["x-portico"]["state"] == "waiting"


def test_calls_of_one_stop_are_answered_together(daemon: ConsoleDaemon, page: Page) -> None:
    calls = [call("Bash", {"command": f"echo {n}"}, id=f"call{n}", result=f"ran {n}") for n in range(3)]
    session = daemon.new_session([{"parallel": calls}, {"text": "{results.call0}, {results.call1}, {results.call2}"}])
    daemon.send(session, "go")
    open_session(page, session)
    ready(page, 3)
    expect(page.locator(".approval.is-current")).to_have_attribute("data-call", "call0")
    page.keyboard.press("y")
    expect(page.locator(".approval.is-answered")).to_have_attribute("data-call", "call0")
    expect(page.locator(".approval.is-answered")).to_contain_text("Allowed · waits for the other answers")
    assert daemon.session(session)["x-portico"]["state"] == "waiting"
    # The keys are for the next card now.
    expect(page.locator(".approval.is-current")).to_have_attribute("data-call", "call1")
    page.keyboard.press("n")
    page.keyboard.type("not this")
    page.keyboard.press("Enter")
    expect(page.get_by_role("group", name="All calls")).to_contain_text("2 answered")
    # An answer can be changed until all are sent.
    ready(page, 3)
    page.locator(".approval[data-call=call0]").get_by_role("button", name="Change").click()
    reject(page.locator(".approval[data-call=call0]"))
    # For 0.35 s after an answer nothing is allowed.
    page.wait_for_timeout(500)
    ready(page, 3)
    page.locator(".approval[data-call=call2]").get_by_role("button", name="Allow", exact=False).first.click()
    expect_result(daemon, page, session, "Tool call denied, Tool call denied: not this, ran 2")


def test_keys_answer_only_what_is_in_view(daemon: ConsoleDaemon, page: Page) -> None:
    long = "\n".join(f"echo {line}" for line in range(15))
    calls = [call("Bash", {"command": long}, id=f"call{n}", result=f"ran {n}") for n in range(4)]
    session = daemon.new_session([{"parallel": calls}, {"text": "{results.call0}"}])
    daemon.send(session, "go")
    open_session(page, session)
    ready(page, 4)
    # The conversation is at its end, and the first card, which the keys answer, is above.
    first = page.locator(".approval[data-call=call0]")
    expect(first).to_have_class(re.compile("is-current"))
    expect(first.locator("[data-kind=allow_once]")).not_to_be_in_viewport()
    page.keyboard.press("y")
    expect(first.locator("[data-kind=allow_once]")).to_be_in_viewport()
    expect(page.locator(".approval.is-answered")).to_have_count(0)
    allowable(first)
    page.keyboard.press("y")
    expect(page.locator(".approval.is-answered")).to_have_attribute("data-call", "call0")


def test_all_calls_are_allowed_at_once(daemon: ConsoleDaemon, page: Page) -> None:
    calls = [call("Bash", {"command": f"echo {n}"}, id=f"call{n}", result=f"ran {n}") for n in range(3)]
    session = daemon.new_session([{"parallel": calls}, {"text": "{results.call0}, {results.call1}, {results.call2}"}])
    daemon.send(session, "go")
    open_session(page, session)
    ready(page, 3)
    page.get_by_role("button", name="Allow all 3").click()
    expect_result(daemon, page, session, "ran 0, ran 1, ran 2")


def test_an_answer_of_another_client_is_shown_at_once(daemon: ConsoleDaemon, windows: Windows) -> None:
    session = waiting(daemon, call("Bash", {"command": "ls"}, id="ls", result="ran"))
    one, other = windows.open(f"/console/sessions/{session}"), windows.open("/console/inbox")
    ready(one)
    expect(other.locator(f".inbox-session:has(a[href$='{session}']) .approval[data-ready=true]")).to_have_count(1)
    one.keyboard.press("y")
    expect(other.locator(f".inbox-session:has(a[href$='{session}'])")).to_have_count(0)
    expect(cards(one)).to_have_count(0)
    later = waiting(daemon, call("Bash", {"command": "ls"}, id="ls"))
    open_session(one, later)
    ready(one)
    answer: dict[str, Any] = {"role": "tool_permission", "toolCallId": "ls", "granted": False}
    daemon.send(later, answer)
    expect(cards(one)).to_have_count(0)


def test_an_answer_that_came_too_late_shows_the_servers_words(daemon: ConsoleDaemon, windows: Windows) -> None:
    windows.expect("400 \\(Bad Request\\)")
    session = waiting(daemon, call("Bash", {"command": "ls"}, id="ls"))
    page = windows.open(f"/console/sessions/{session}")
    ready(page)
    # The window does not learn of the other client's answer before it sends its own.
    page.route(f"**{SESSIONS}/{session}/turns", lambda route: (answer_as_another(daemon, session), route.continue_())[1])
    page.keyboard.press("y")
    notice = page.locator(".approvals [role=alert]")
    expect(notice).to_contain_text("The answer was not taken")
    expect(notice).to_contain_text("is answered already; nothing was done twice")
    expect(cards(page)).to_have_count(0)
    notice.get_by_role("button", name="Dismiss").click()
    expect(notice).to_have_count(0)


def answer_as_another(daemon: ConsoleDaemon, session: str) -> None:
    daemon.send(session, {"role": "tool_permission", "toolCallId": "ls", "granted": False})


def test_answers_that_did_not_reach_the_server_are_sent_again(daemon: ConsoleDaemon, windows: Windows) -> None:
    windows.expect("ERR_FAILED|ERR_CONNECTION|Failed to load")
    session = waiting(daemon, call("Bash", {"command": "ls"}, result="ran"))
    page = windows.open()
    page.route(f"**{SESSIONS}/{session}/turns", lambda route: route.abort())
    open_session(page, session)
    ready(page)
    page.keyboard.press("y")
    notice = page.locator(".approvals [role=alert]")
    expect(notice).to_contain_text("cannot be reached")
    page.unroute(f"**{SESSIONS}/{session}/turns")
    notice.get_by_role("button", name="Send again").click()
    expect_result(daemon, page, session, "Result: ran")


def test_a_card_takes_no_answer_right_after_it_has_appeared(daemon: ConsoleDaemon, page: Page) -> None:
    """A click or key that was meant for something else does not answer it."""
    steps = [call("Bash", {"command": "one"}, id="one"), call("Bash", {"command": "two"}, id="two")]
    session = waiting(daemon, *steps)
    open_session(page, session)
    ready(page)
    # In the same task as the second card appears.
    page.evaluate(
        """() => new MutationObserver((_, observer) => {
          if (!document.querySelector(".approval[data-call=two]")) return
          observer.disconnect()
          const card = document.querySelector(".approval[data-call=two]")
          window.early = card.dataset.ready
          card.querySelector("[data-kind=allow_once]").click()
          document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "y", bubbles: true}))
        }).observe(document.body, {subtree: true, childList: true})"""
    )
    page.keyboard.press("y")
    expect(page.locator(".approval[data-call=two][data-ready=true]")).to_be_visible()
    assert page.evaluate("window.early") == "false"
    state = daemon.session(session)["x-portico"]
    assert [one["toolCallId"] for one in state["pendingCalls"]] == ["two"]


def test_a_second_press_of_a_key_does_not_answer_the_next_card(daemon: ConsoleDaemon, windows: Windows) -> None:
    """The card below takes the place of one that was answered, and its keys."""
    first = waiting(daemon, call("Bash", {"command": "one"}, id="one", result="ran"))
    second = waiting(daemon, call("Bash", {"command": "two"}, id="two", result="ran"))
    page = windows.open("/console/inbox")
    # Other tests have left sessions that wait.
    one, two = (page.locator(f".inbox-session:has(a[href$='{session}']) .approval") for session in (first, second))
    expect(two.and_(page.locator("[data-ready=true]"))).to_be_visible()
    one.focus()
    allowable(one)
    # In one call: the second press is to come right after the first.
    page.keyboard.type("yy")
    expect(one).to_have_count(0)
    expect(two.and_(page.locator("[data-ready=true]"))).to_be_visible()
    expect(two.and_(page.locator(".is-answered"))).to_have_count(0)
    assert daemon.session(second)["x-portico"]["state"] == "waiting"
    two.focus()
    allowable(two)
    page.keyboard.press("y")
    expect_idle(daemon, page, second)


def expect_idle(daemon: ConsoleDaemon, page: Page, session: str) -> None:
    """Wait until a session's turn has ended."""
    expect(page.locator(f".inbox-session:has(a[href$='{session}'])")).to_have_count(0)
    assert daemon.session(session)["x-portico"]["state"] != "waiting"


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString"])
def test_ids_of_calls_may_be_names_that_objects_have(daemon: ConsoleDaemon, page: Page, name: str) -> None:
    session = waiting(daemon, call("Bash", {"command": "ls"}, id=name, result="ran"))
    open_session(page, session)
    expect(ready(page)).not_to_have_class(re.compile("is-answered"))
    page.keyboard.press("y")
    expect_result(daemon, page, session, "Result: ran")


def test_all_calls_are_allowed_once_only(daemon: ConsoleDaemon, page: Page) -> None:
    """A call that can only be allowed for ever is not among those that one button allows."""
    always = [{"id": "always", "name": "Always", "kind": "allow_always"}, {"id": "no", "name": "No", "kind": "reject_once"}]
    calls = [call("Bash", {"command": f"echo {n}"}, id=f"call{n}") for n in range(2)]
    calls.append(call("Bash", {"command": "echo 2"}, id="call2", choices=always))
    session = daemon.new_session([{"parallel": calls}, {"text": "done"}])
    daemon.send(session, "go")
    open_session(page, session)
    ready(page, 3)
    page.get_by_role("button", name="Allow the other 2").click()
    expect(page.locator(".approval.is-answered")).to_have_count(2)
    expect(page.locator(".approval[data-call=call2]")).not_to_have_class(re.compile("is-answered"))
