"""`portico serve`: starts the daemon."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import click

from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings

INVALID_SETTINGS = 78
"""The exit code for settings that are wrong, EX_CONFIG of sysexits.h: a service manager does not start the daemon again."""


@click.command()
@CONFIG
@DATA_DIR
@click.option("--host", help="The address to listen on; server.host of the configuration by default.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on; 0 takes a free one.")
@click.option("--no-auth", is_flag=True, help="Accept requests without a key. On a loopback address only.")
@click.option("--hints", is_flag=True, help="Print on standard error how to get the key, and a first request.")
def serve(config: Path | None, data_dir: Path | None, host: str | None, port: int | None, no_auth: bool, hints: bool) -> None:
    """Start the daemon."""
    # Imported modules stay for good, and collecting garbage among them is a fifth of the start. The daemon enables it again.
    gc.disable()
    try:
        from gateway.server.fastapi_import import import_fastapi

        import_fastapi()
        from gateway.server.daemon import serve as run_daemon

        with config_errors(INVALID_SETTINGS):
            settings = load_settings(config, data_dir, host, port)
            run_daemon(settings, no_auth=no_auth, hints=_hints(config, data_dir, no_auth) if hints else None)
    finally:
        # Where it did not start.
        gc.enable()


def _hints(config: Path | None, data_dir: Path | None, no_auth: bool) -> Callable[[str], str]:
    """Return a function that takes the daemon's URL and returns the text of `--hints`."""
    given = [f"--config {shlex.quote(str(config))}"] if config else []
    given += [f"--data-dir {shlex.quote(str(data_dir))}"] if data_dir else []
    print_key = " ".join([shlex.quote(sys.argv[0]), "key", *given])
    header = "" if no_auth else f' -H "Authorization: Bearer $({print_key})"'
    body = """-H 'Content-Type: application/json' -d '{"driver": "echo", "task": "hello"}'"""

    def text(url: str) -> str:
        key_line = "" if no_auth else f"The API key:    {print_key}\n"
        base_line = f"AAP base URLs:  {url}/aap/v3, {url}/aap/v2, {url} (version 1)\n"
        return f"{key_line}{base_line}A first request:\n  curl -N {url}/v1/execute{header} {body}\nStop it with Ctrl-C.\n"

    return text
