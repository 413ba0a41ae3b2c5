"""`portico serve`: starts the daemon."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import click

from gateway.cli.options import CONFIG, DATA_DIR, INVALID_SETTINGS, config_errors, load_settings
from gateway.server.daemon import serve as run_daemon


@click.command()
@CONFIG
@DATA_DIR
@click.option("--host", help="The address to listen on; server.host of the configuration by default.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on; 0 takes a free one.")
@click.option("--no-auth", is_flag=True, help="Accept requests without a key. On a loopback address only.")
@click.option(
    "--hints", is_flag=True, help="Print on standard error the console's link, how to get the key, and a first request."
)
def serve(config: Path | None, data_dir: Path | None, host: str | None, port: int | None, no_auth: bool, hints: bool) -> None:
    """Start the daemon."""
    # What the start allocates stays for good, as the imported modules do. The daemon enables it again.
    gc.disable()
    try:
        with config_errors(INVALID_SETTINGS):
            settings = load_settings(config, data_dir, host, port)
            text = _texts(config, data_dir, host, port, no_auth=no_auth, hints=hints)
            run_daemon(settings, no_auth=no_auth, hints=text if hints or sys.stderr.isatty() else None)
    finally:
        # Where it did not start.
        gc.enable()


def _texts(
    config: Path | None, data_dir: Path | None, host: str | None, port: int | None, *, no_auth: bool, hints: bool
) -> Callable[[str, str | None], str]:
    """Return a function that takes the daemon's URL and the console's link, and returns a text with both, and with the hints."""
    given = [f"--config {shlex.quote(str(config))}"] if config else []
    given += [f"--data-dir {shlex.quote(str(data_dir))}"] if data_dir else []
    program = shlex.quote(sys.argv[0])
    print_key = " ".join([program, "key", *given])
    header = "" if no_auth else f' -H "Authorization: Bearer $({print_key})"'
    body = """-H 'Content-Type: application/json' -d '{"driver": "echo", "task": "hello"}'"""

    def text(url: str, link: str | None) -> str:
        address = [f"--host {shlex.quote(host)}"] if host else []
        address += [f"--port {urlsplit(url).port}"] if port is not None else []
        lines = [f"The console:    {link}"] if link else []
        if link and not no_auth:
            lines.append(f"  once, within a minute; later:  {' '.join([program, 'open', *given, *address])}")
        if hints:
            lines += [] if no_auth else [f"The API key:    {print_key}"]
            lines.append(f"AAP base URLs:  {url}/aap/v3, {url}/aap/v2, {url} (version 1)")
            lines += ["A first request:", f"  curl -N {url}/v1/execute{header} {body}", "Stop it with Ctrl-C."]
        return "".join(f"{line}\n" for line in lines)

    return text
