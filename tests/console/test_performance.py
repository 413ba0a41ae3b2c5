"""Long conversations and fast agents: the page stays smooth, and the list where its reader is."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.conversations import WIDE, at_the_end, open_conversation, rows

LONG_TASKS = """
window.tasks = [];
new PerformanceObserver((list) => { for (const { duration } of list.getEntries()) window.tasks.push(Math.round(duration)); })
  .observe({ type: "longtask", buffered: true });
"""
LONGEST = 200
"""Milliseconds of the longest task, so that keys and clicks are answered at once."""


def with_tasks(windows: Windows, session: str) -> Page:
    """Open a session in a window that records tasks of more than 50 ms in `window.tasks`."""
    context = windows.context(viewport=WIDE)
    context.add_init_script(LONG_TASKS)
    page = windows.open(f"/console/sessions/{session}", context)
    expect(page.locator(".conversation .talk-list")).to_be_visible()
    return page


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
            {"text": {"text": text, "chunk": 400}}, {"message_end": {}},
            {"tool_call": {"name": "Bash", "input": {"command": "step {turn}"}, "result": "one\ntwo\nthree"}},
            {"text": f"Result {{turn}}-{part}."}, {"message_end": {}},
        ]  # fmt: skip
    session = daemon.new_session(steps)
    for turn in range(250):
        daemon.send(session, f"Prompt {turn + 1}")
    return session


def test_ten_thousand_messages_scroll(windows: Windows, daemon: ConsoleDaemon, long_session: str) -> None:
    page = with_tasks(windows, long_session)
    expect(page.locator(".talk-answer", has_text="Result 250-12.")).to_be_visible()
    assert at_the_end(page)
    # All pages, from the end to the beginning, as somebody scrolls who looks for something.
    deadline = time.monotonic() + 120
    page.locator(".talk-list").hover()
    while not page.locator(".prompt-text", has_text=re.compile("^Prompt 1$")).count():
        assert time.monotonic() < deadline
        page.mouse.wheel(0, -20_000)
        frames(page)
    assert rows(page).count() < 80
    scroll = """async () => {
          window.tasks = [];
          const list = document.querySelector(".talk-list");
          const times = [];
          let last = performance.now();
          for (let step = 0; step < 60; step += 1) {
            list.scrollTop += 500;
            await new Promise(requestAnimationFrame);
            const now = performance.now();
            times.push(now - last);
            last = now;
          }
          return [times.sort((a, b) => a - b)[Math.floor(times.length / 2)], Math.max(0, ...window.tasks)];
        }"""
    # The best of some rounds: other processes share the machine.
    slow, longest = min(page.evaluate(scroll) for _ in range(5))
    assert slow < 100 and longest < LONGEST
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


def test_two_thousand_deltas_a_second(windows: Windows, daemon: ConsoleDaemon) -> None:
    words = "word **bold** and `code` {n} of the text"
    bursts: list[Any] = []
    for burst in range(40):
        bursts += [{"events": {"count": 200, "text": f" {words}" + ("\n\n" if burst % 4 == 0 else "")}}, {"delay": 0.1}]
    session = daemon.new_session([*bursts, {"text": "\n\nThe end."}])
    page = with_tasks(windows, session)
    box = page.get_by_role("textbox").last
    page.evaluate("window.tasks = []")
    daemon.send(session, "go", wait=False)
    expect(page.locator(".talk-answer")).to_be_visible()
    started = time.monotonic()
    longest_key = 0.0
    while daemon.session(session)["x-portico"]["state"] == "running":
        before = time.monotonic()
        box.press("x")
        longest_key = max(longest_key, time.monotonic() - before)
        assert at_the_end(page) or page.wait_for_function("() => { const e = document.querySelector('.talk-list'); return e.scrollHeight - e.clientHeight - e.scrollTop < 4; }")
    assert time.monotonic() - started > 2
    expect(page.locator(".talk-answer p", has_text="The end.")).to_be_visible()
    assert max(page.evaluate("window.tasks"), default=0) < LONGEST
    assert longest_key < 1
    assert page.locator(".talk-answer code").count() == 8000


def test_a_reader_who_scrolled_up_stays_there(windows: Windows, daemon: ConsoleDaemon) -> None:
    paragraphs = "\n\n".join(f"Paragraph {number}" for number in range(80))
    session = daemon.new_session([{"text": paragraphs}], [{"text": {"text": "more and more\n\n" * 200, "chunk": 15, "every": 0.01}}])
    daemon.send(session, "go")
    page = open_conversation(windows, session)
    expect(page.locator(".talk-answer", has_text="Paragraph 79")).to_be_visible()
    assert at_the_end(page)
    daemon.send(session, "on", wait=False)
    expect(page.locator(".talk-answer", has_text="more and more")).to_be_visible()
    page.locator(".talk-list").hover()
    page.mouse.wheel(0, -900)
    expect(page.get_by_role("button", name="New output")).to_be_visible()
    frames(page, 5)
    before = page.locator(".talk-list").evaluate("(list) => list.scrollTop")
    frames(page, 30)
    assert page.locator(".talk-list").evaluate("(list) => list.scrollTop") == before
    page.get_by_role("button", name="New output").click()
    frames(page, 5)
    assert at_the_end(page)
    frames(page, 20)
    assert at_the_end(page)
    expect(page.locator(".to-end")).to_have_count(0)
