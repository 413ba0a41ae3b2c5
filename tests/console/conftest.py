"""Fixtures: a daemon for each module, a browser, and windows of the console that fail a test for any error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.real.browser import find_browser

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage", "--no-first-run",
)  # fmt: skip

# Chromium and a daemon for each of two processes take their time on two cores.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleDaemon]:
    """A daemon that runs, with the agents `script` and `echo`."""
    found = ConsoleDaemon(tmp_path_factory.mktemp("daemon")).start()
    yield found
    found.stop()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A headless Chromium. It ends with the package: while it runs, the thread of its driver has no other event loop."""
    program = find_browser()
    if program is None:
        pytest.skip("no chromium or chrome on PATH; on Debian: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def windows(browser: Browser, daemon: ConsoleDaemon) -> Iterator[Windows]:
    """Opens windows. At the end, the test fails for any error of their pages, and any request to another host."""
    found = Windows(browser, daemon.url)
    yield found
    found.close()
    assert not found.problems


@pytest.fixture
def page(windows: Windows) -> Page:
    """The console in a window of 1440 x 900 pixels, signed in."""
    return windows.open(viewport={"width": 1440, "height": 900})
