"""`portico acp`: an agent over the Agent Client Protocol on standard input and output, for editors that start an agent.

Runs a gateway in this process, or with --connect forwards messages to a running daemon.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings
from gateway.config import Settings
from gateway.errors import ConfigError, GatewayError
from gateway.security.process_inspection import deny_process_inspection

if TYPE_CHECKING:
    from gateway.gateway import Gateway
    from gateway.protocols.acp.connection import Connection
    from gateway.protocols.acp.transport.stdio import StandardLines

FINISH_TIMEOUT = 5.0
"""Seconds for responses that are pending when standard input ends."""
MAX_PROCESSES = 32
"""How many of these processes may run at the same time, each with its own data directory."""


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
        settings = load_settings(config, data_dir)
        if connect is None:
            _run_standalone(settings, agent)
        else:
            _run_connected(settings, agent, connect, key_file)


def _run_standalone(settings: Settings, name: str) -> None:
    """Serve one agent until standard input ends. Raises ConfigError for an unknown agent."""
    from gateway.agents.configured_agents import Agents
    from gateway.gateway import Gateway
    from gateway.observability.logs import set_up_logging
    from gateway.security.redaction import Redactor

    agents = Agents(settings, workspace=Path.cwd(), any_directory=True)
    try:
        agents = agents.only(name)
    except GatewayError as error:
        raise ConfigError(str(error)) from None
    with _own_data_dir(settings) as data_dir:
        redactor = Redactor()
        set_up_logging(settings.server.log_level, settings.server.log_format, redactor)
        own = settings.model_copy(update={"server": settings.server.model_copy(update={"data_dir": data_dir})})
        asyncio.run(_serve(Gateway(own, (), redactor, agents), name))


def _run_connected(
    settings: Settings, name: str, url: str, key_file: Path | None, environ: Mapping[str, str] = os.environ
) -> None:
    """Forward messages between an editor and a daemon. Raises ConfigError if the daemon cannot be reached."""
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


@contextmanager
def _own_data_dir(settings: Settings) -> Iterator[Path]:
    """Lock and yield the first free directory `acp/N` in the data directory; the next start takes the same one.

    Sessions are stored there. Raises ConfigError if MAX_PROCESSES directories are locked, or one cannot be used.
    """
    from gateway.private_files import private_data_directory, private_directory
    from gateway.server.data_dir_lock import DataDirLocked, data_dir_lock

    private_data_directory(settings.data_dir)
    private_directory(settings.data_dir / "acp")
    with ExitStack() as stack:
        for n in range(1, MAX_PROCESSES + 1):
            data_dir = settings.data_dir / "acp" / str(n)
            try:
                stack.enter_context(data_dir_lock(data_dir))
            except DataDirLocked:
                continue
            yield data_dir
            return
    raise ConfigError(
        f"{MAX_PROCESSES} of these run already; start a daemon with `portico serve`, and give --connect its address"
    )


async def _serve(gateway: Gateway, name: str) -> None:
    """Serve one connection until standard input ends, or SIGINT or SIGTERM."""
    from drivers.runtime.subreaper import adopted_orphans
    from gateway.protocols.acp.transport.stdio import StandardLines

    lines = StandardLines()
    await lines.open()
    async with adopted_orphans():
        await _serve_lines(gateway, name, lines)


async def _serve_lines(gateway: Gateway, name: str, lines: StandardLines) -> None:
    from gateway.security.authentication import ADMINISTRATOR

    # Importing the protocol's package takes half a second; the store is opened meanwhile.
    importing = asyncio.create_task(asyncio.to_thread(importlib.import_module, "gateway.protocols.acp.connection"))
    await gateway.open()
    connection = (await importing).Connection(gateway, name, ADMINISTRATOR, lines.write)
    receiving = asyncio.create_task(_receive(connection, lines))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, receiving.cancel)
    try:
        await asyncio.wait([receiving])
    finally:
        await gateway.close()
    if not receiving.cancelled():
        receiving.result()


async def _receive(connection: Connection, lines: StandardLines) -> None:
    from gateway.protocols.acp.transport.messages import PARSE_ERROR, parse_message

    try:
        async for line in lines.lines():
            try:
                message = parse_message(line)
            except ValueError:
                await lines.write(PARSE_ERROR)
            else:
                await connection.receive(message)
        await connection.drain(FINISH_TIMEOUT)
    finally:
        await connection.close()
