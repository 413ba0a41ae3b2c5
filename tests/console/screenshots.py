"""Takes the screenshots of docs/console.md: `make console-screenshots`, or `python -m tests.console.screenshots FOLDER`."""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from tests.console.checked_pages import Windows
from tests.console.conftest import FLAGS
from tests.console.demo_sessions import demo_daemon, demo_sessions
from tests.real.browser import find_browser

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "console"
SIZES: dict[str, ViewportSize] = {
    "wide": {"width": 1440, "height": 900},
    "tablet": {"width": 820, "height": 1100},
    "phone": {"width": 390, "height": 844},
}
SHOTS: dict[str, tuple[str, Callable[[Page], object] | None]] = {
    "home": ("/", None),
    "conversation": ("/sessions/{done}", lambda page: page.locator("table").first.scroll_into_view_if_needed()),
    "diff": ("/sessions/{done}", lambda page: open_edit(page)),
    "approval": ("/sessions/{waiting}", None),
    "question": ("/sessions/{question}", None),
    "running": ("/sessions/{running}", None),
    "failed": ("/sessions/{failed}", None),
    "beside": ("/sessions/{running}?also={waiting}", None),
    "inbox": ("/inbox", None),
    "events": ("/sessions/{done}/events", None),
    "agents": ("/agents", None),
    "policy": ("/policy", None),
    "audit": ("/audit", None),
    "metrics": ("/metrics", None),
    "keys": ("/keys", None),
}
"""The name of each screenshot, its path, and what is done before."""
TO_WEBP = """async (png) => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/webp", 0.82).split(",")[1];
}"""


def open_edit(page: Page) -> None:
    """Show the diff of the edit."""
    page.get_by_role("button", name="prices.py").last.click()
    page.locator(".diff, [class*=diff]").first.scroll_into_view_if_needed()


def settle(page: Page) -> None:
    """Wait until nothing is being loaded or moved."""
    page.wait_for_load_state("load")
    page.locator(".page-loading").first.wait_for(state="detached")
    page.wait_for_timeout(900)


def take(browser: Browser, folder: Path, names: list[str]) -> None:
    """Take the screenshots of these names, or all, in every size and theme."""
    with tempfile.TemporaryDirectory(prefix="portico-demo-") as temporary:
        daemon = demo_daemon(Path(temporary)).start()
        try:
            sessions = demo_sessions(daemon)
            windows = Windows(browser, daemon.url)
            converter = browser.new_page()
            for theme in ("light", "dark"):
                for size, viewport in SIZES.items():
                    context = windows.context(viewport=viewport, color_scheme=theme, reduced_motion="reduce")
                    page = windows.open(context=context)
                    for name, (path, prepare) in SHOTS.items():
                        if names and name not in names:
                            continue
                        page.goto("/console" + path.format(**sessions))
                        settle(page)
                        if prepare is not None:
                            prepare(page)
                            page.wait_for_timeout(300)
                        png = base64.b64encode(page.screenshot()).decode()
                        webp = base64.b64decode(converter.evaluate(TO_WEBP, png))
                        (folder / f"{name}-{size}-{theme}.webp").write_bytes(webp)
            sys.stderr.write("".join(f"{problem}\n" for problem in windows.problems))
            windows.close()
        finally:
            daemon.stop()


def main(folder: str = str(FOLDER), *names: str) -> None:
    """Take the screenshots into a folder."""
    program = find_browser()
    if program is None:
        sys.exit("no chromium or chrome on PATH")
    Path(folder).mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        take(browser, Path(folder), list(names))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
