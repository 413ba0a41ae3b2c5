"""`portico serve`: starts the daemon."""

from __future__ import annotations

import gc
import json
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import click

from gateway.cli.options import CONFIG, DATA_DIR, INVALID_SETTINGS, config_errors, load_settings
from gateway.cli.output import say
from gateway.security.process_inspection import deny_process_inspection
from gateway.server.data_dir_lock import received_lock


@click.command()
@CONFIG
@DATA_DIR
@click.option("--host", help="The address to listen on; server.host of the configuration by default.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on; 0 takes a free one.")
@click.option("--no-auth", is_flag=True, help="Accept requests without a key. On a loopback address only.")
@click.option(
    "--hints", is_flag=True, help="Print on standard error the console's link, how to get the key, and a first request."
)
@click.option("--for-editors", type=int, hidden=True, help="Serve editors only. The descriptor of the data directory's lock.")
def serve(
    config: Path | None,
    data_dir: Path | None,
    host: str | None,
    port: int | None,
    no_auth: bool,
    hints: bool,
    for_editors: int | None,
) -> None:
    """Start the daemon."""
    deny_process_inspection()
    # What the start allocates stays for good, as the imported modules do. The daemon enables it again.
    gc.disable()
    try:
        if for_editors is not None:
            return _serve_editors(config, data_dir, for_editors)
        with config_errors(INVALID_SETTINGS):
            # FastAPI and uvicorn: 0.2 s and 13 MB, which a daemon for editors does without.
            from gateway.server.http_daemon import serve as run_daemon

            settings = load_settings(config, data_dir, host, port)
            text = _texts(config, data_dir, host, port, no_auth=no_auth, hints=hints)
            run_daemon(settings, no_auth=no_auth, hints=text if hints or sys.stderr.isatty() else None)
    finally:
        # Where it did not start.
        gc.enable()


def _serve_editors(config: Path | None, data_dir: Path | None, lock: int) -> None:
    """Run the daemon that `portico acp` starts, which gets one line: once editors can connect, or with the error."""
    # HTTP does without it.
    from gateway.server.editors_daemon import serve_editors

    def answer(line: dict[str, str]) -> None:
        with suppress(OSError):
            say(json.dumps(line))
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())

    try:
        with config_errors():
            serve_editors(load_settings(config, data_dir), received_lock(lock), lambda: answer({}))
    except click.ClickException as error:
        answer({"error": error.message})
        sys.exit(1)


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
