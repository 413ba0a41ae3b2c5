"""Long conversations and fast agents: the page stays smooth, and the list where its reader is."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.conversations import at_the_end, open_conversation, rows
from tests.console.main_thread import tasks, unit
from tests.console.session_rows import until

LONGEST = 4
"""Units of the longest task, so that keys and clicks are answered at once: 0.2 s on a usual machine."""
OF_A_FRAME = 1
"""Units that a frame may take while somebody scrolls."""


def frames(page: Page, count: int = 2) -> None:
    for _ in range(count):
        page.evaluate("() => new Promise(requestAnimationFrame)")


@pytest.fixture(scope="module")
def long_session(daemon: ConsoleDaemon) -> str:
    """A session of 10,000 messages: 250 turns of a prompt, and 26 texts and 13 calls in turn."""
    text = "Message {turn} is some text of a **usual** length, with `code` in it.\n\n" + "More of it. " * 20
    steps: list[Any] = []
    for part in range(13):
        steps += [
            {"text": {"text": text, "chunk": 400}},
            {"message_end": {}},
            {"tool_call": {"name": "Bash", "input": {"command": "step {turn}"}, "result": "one\ntwo\nthree"}},
            {"text": f"Result {{turn}}-{part}."},
            {"message_end": {}},
        ]
    session = daemon.new_session(steps)
    for turn in range(250):
        daemon.send(session, f"Prompt {turn + 1}")
    return session


def test_ten_thousand_messages_scroll(browser: Browser, windows: Windows, daemon: ConsoleDaemon, long_session: str) -> None:
    page = open_conversation(windows, long_session)
    expect(page.locator(".talk-answer", has_text="Result 250-12.")).to_be_visible()
    until(page, lambda: at_the_end(page))
    one = unit(browser, page)
    # All pages, from the end to the beginning, as somebody scrolls who looks for something.
    deadline = time.monotonic() + 300
    page.locator(".talk-list").hover()
    while not page.locator(".prompt-text", has_text=re.compile("^Prompt 1$")).count():
        assert time.monotonic() < deadline
        page.mouse.wheel(0, -20_000)
        frames(page)
    assert rows(page).count() < 80
    tries = []
    for direction in (500, -500, 500):
        with tasks(browser, page) as found:
            for _ in range(60):
                page.evaluate(f"() => {{ document.querySelector('.talk-list').scrollTop += {direction}; }}")
                frames(page)
        tries.append((max(found) / one / LONGEST, sum(found) / 60 / one / OF_A_FRAME))
        if max(tries[-1]) < 1:
            break
    assert min(max(one_try) for one_try in tries) < 1, (tries, one)
    # Everything is there, once.
    page.locator(".talk-list").evaluate("(list) => { list.scrollTop = list.scrollHeight / 2; }")
    frames(page, 5)
    shown = re.findall(r"Result (\d+)-(\d+)\.", page.locator(".talk-list").inner_text())
    places = [int(turn) * 13 + int(part) for turn, part in shown]
    assert places == list(range(places[0], places[0] + len(places))) and len(places) > 2


def test_older_pages_come_without_a_jump(windows: Windows, daemon: ConsoleDaemon, long_session: str) -> None:
    page = open_conversation(windows, long_session)
    expect(page.locator(".talk-answer", has_text="Result 250-12.")).to_be_visible()
    jumps = page.evaluate(
        """async () => {
          const list = document.querySelector(".talk-list");
          const frame = () => new Promise(requestAnimationFrame);
          const jumps = [];
          for (let step = 0; step < 200; step += 1) {
            const marked = [...list.querySelectorAll(".talk-row")].find((row) => row.getBoundingClientRect().top > 200);
            const before = marked.getBoundingClientRect().top;
            const by = Math.min(300, list.scrollTop);
            list.scrollTop -= by;
            await frame(); await frame();
            if (!marked.isConnected) { jumps.push("gone"); continue; }
            const moved = marked.getBoundingClientRect().top - before;
            if (Math.abs(moved - by) > 3) jumps.push([step, moved, by]);
          }
          return jumps;
        }"""
    )
    assert jumps == []
    first = re.search(r"Result (\d+)-", page.locator(".talk-list").inner_text())
    assert first and int(first[1]) < 245


LAST_PARAGRAPH = "() => document.querySelector('.talk-answer .markdown')?.lastElementChild?.textContent"
"""Cheap in a page of any length, as Playwright's assertions are not."""


def test_two_thousand_deltas_a_second(browser: Browser, windows: Windows, daemon: ConsoleDaemon) -> None:
    words = "word **bold** and `code` {n} of the text"
    bursts: list[Any] = []
    for burst in range(40):
        bursts += [{"events": {"count": 200, "text": f" {words}" + ("\n\n" if burst % 4 == 0 else "")}}, {"delay": 0.1}]
    tries = []
    # The best of three: the processor may be slower for a while than it was for the unit.
    for _ in range(3):
        session = daemon.new_session([*bursts, {"text": "\n\nThe end."}])
        page = open_conversation(windows, session)
        one = unit(browser, page)
        box = page.get_by_role("textbox").last
        box.focus()
        with tasks(browser, page) as found:
            daemon.send(session, "go", wait=False)
            typed = 0
            while daemon.session(session)["x-portico"]["state"] == "running":
                page.keyboard.press("x")
                typed += 1
            until(page, lambda page=page: page.evaluate(LAST_PARAGRAPH) == "The end.", 60)  # type: ignore[misc]
        assert box.input_value() == "x" * typed and typed > 2
        assert page.locator(".talk-answer code").count() == 8000
        until(page, lambda page=page: at_the_end(page))  # type: ignore[misc]
        page.close()
        tries.append(max(found) / one)
        if tries[-1] < LONGEST:
            break
    assert min(tries) < LONGEST, tries


def test_a_reader_who_scrolled_up_stays_there(windows: Windows, daemon: ConsoleDaemon) -> None:
    paragraphs = "\n\n".join(f"Paragraph {number}" for number in range(80))
    session = daemon.new_session(
        [{"text": paragraphs}], [{"text": {"text": "more and more\n\n" * 200, "chunk": 15, "every": 0.01}}]
    )
    daemon.send(session, "go")
    page = open_conversation(windows, session)
    expect(page.locator(".talk-answer", has_text="Paragraph 79")).to_be_visible()
    until(page, lambda: at_the_end(page))
    daemon.send(session, "on", wait=False)
    expect(page.locator(".talk-answer", has_text="more and more")).to_be_visible()
    page.locator(".talk-list").hover()
    page.mouse.wheel(0, -900)
    expect(page.get_by_role("button", name="New output")).to_be_visible()
    place = page.locator(".talk-list")
    # The browser scrolls smoothly, for as long as it takes.
    moved = [-1.0, 0.0]
    until(page, lambda: (moved.append(place.evaluate("(list) => list.scrollTop")), moved[-1] == moved[-2])[1])
    before = moved[-1]
    frames(page, 30)
    assert page.locator(".talk-list").evaluate("(list) => list.scrollTop") == before
    page.get_by_role("button", name="New output").click()
    # It stays there while the output goes on.
    for _ in range(20):
        frames(page)
        until(page, lambda: at_the_end(page))
    expect(page.locator(".to-end")).to_have_count(0)
