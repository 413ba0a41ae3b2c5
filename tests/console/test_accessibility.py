"""Every page and dialog of the console, in both themes and on a phone, has no violation of the rules of axe-core."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.demo_sessions import demo_daemon, demo_sessions
from tests.console.quiet import settle

AXE = Path(__file__).parents[2] / ".clis" / "console" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  return found.violations.map((rule) => ({
    rule: rule.id, impact: rule.impact, help: rule.help,
    nodes: rule.nodes.slice(0, 5).map((node) => [node.target.join(" "), node.html.slice(0, 200), node.failureSummary]),
  }));
}"""
PATHS = ["/", "/sessions/{done}", "/sessions/{waiting}", "/sessions/{question}", "/sessions/{failed}", "/sessions/{running}",
         "/sessions/{done}?also={waiting}", "/sessions/{done}/events", "/inbox", "/agents", "/policy", "/audit", "/metrics",
         "/keys", "/nothing-here"]  # fmt: skip
OPENED: dict[str, tuple[str, Callable[[Page], object]]] = {
    "shortcuts": ("/", lambda page: press(page, "?")),
    "search": ("/", lambda page: press(page, "/")),
    "switcher": ("/", lambda page: page.keyboard.press("Control+k")),
    "settings": ("/", lambda page: page.get_by_role("button", name="Settings").first.click()),
    "menu of a session": ("/sessions/{done}", lambda page: page.locator(".pane header button").last.click()),
    "call": ("/sessions/{done}", lambda page: page.get_by_role("button", name="pytest").last.click()),
}
"""What is opened on a page, by its name."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleDaemon]:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make .clis/console/.installed")
    found = demo_daemon(tmp_path_factory.mktemp("demo")).start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def sessions(daemon: ConsoleDaemon) -> dict[str, str]:
    return demo_sessions(daemon)


def press(page: Page, key: str) -> None:
    """Press a key of a shortcut, outside of any field."""
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(key)


def violations(page: Page) -> list[dict[str, Any]]:
    """What axe-core finds on the page."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    found: list[dict[str, Any]] = page.evaluate(RUN)
    return found


def check(page: Page, where: str) -> None:
    """Fail for a violation."""
    found = violations(page)
    assert not found, f"{where}: {json.dumps(found, indent=1)}"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS)
def test_pages_have_no_violation(windows: Windows, sessions: dict[str, str], path: str, theme: Any) -> None:
    windows.expect("404")
    page = windows.open(viewport={"width": 1440, "height": 900}, color_scheme=theme, reduced_motion="reduce")
    page.goto("/console" + path.format(**sessions))
    settle(page)
    check(page, f"{path}, {theme}")
    if theme == "light":
        page.set_viewport_size({"width": 390, "height": 844})
        settle(page)
        check(page, f"{path}, {theme}, phone")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_opened_has_no_violation(windows: Windows, sessions: dict[str, str], theme: Any) -> None:
    page = windows.open(viewport={"width": 1440, "height": 900}, color_scheme=theme, reduced_motion="reduce")
    for name, (path, show) in OPENED.items():
        page.goto("/console" + path.format(**sessions))
        settle(page)
        show(page)
        settle(page)
        check(page, f"{name}, {theme}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_to_sign_in_has_no_violation(windows: Windows, theme: Any) -> None:
    windows.expect("401")
    page = windows.open(key=None, color_scheme=theme)
    page.get_by_role("heading", name="Sign in").wait_for()
    check(page, f"sign in, {theme}")
