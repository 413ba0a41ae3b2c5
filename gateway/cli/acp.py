"""`portico acp`: an agent over the Agent Client Protocol on standard input and output, for editors that start an agent.

Runs a gateway in this process, or with --connect forwards messages to a running daemon.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings, starting
from gateway.errors import ConfigError
from gateway.security.process_inspection import deny_process_inspection

if TYPE_CHECKING:
    from gateway.config import Settings


@click.command()
@CONFIG
@DATA_DIR
@click.option("--connect", metavar="URL", help="Forward messages to the daemon at this address, such as http://127.0.0.1:7700.")
@click.option("--key-file", type=click.Path(path_type=Path), help="A file with the daemon's key; or set PORTICO_API_KEY.")
@click.argument("agent")
def acp(config: Path | None, data_dir: Path | None, connect: str | None, key_file: Path | None, agent: str) -> None:
    """Serve AGENT over the Agent Client Protocol on standard input and output, for editors that start an agent."""
    with config_errors():
        deny_process_inspection()
        if connect is None:
            with starting():
                from gateway.cli.standalone_acp import run_standalone

                settings = load_settings(config, data_dir)
            run_standalone(settings, agent)
        else:
            _run_connected(load_settings(config, data_dir), agent, connect, key_file)


def _run_connected(
    settings: Settings, name: str, url: str, key_file: Path | None, environ: Mapping[str, str] = os.environ
) -> None:
    """Forward messages between an editor and a daemon. Raises ConfigError if the daemon cannot be reached."""
    with starting():
        import asyncio

        from gateway.protocols.acp.transport.bridge import bridge, endpoint

    asyncio.run(bridge(endpoint(url, name), _key(settings, url, key_file, environ)))


def _key(settings: Settings, url: str, key_file: Path | None, environ: Mapping[str, str]) -> str | None:
    """Return the key for a daemon, from the file or the environment. On a loopback address, the default key of this machine."""
    from gateway.security.loopback import is_loopback

    if key_file is not None:
        try:
            return key_file.expanduser().read_text().strip()
        except OSError as error:
            raise ConfigError(f"--key-file {key_file}: {error.strerror}") from None
    if given := environ.get("PORTICO_API_KEY", "").strip():
        return given
    # The key of this machine's gateway is not sent to another machine.
    host = urlsplit(url if "://" in url else f"http://{url}").hostname or ""
    if not is_loopback(host):
        return None
    generated = settings.data_dir / "api-key"
    known = [*settings.auth.keys, *([generated.read_text().strip()] if generated.exists() else [])]
    return known[0] if known else None
