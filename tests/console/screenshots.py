"""Screenshots for docs/console.md: `python -m tests.console.screenshots`. With `--all FOLDER`, every page as a PNG file."""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright

from tests.console.checked_pages import Windows
from tests.console.conftest import FLAGS
from tests.console.demo_sessions import demo_daemon, demo_sessions
from tests.console.quiet import settle
from tests.real.browser import find_browser

FOLDER = Path(__file__).parents[2] / "docs" / "console"
SIZES: dict[str, ViewportSize] = {
    "wide": {"width": 1440, "height": 900},
    "tablet": {"width": 820, "height": 1100},
    "phone": {"width": 390, "height": 844},
}
THEMES = ("light", "dark")
EVERY = tuple(product(SIZES, THEMES))


def to_the_edit(page: Page) -> None:
    """Scroll to the diff of the edit."""
    page.get_by_text("never reads").first.scroll_into_view_if_needed()


def try_a_command(page: Page) -> None:
    """Ask the rules about a command."""
    page.get_by_label("Tool", exact=True).fill("Bash")
    page.get_by_label("Command", exact=True).fill("git status && rm -rf build")
    page.get_by_role("button", name="Check", exact=True).click()


def nothing(_: Page) -> None:
    """Show the page as it is."""


SHOTS: dict[str, tuple[str, Callable[[Page], object], tuple[tuple[str, str], ...]]] = {
    "conversation": ("/sessions/{done}", to_the_edit, EVERY),
    "approval": ("/sessions/{waiting}", nothing, EVERY),
    "inbox": ("/inbox", nothing, (("wide", "light"), ("tablet", "dark"), ("phone", "light"))),
    "beside": ("/sessions/{running}?also={waiting}", nothing, (("wide", "dark"),)),
    "question": ("/sessions/{question}", nothing, (("phone", "dark"),)),
    "failed": ("/sessions/{failed}", nothing, (("phone", "light"),)),
    "running": ("/sessions/{running}", nothing, ()),
    "home": ("/", nothing, (("wide", "light"),)),
    "events": ("/sessions/{done}/events", nothing, (("wide", "light"),)),
    "agents": ("/agents", nothing, (("wide", "dark"),)),
    "policy": ("/policy", try_a_command, (("wide", "light"),)),
    "audit": ("/audit", nothing, (("tablet", "light"),)),
    "metrics": ("/metrics", lambda page: page.wait_for_timeout(12_000), (("wide", "dark"),)),
    "keys": ("/keys", nothing, ()),
}
"""By name: the path, what is done before, and the sizes and themes in the documentation."""
TO_WEBP = """async (png) => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/webp", 0.8).split(",")[1];
}"""


def take(browser: Browser, folder: Path, everything: bool) -> None:
    """Take the screenshots of the documentation, or all."""
    with tempfile.TemporaryDirectory(prefix="portico-") as temporary:
        daemon = demo_daemon(Path(temporary)).start()
        try:
            sessions = demo_sessions(daemon)
            windows = Windows(browser, daemon.url)
            converter = browser.new_page()
            for size, theme in EVERY:
                context = _context(windows, size, theme)
                page = windows.open(context=context)
                for name, (path, prepare, documented) in SHOTS.items():
                    if not everything and (size, theme) not in documented:
                        continue
                    page.goto("/console" + path.format(**sessions))
                    settle(page)
                    prepare(page)
                    settle(page)
                    png = page.screenshot()
                    if everything:
                        (folder / f"{name}-{size}-{theme}.png").write_bytes(png)
                    else:
                        webp = converter.evaluate(TO_WEBP, base64.b64encode(png).decode())
                        (folder / f"{name}-{size}-{theme}.webp").write_bytes(base64.b64decode(webp))
                context.close()
            sys.stderr.write("".join(f"{problem}\n" for problem in windows.problems))
            windows.close()
        finally:
            daemon.stop()


def _context(windows: Windows, size: str, theme: Any) -> BrowserContext:
    return windows.context(viewport=SIZES[size], color_scheme=theme, reduced_motion="reduce")


def main(*arguments: str) -> None:
    """Take the screenshots."""
    program = find_browser()
    if program is None:
        sys.exit("no chromium or chrome on PATH")
    everything = arguments[:1] == ("--all",)
    folder = Path(arguments[1]) if everything else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        take(browser, folder, everything)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
