"""An agent over the Agent Client Protocol on standard input and output, by a gateway in this process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from drivers.runtime.subreaper import adopted_orphans
from gateway.agents.configured_agents import Agents
from gateway.config import Settings
from gateway.errors import ConfigError, GatewayError
from gateway.gateway import Gateway
from gateway.observability.logs import set_up_logging
from gateway.private_files import private_data_directory, private_directory
from gateway.protocols.acp.connection import Connection
from gateway.protocols.acp.transport.messages import PARSE_ERROR, parse_message
from gateway.protocols.acp.transport.stdio import StandardLines
from gateway.security.authentication import ADMINISTRATOR
from gateway.security.redaction import Redactor
from gateway.server.data_dir_lock import DataDirLocked, data_dir_lock

FINISH_TIMEOUT = 5.0
"""Seconds for responses that are pending when standard input ends."""
MAX_PROCESSES = 32
"""How many of these processes may run at the same time, each with its own data directory."""


def run_standalone(settings: Settings, name: str) -> None:
    """Serve one agent until standard input ends. Raises ConfigError for an unknown agent."""
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


@contextmanager
def _own_data_dir(settings: Settings) -> Iterator[Path]:
    """Lock and yield the first free directory `acp/N` in the data directory; the next start takes the same one.

    Sessions are stored there. Raises ConfigError if MAX_PROCESSES directories are locked, or one cannot be used.
    """
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
    lines = StandardLines()
    await lines.open()
    async with adopted_orphans():
        await _serve_lines(gateway, name, lines)


async def _serve_lines(gateway: Gateway, name: str, lines: StandardLines) -> None:
    await gateway.open()
    connection = Connection(gateway, name, ADMINISTRATOR, lines.write)
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
