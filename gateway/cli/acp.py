"""`portico acp`: an agent over the Agent Client Protocol on standard input and output, for editors that start an agent.

Connects to the daemon that serves the data directory, which the first one starts, or with --connect to a daemon by its address.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import click

from gateway.cli.editor_lines import EditorLines
from gateway.cli.local_daemon import LocalDaemon
from gateway.cli.main import starting
from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.security.loopback import is_loopback
from gateway.security.process_inspection import deny_process_inspection


@click.command()
@CONFIG
@DATA_DIR
@click.option("--connect", metavar="URL", help="Forward messages to the daemon at this address, such as http://127.0.0.1:7700.")
@click.option("--key-file", type=click.Path(path_type=Path), help="A file with the daemon's key; or set PORTICO_API_KEY.")
@click.option(
    "--slash-commands",
    type=click.Choice(["on", "off"]),
    help="Whether a prompt of a new session that begins with / is a command of the agent's program. By default it is.",
)
@click.option(
    "--login",
    is_flag=False,
    flag_value="",
    metavar="[METHOD]",
    help="Log in with the agent's program in this terminal, and serve nothing. Editors add it to start a login.",
)
@click.argument("agent")
def acp(
    config: Path | None,
    data_dir: Path | None,
    connect: str | None,
    key_file: Path | None,
    slash_commands: str | None,
    login: str | None,
    agent: str,
) -> None:
    """Serve AGENT over the Agent Client Protocol on standard input and output, for editors that start an agent."""
    with config_errors():
        deny_process_inspection()
        if login is not None:
            # An editor starts `portico acp` often: a login and --connect import what only they need.
            from gateway.cli.login import run_login

            run_login(load_settings(config, data_dir), agent, login, connect)
        elif connect is None:
            options = [f"--config={config}"] if config else []
            options += [f"--data-dir={data_dir}"] if data_dir else []
            request = {"agent": agent, "slash_commands": slash_commands}
            EditorLines(LocalDaemon(lambda: load_settings(config, data_dir), options, request).connect).run()
        else:
            _run_connected(load_settings(config, data_dir), agent, connect, key_file, slash_commands)


def _run_connected(
    settings: Settings,
    name: str,
    url: str,
    key_file: Path | None,
    slash_commands: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Forward messages between an editor and a daemon. Raises ConfigError if the daemon cannot be reached."""
    with starting():
        # They import websockets and asyncio, which only --connect needs here.
        import asyncio

        from gateway.protocols.acp.transport.bridge import bridge, endpoint

    address = endpoint(url, name, slash_commands, terminal_login=is_loopback(host_of(url)))
    asyncio.run(bridge(address, _key(settings, url, key_file, environ)))


def _key(settings: Settings, url: str, key_file: Path | None, environ: Mapping[str, str]) -> str | None:
    """Return the key for a daemon, from the file or the environment. On a loopback address, the default key of this machine."""
    if key_file is not None:
        try:
            return key_file.expanduser().read_text().strip()
        except OSError as error:
            raise ConfigError(f"--key-file {key_file}: {error.strerror}") from None
    if given := environ.get("PORTICO_API_KEY", "").strip():
        return given
    # The key of this machine's gateway is not sent to another machine.
    if not is_loopback(host_of(url)):
        return None
    generated = settings.data_dir / "api-key"
    known = [*settings.auth.keys, *([generated.read_text().strip()] if generated.exists() else [])]
    return known[0] if known else None


def host_of(url: str) -> str:
    return urlsplit(url if "://" in url else f"http://{url}").hostname or ""
