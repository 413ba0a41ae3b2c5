"""How quickly the page appears on loopback, and how much it loads."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.main_thread import slowness

FIRST_PAINT_MS = 300
"""On a usual machine."""
TRIES = 8
"""The machine of the tests may be busy with others: the best of so many is the page's own time."""
PAINT = """() => new Promise((done) => {
  const entry = performance.getEntriesByName("first-contentful-paint")[0];
  if (entry) return done(entry.startTime);
  new PerformanceObserver((list, observer) => {
    const found = list.getEntriesByName("first-contentful-paint")[0];
    if (found) { observer.disconnect(); done(found.startTime); }
  }).observe({type: "paint", buffered: true});
})"""
LOADED = """(until) => performance.getEntriesByType("resource").filter((entry) => entry.name.includes("/console/"))
  .filter((entry) => entry.startTime <= until).map((entry) => [new URL(entry.name).pathname, entry.encodedBodySize])"""
"""The files of the page that were requested until this time, in milliseconds, with their sizes as they were sent."""


def paint_times(windows: Windows, cached: bool) -> list[float]:
    """The milliseconds until the console shows something, of new users or of one who has opened it before."""
    context = windows.context() if cached else None
    if context is not None:
        windows.open(context=context).close()
    found = []
    for _ in range(TRIES):
        page = windows.open(context=context)
        found.append(float(page.evaluate(PAINT)))
        page.close()
    return sorted(found)


def test_the_first_paint_is_quick(windows: Windows, daemon: ConsoleDaemon) -> None:
    for _ in range(30):
        daemon.new_session(agent="echo")
    slower = slowness(windows.open())
    for cached in (False, True):
        times = paint_times(windows, cached)
        assert times[0] < FIRST_PAINT_MS * slower, (times, slower)


def test_the_page_loads_little_for_its_first_paint_and_each_file_once(page: Page) -> None:
    expect(page.get_by_role("navigation").first).to_be_visible()
    first = page.evaluate(LOADED, page.evaluate(PAINT))
    assert sum(size for _, size in first) < 100_000, sorted(first, key=lambda found: -found[1])[:10]
    # Other parts are loaded ahead, while nothing else is to be done.
    page.wait_for_timeout(1000)
    paths = [path for path, _ in page.evaluate(LOADED, 60_000)]
    assert len(paths) == len(set(paths))
    # Highlighting is loaded with the first code block.
    assert not [path for path in paths if "/highlight" in path]
