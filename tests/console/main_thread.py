"""How long the main thread of a page is at work, and what that means on a machine of any speed.

A limit in milliseconds would hold for one machine only. The limits of the tests are multiples of the time that the same machine
takes for a fixed piece of work in the same page. This unit is some 50 ms on a usual machine of two cores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page

WORK = """() => {
  const begun = performance.now();
  const root = document.createElement("div");
  root.style.cssText = "position: fixed; inset: 0; overflow: auto; visibility: hidden";
  document.body.append(root);
  for (let part = 0; part < 10; part += 1) {
    for (let line = 0; line < 100; line += 1) {
      const text = root.appendChild(document.createElement("p"));
      for (const word of ["some", "words", "of", "a", "line"]) {
        text.appendChild(document.createElement("span")).append(`${word} ${line} `);
      }
    }
    root.getBoundingClientRect();
    root.scrollTop = root.scrollHeight;
  }
  root.remove();
  return performance.now() - begun;
}"""
"""Lays out 1,000 lines, as a page does that shows a long text. It returns the milliseconds that this took."""

USUAL = 50
"""Milliseconds of that work on a usual machine."""


@contextmanager
def tasks(browser: Browser, page: Page) -> Iterator[list[float]]:
    """Record the tasks of the page's main thread, in milliseconds of its own processor time: others use the machine.

    Playwright's assertions are tasks of the page too. In a large page one of them takes a second.
    """
    found: list[float] = []
    browser.start_tracing(page=page, categories=["disabled-by-default-devtools.timeline", "devtools.timeline"])
    try:
        yield found
        # A task is recorded when it is over: that of the last answer may not be yet.
        page.evaluate("0")
    finally:
        events = json.loads(browser.stop_tracing())["traceEvents"]
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    for event in events:
        if event["name"] == "RunTask" and (event["pid"], event["tid"]) in threads:
            found.append(event.get("tdur", 0) / 1000)
    assert found


def unit(browser: Browser, page: Page) -> float:
    """Milliseconds of processor time that the work takes now: the median of five times, after one that warms up."""
    page.evaluate(WORK)
    times = []
    for _ in range(5):
        with tasks(browser, page) as found:
            page.evaluate(WORK)
        times.append(max(found))
    return sorted(times)[2]


def slowness(page: Page) -> float:
    """How many times longer this machine takes now than a usual one, with all that runs beside; at least 1."""
    page.evaluate(WORK)
    return max(1.0, sorted(page.evaluate(WORK) for _ in range(5))[2] / USUAL)
