"""A window of a client with a named key, which is not an administrator."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon


def open_with_named_key(windows: Windows, daemon: ConsoleDaemon, path: str) -> Page:
    """Open a page, signed in with a new key."""
    name = f"visitor-{path.rsplit('/', 1)[1]}"
    answer = daemon.api.post("/v1/keys", json={"name": name})
    assert answer.status_code == 201, answer.text
    return windows.open(path, key=answer.json()["key"])
