"""A conversation as its reader sees it: items live and after a reload, and what can be done with them."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.conversations import open_conversation
from tests.console.session_rows import until

DIFFERENT = "def a():\n    return 1\n", "def a():\n    return 2\n\n\ndef b():\n    pass\n"


def sent_prompts(page: Page) -> list[str]:
    return page.locator(".talk-prompt .prompt-text").all_inner_texts()


def reloaded(page: Page) -> Page:
    page.reload()
    expect(page.locator(".conversation .talk-list")).to_be_visible()
    return page


def test_a_turn_live_and_after_a_reload(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session(
        [
            {"thinking": "Let me look around."},
            {"text": "I **look**:\n\n```python\nprint('hi')\n```"},
            {"message_end": {}},
            {"tool_call": {"id": "ls", "name": "Bash", "input": {"command": "ls -la"}, "result": "\u001b[32mgreen\u001b[0m.txt"}},
            {
                "tool_call": {
                    "id": "ed",
                    "name": "Edit",
                    "input": {"file_path": "/w/main.py", "old_string": DIFFERENT[0], "new_string": DIFFERENT[1]},
                    "result": "ok",
                }
            },
            {"tool_call": {"id": "no", "name": "Read", "input": {"file_path": "/w/none.txt"}, "error": "No such file"}},
            {"plan": [{"content": "Look", "status": "completed"}, {"content": "Change", "status": "in_progress"}]},
            {
                "subagent": {
                    "label": "Find callers",
                    "steps": [{"tool_call": {"name": "Grep", "input": {"pattern": "def a"}, "result": "3 hits"}}],
                }
            },
            {"text": "All done."},
            {"usage": {"input_tokens": 1200, "output_tokens": 300, "cost_usd": 0.5}},
        ]
    )
    page = open_conversation(windows, session)
    daemon.send(session, "Please fix it")
    for again in (False, True):
        if again:
            reloaded(page)
        expect(page.locator(".talk-answer", has_text="All done.")).to_be_visible()
        expect(page.locator(".talk-prompt")).to_have_text(re.compile("Please fix it"))
        expect(page.locator(".talk-answer strong").first).to_have_text("look")
        # Code is coloured when it is near the visible part of the page.
        page.locator("figure.code").first.scroll_into_view_if_needed()
        expect(page.locator("figure.code .hljs-string").first).to_have_text("'hi'")
        shell = page.locator("[data-call=ls]")
        expect(shell.locator(".tool-subject")).to_have_text("ls -la")
        expect(shell.locator(".tool-state")).to_have_text("Done")
        expect(shell.locator(".ansi-green")).to_have_text("green")
        edit = page.locator("[data-call=ed]")
        expect(edit.locator("tr.removed .diff-text")).to_have_text("    return 1")
        expect(edit.locator(".diff-counts")).to_have_text("+5\u22121")
        expect(page.locator("[data-call=no] .tool-state")).to_have_text("Failed")
        expect(page.locator("[data-call=no] .tool-error")).to_contain_text("No such file")
        expect(page.locator(".talk-plan")).to_contain_text("1 of 2 done")
        expect(page.locator(".tool .tool-children .tool", has_text="Grep")).to_contain_text("3 hits")
        expect(page.locator(".run-end")).to_contain_text("1.2k in, 300 out")
        expect(page.locator(".run-end")).to_contain_text("$0.50")
        expect(page.locator(".session-usage")).to_contain_text("1.5k tokens")
    # Thinking is folded, and opens.
    thought = page.get_by_role("button", name=re.compile("Thought"))
    expect(thought).to_have_attribute("aria-expanded", "false")
    thought.click()
    expect(page.locator(".thinking-text")).to_have_text(re.compile("Let me look around."))


def test_a_diff_side_by_side(windows: Windows, daemon: ConsoleDaemon) -> None:
    given = {"file_path": "/w/main.py", "old_string": DIFFERENT[0], "new_string": DIFFERENT[1]}
    session = daemon.new_session([{"tool_call": {"id": "ed", "name": "Edit", "input": given}}])
    daemon.send(session, "go")
    page = open_conversation(windows, session)
    page.get_by_role("button", name="Split").click()
    replaced = page.locator(".diff-lines.split tr", has=page.locator("td.removed")).locator(".diff-text")
    expect(replaced).to_have_text(["    return 1", "    return 2"])
    assert page.locator(".diff mark").all_inner_texts() == ["1", "2"]
    # The choice is that of the browser, for all diffs.
    expect(reloaded(page).locator(".diff-lines.split")).to_be_visible()


def test_live_output_and_cancel_by_esc(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session(
        [{"text": "I wait."}, {"tool_call": {"id": "c", "name": "Bash", "input": {"command": "sleep"}, "takes": 300}}]
    )
    page = open_conversation(windows, session)
    daemon.send(session, "go", wait=False)
    card = page.locator("[data-call=c]")
    expect(card.locator(".tool-state")).to_have_text("Running")
    expect(page.locator(".session-state")).to_have_text("Running")
    page.locator(".talk-list").click(position={"x": 5, "y": 5})
    page.keyboard.press("Escape")
    expect(page.locator(".run-end")).to_contain_text("Cancelled.")
    expect(card.locator(".tool-state")).to_have_text("Cancelled")
    expect(page.locator(".session-state")).to_have_text("Idle")
    assert daemon.session(session)["x-portico"]["state"] == "idle"


def test_an_error_says_what_to_do_and_is_retried(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session(
        [{"stop": {"reason": "error", "message": "429: the model is overloaded"}}], [{"text": "Now it works: {prompt}"}]
    )
    page = open_conversation(windows, session)
    daemon.send(session, "Try this")
    error = page.locator(".talk-failure")
    # Whose error it is depends: the heading blames nobody.
    expect(error.get_by_role("heading")).to_have_text("This run failed")
    expect(error).to_contain_text("429: the model is overloaded")
    expect(error).to_contain_text("Wait a moment")
    error.get_by_role("button", name="Retry").click()
    expect(page.locator(".talk-answer")).to_have_text("Now it works: Try this")
    expect(error.get_by_role("button", name="Retry")).to_have_count(0)
    assert sent_prompts(page) == ["Try this", "Try this"]


def test_edit_and_resend_is_a_new_session(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "One to {prompt}"}], [{"text": "Two to {prompt}"}])
    daemon.send(session, "first")
    daemon.send(session, "second")
    page = open_conversation(windows, session)
    second = page.locator(".talk-prompt", has_text="second")
    second.hover()
    second.get_by_role("button", name="Edit and resend").click()
    field = page.get_by_role("textbox", name="Message", exact=True).first
    field.fill("another second")
    page.get_by_role("button", name="Send in a new session", exact=True).click()
    expect(page.locator(".talk-answer", has_text="Two to another second")).to_be_visible()
    assert sent_prompts(page) == ["first", "another second"]
    assert session not in page.url
    # The session that it came from is as it was.
    page.goto(f"/console/sessions/{session}")
    expect(page.locator(".talk-answer", has_text="Two to second")).to_be_visible()
    assert sent_prompts(page) == ["first", "second"]


def test_the_field_of_an_edited_message_has_the_cursor_when_it_appears(windows: Windows, daemon: ConsoleDaemon) -> None:
    """Else the text of a user who selects all and types at once is put after the old one."""
    session = daemon.new_session([{"text": "One to {prompt}"}])
    daemon.send(session, "first")
    page = open_conversation(windows, session)
    edit = page.get_by_role("button", name="Edit and resend")
    cursor = edit.evaluate(
        """button => new Promise((resolve) => {
            new MutationObserver(() => {
                const field = document.querySelector(".talk-prompt.editing textarea");
                if (field) resolve(document.activeElement === field ? field.selectionStart : null);
            }).observe(document.body, { childList: true, subtree: true });
            button.click();
        })"""
    )
    assert cursor == len("first")


def test_regenerate_the_first_answer_and_fork(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "Answer {turn} to {prompt}"}])
    daemon.send(session, "hello")
    page = open_conversation(windows, session)
    page.get_by_role("button", name="Regenerate").click()
    page.wait_for_url(lambda url: session not in url)
    expect(page.locator(".talk-answer", has_text="Answer 1 to hello")).to_be_visible()
    assert sent_prompts(page) == ["hello"]
    again = page.url
    page.locator(".run-end").get_by_role("button", name="Fork").click()
    page.wait_for_url(lambda url: url != again)
    expect(page.locator(".talk-answer", has_text="Answer 1 to hello")).to_be_visible()
    assert sent_prompts(page) == ["hello"]


def test_steered_messages_are_marked(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "Working on it"}, {"wait_for_file": "go-on"}, {"text": " You added: {steered}"}])
    page = open_conversation(windows, session)
    daemon.send(session, "start", wait=False)
    expect(page.locator(".talk-answer", has_text="Working on")).to_be_visible()
    daemon.send(session, "and this", wait=False, when_busy="steer")
    steered = page.locator(".talk-prompt.steered")
    expect(steered).to_contain_text("and this")
    expect(steered).to_contain_text("Sent while the agent was working")
    (daemon.scenes / "go-on").touch()
    expect(page.locator(".talk-answer", has_text="You added: and this")).to_be_visible()


def test_notices_of_a_session(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session(
        [
            {"text": "Before."},
            {"compact": "We talked about tea."},
            {"hook": "format"},
            {"line": "npm WARN old"},
            {"text": "After."},
            {"stop": "max_tokens"},
        ]
    )
    page = open_conversation(windows, session)
    daemon.send(session, "go")
    expect(page.locator(".run-end")).to_contain_text("limit of tokens")
    page.get_by_role("button", name="Show the summary").click()
    expect(page.locator(".talk-compaction")).to_contain_text("We talked about tea.")
    expect(page.locator(".talk-note", has_text="Hook format")).to_be_visible()
    expect(page.locator(".talk-raw")).to_contain_text("npm WARN old")


def test_messages_that_a_session_began_with(windows: Windows, daemon: ConsoleDaemon) -> None:
    history = [
        {"role": "user", "content": f"Question {number}"} if number % 2 else {"role": "assistant", "content": f"Answer {number}"}
        for number in range(1, 301)
    ]
    session = daemon.new_session([{"text": "And on."}], messages=history)
    daemon.send(session, "go on")
    page = open_conversation(windows, session)
    expect(page.locator(".talk-answer", has_text="And on.")).to_be_visible()
    page.locator(".talk-list").hover()
    first = page.locator(".prompt-text", has_text=re.compile("^Question 1$"))
    until(page, lambda: (page.mouse.wheel(0, -3000), first.count() > 0)[1])
    expect(first).to_be_visible()


def test_copy_of_code_and_of_messages(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "Use:\n\n```sh\nmake test\n```\n\nThat is all."}])
    daemon.send(session, "How?")
    page = open_conversation(windows, session, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy sh code").click()
    expect(page.locator(".code-copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "make test"
    page.get_by_role("button", name="Copy answer").click()
    expect(page.get_by_role("button", name="Copied").first).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "Use:\n\n```sh\nmake test\n```\n\nThat is all."


def test_a_result_of_the_search_leads_to_its_place(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "Answer {turn}.\n\n" + "More of it.\n\n" * 20}])
    for number in range(30):
        daemon.send(session, f"Prompt {number}")
    log = daemon.api.get(f"/aap/v3/sessions/{session}/log?merge=true&limit=5000").json()["events"]
    wanted = next(
        entry["id"]
        for entry in log
        if entry["event"]["kind"] == "turn_start" and entry["event"]["messages"][0]["content"] == "Prompt 4"
    )
    page = windows.open(f"/console/sessions/{session}?seq={wanted}", viewport={"width": 1440, "height": 900})
    expect(page.locator(".prompt-text", has_text=re.compile("^Prompt 4$"))).to_be_in_viewport()


def test_a_daemon_that_is_killed_in_the_middle(windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect("ERR_CONNECTION|ERR_INCOMPLETE|Failed to load|ERR_EMPTY")
    session = daemon.new_session([{"text": "I have begun to"}, {"delay": 300}])
    page = open_conversation(windows, session)
    daemon.send(session, "go", wait=False)
    expect(page.locator(".talk-answer", has_text="I have begun")).to_be_visible()
    daemon.kill()
    daemon.start()
    expect(page.locator(".session-state")).to_have_text("Error", timeout=60_000)
    expect(page.locator(".talk-note.warn, .talk-failure").first).to_be_visible(timeout=60_000)
    assert page.locator(".talk-answer").count() == 1
    assert sent_prompts(page) == ["go"]
