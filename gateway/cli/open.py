"""`portico open`: opens the web console in the browser, signed in."""

from __future__ import annotations

import html
import http.client
import os
import sys
import webbrowser
from pathlib import Path

import click

from gateway.cli.options import CONFIG, DATA_DIR, HOST, PORT, config_errors, load_settings
from gateway.cli.output import say
from gateway.config import Settings
from gateway.diagnosis.daemon import daemon_address
from gateway.errors import ConfigError
from gateway.private_files import private_file
from gateway.security.api_keys import default_api_keys
from gateway.security.process_inspection import deny_process_inspection

LINK_FILE = "console-link.html"
"""The file in the data directory that leads the browser to the console."""


@click.command()
@CONFIG
@DATA_DIR
@HOST
@PORT
@click.option("--print", "print_only", is_flag=True, help="Print the link only.")
def open(config: Path | None, data_dir: Path | None, host: str | None, port: int | None, print_only: bool) -> None:
    """Open the web console in the browser, signed in. The daemon must run.

    The link is valid once, for a minute.
    """
    deny_process_inspection()
    with config_errors():
        settings = load_settings(config, data_dir, host, port)
        link = _link(settings)
        if print_only:
            say(link)
        elif _opened(settings, link):
            say(f"The browser opens the console. If it does not, open this link within a minute:\n  {link}")
        else:
            say(f"There is no browser here. Open this link within a minute, in a browser that can reach it:\n  {link}")


def _link(settings: Settings) -> str:
    """Return the address of the console with a new code. Raises ConfigError that says what to do."""
    if not settings.server.console:
        raise ConfigError("the web console is switched off: server.console = false in the configuration")
    address = daemon_address(settings)
    if address.port == 0:
        raise ConfigError("server.port is 0, a free port at each start: give the daemon's by --port")
    try:
        answer = address.request("POST", "/v1/sign-in-codes", default_api_keys(settings)[0])
    except (OSError, http.client.HTTPException):
        raise ConfigError(f"no daemon answers at {address.url}: start one by `portico serve`, then try again") from None
    found = answer.object()
    if answer.status == 401:
        raise ConfigError(
            f"the daemon at {address.url} does not know this key: it has other keys (PORTICO_API_KEY, auth.keys) or another "
            "data directory; give its own by --config or --data-dir"
        )
    if answer.status != 200 or not isinstance(found.get("url"), str):
        raise ConfigError(f"what answers at {address.url} is no Portico with a web console")
    return str(found["url"])


def _opened(settings: Settings, link: str) -> bool:
    """Lead the browser to the link. Return whether there is one that has been started."""
    graphical = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if sys.platform.startswith("linux") and not graphical:
        # A browser in the terminal would run none of the page's scripts.
        return False
    # By a file that only this user can read: other users see the arguments of the browser's process, and could be faster with the
    # code.
    file = settings.data_dir / LINK_FILE
    target = html.escape(link, quote=True)
    page = '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
    page += f'<meta http-equiv="refresh" content="0; url={target}"><title>Portico</title><a href="{target}">Portico</a>'
    with os.fdopen(private_file(file, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as opened:
        opened.write(page)
    try:
        return webbrowser.open(file.as_uri())
    except (webbrowser.Error, OSError):
        return False
