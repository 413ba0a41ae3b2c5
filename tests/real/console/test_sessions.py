"""Sessions of the real claude and codex in the list: begun by curl and by an editor, found, renamed, deleted, forked, resumed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

from anyio.from_thread import BlockingPortal
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import SESSIONS
from tests.console.session_rows import choose as choose_action
from tests.console.session_rows import row, until
from tests.real.console.conftest import Real
from tests.real.console_windows import ANSWER_MS, WIDE, begin_in, choose, expect_answer, send
from tests.real.editor import editor_with
from tests.real.models import message_texts
from tests.support.daemon import KEY


def curl(url: str, body: dict[str, Any]) -> str:
    """Post JSON by curl, as the documentation does. Return the response."""
    command = ["curl", "-sSN", "--fail-with-body", url, "-H", f"Authorization: Bearer {KEY}", "--json", json.dumps(body)]
    found = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_a_session_that_curl_began_is_seen_live(real: Real, page: Page) -> None:
    expect(page.get_by_label("First message")).to_be_visible()
    url = f"{real.daemon.url}{SESSIONS}"
    session = str(json.loads(curl(url, {"agent": {"name": "claude"}}))["sessionId"])
    found = row(page, session)
    expect(found).to_be_visible()
    turn = {"messages": [{"role": "user", "content": "[[echo:by curl]] Count my files"}], "stream": "delta"}
    assert '"delta":"by curl"' in curl(f"{url}/{session}/turns", turn)
    expect(found.locator(".row-text")).to_contain_text("Count my files")
    expect(found.locator(".row-agent")).to_have_text("claude")
    expect(found.locator(".state")).to_have_text("Idle")
    # Nobody has seen it in this browser.
    expect(found.locator(".unread-mark")).to_be_visible()
    found.get_by_role("link").click()
    expect_answer(page, "by curl")
    expect(found.locator(".unread-mark")).to_have_count(0)


def test_a_session_of_an_editor_is_seen_live_and_shared(real: Real, page: Page, portal: BlockingPortal) -> None:
    expect(page.get_by_label("First message")).to_be_visible()
    with portal.wrap_async_context_manager(editor_with("claude", real.daemon.config, real.daemon.folder)) as (_, agent, _):

        async def begin() -> str:
            session = str((await agent.new_session(cwd=str(real.claude_home.work), mcp_servers=[])).session_id)
            await agent.prompt(session_id=session, prompt=[{"type": "text", "text": "[[echo:to the editor]] Mend it"}])
            return session

        session = portal.call(begin)
        found = row(page, session)
        expect(found.locator(".row-text")).to_contain_text("Mend it")
        expect(found.locator(".unread-mark")).to_be_visible()
        found.get_by_role("link").click()
        expect_answer(page, "to the editor")
        # The console goes on with the session of the editor, which is still open there.
        send(page, "[[recall]] from the console")
        expect_answer(page, "Before this one: [[echo:to the editor]] Mend it")


def test_words_of_a_conversation_are_found(real: Real, page: Page) -> None:
    choose(page, "Agent", "Codex")
    session = begin_in(page, "[[echo:The xylophone is in the cellar.]] Where is it?")
    expect_answer(page, "The xylophone is in the cellar.")
    page.get_by_role("link", name="New session", exact=True).click()
    page.keyboard.press("Escape")
    page.locator(".sidebar").get_by_role("button", name="Search").click()
    field = page.get_by_role("combobox", name="Search sessions and messages")
    field.fill("cellar xylo")
    expect(page.get_by_role("option").locator("mark").first).to_have_text(re.compile("xylophone|cellar"))
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/sessions/{session}"))
    expect(page.locator(".talk-answer")).to_contain_text("xylophone")


def test_a_session_is_renamed_in_the_page_and_by_the_cli(real: Real, page: Page) -> None:
    choose(page, "Agent", "Claude Code")
    session = begin_in(page, "[[echo:one]]")
    expect_answer(page, "one")
    # The title that the CLI gives the session.
    send(page, "/rename The tall tower")
    expect(row(page, session).locator(".row-text")).to_have_text("The tall tower", timeout=ANSWER_MS)
    expect(page.locator(".conversation-header h1")).to_have_text("The tall tower")
    choose_action(page, session, "Rename")
    page.get_by_role("textbox", name="Title of the session").fill("Mine")
    page.keyboard.press("Enter")
    expect(page.locator(".conversation-header h1")).to_have_text("Mine")
    # Not replaced by the CLI's.
    send(page, "[[echo:two]]")
    expect_answer(page, "two")
    expect(row(page, session).locator(".row-text")).to_have_text("Mine")


def test_a_deleted_session_comes_back_by_undo_and_goes_on(real: Real, page: Page) -> None:
    choose(page, "Agent", "Claude Code")
    session = begin_in(page, "[[echo:one]]")
    expect_answer(page, "one")
    choose_action(page, session, "Delete")
    expect(row(page, session)).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    row(page, session).get_by_role("link").click()
    send(page, "[[recall]] two")
    expect_answer(page, "Before this one: [[echo:one]]")
    choose_action(page, session, "Delete")
    until(page, lambda: real.daemon.api.get(f"{SESSIONS}/{session}").status_code == 404)
    expect(row(page, session)).to_have_count(0)
    live = real.daemon.api.get("/v1/live-agents").json()["agents"]
    assert session not in [agent["sessionId"] for agent in live]


def test_a_fork_has_the_conversation_and_leaves_the_first_alone(real: Real, page: Page) -> None:
    choose(page, "Agent", "Claude Code")
    session = begin_in(page, "[[echo:one]]")
    expect_answer(page, "one")
    choose_action(page, session, "Fork")
    page.wait_for_url(lambda url: "/sessions/" in url and session not in url)
    send(page, "[[recall]] in the fork")
    expect_answer(page, "Before this one: [[echo:one]]")
    row(page, session).get_by_role("link").click()
    send(page, "[[recall]] in the first")
    expect_answer(page, "Before this one: [[echo:one]]")
    assert "in the fork" not in str(message_texts(real.claude.last_request()))


def test_a_session_goes_on_after_a_restart_of_the_daemon(real: Real, windows: Windows) -> None:
    windows.expect("ERR_|Failed to load|net::|was not loaded")
    page = windows.open(viewport=WIDE)
    choose(page, "Agent", "Claude Code")
    session = begin_in(page, "[[echo:before the restart]]")
    expect_answer(page, "before the restart")
    real.daemon.kill()
    real.daemon.start()
    real.daemon.api.timeout = 120
    expect(page.get_by_text("Reconnecting")).to_have_count(0)
    expect(row(page, session).locator(".row-text")).to_contain_text("before the restart")
    send(page, "[[recall]] after it")
    expect_answer(page, "Before this one: [[echo:before the restart]]")
    expect(page.locator(".talk-prompt")).to_have_count(2)
