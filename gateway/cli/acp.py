"""`portico acp`: an agent for an editor that starts one, over standard input and output. With a gateway of its own in this
process, or as a thin client of a running daemon."""

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

from gateway.agents.configured import Agents
from gateway.config import Settings
from gateway.errors import ConfigError, GatewayError
from gateway.gateway import Gateway
from gateway.observability.logs import set_up_logging
from gateway.protocols.acp.transport.stdio import NOT_JSON, StandardLines, parsed
from gateway.security.authentication import ADMINISTRATOR
from gateway.security.loopback import is_loopback
from gateway.security.redaction import Redactor
from gateway.server.daemon import data_dir_lock

if TYPE_CHECKING:
    from gateway.protocols.acp.connection import Connection

LAST_WORDS = 5.0
"""Seconds for what is still to be answered when standard input has ended."""
AT_ONCE = 32
"""How many of these may run at once, each with a folder of its own."""


def run_alone(settings: Settings, name: str) -> None:
    """Serve one agent until standard input ends. Raises ConfigError for an agent that there is not."""
    agents = Agents(settings, workspace=Path.cwd(), any_directory=True)
    try:
        agents = agents.only(name)
    except GatewayError as error:
        raise ConfigError(str(error)) from None
    with _data_dir(settings) as data_dir:
        redactor = Redactor()
        set_up_logging(settings.server.log_level, settings.server.log_format, redactor)
        own = settings.model_copy(update={"server": settings.server.model_copy(update={"data_dir": data_dir})})
        asyncio.run(_serve(Gateway(own, (), redactor, agents), name))


def run_connected(
    settings: Settings, name: str, url: str, key_file: Path | None, environ: Mapping[str, str] = os.environ
) -> None:
    """Carry messages between an editor and a daemon. Raises ConfigError where that is not there."""
    from gateway.protocols.acp.transport.bridge import bridge, endpoint

    asyncio.run(bridge(endpoint(url, name), _key(settings, url, key_file, environ)))


def _key(settings: Settings, url: str, key_file: Path | None, environ: Mapping[str, str]) -> str | None:
    """The key for a daemon: of the file, of the environment, or, on this machine, of the configuration or its data directory."""
    if key_file is not None:
        try:
            return key_file.expanduser().read_text().strip()
        except OSError as error:
            raise ConfigError(f"--key-file {key_file}: {error.strerror}") from None
    if given := environ.get("PORTICO_API_KEY", "").strip():
        return given
    # What opens this machine's gateway is not shown to another machine.
    host = urlsplit(url if "://" in url else f"http://{url}").hostname or ""
    if not is_loopback(host):
        return None
    generated = settings.data_dir / "api-key"
    known = [*settings.auth.keys, *([generated.read_text().strip()] if generated.exists() else [])]
    return known[0] if known else None


@contextmanager
def _data_dir(settings: Settings) -> Iterator[Path]:
    """A data directory that is this process's alone: beside the daemon's, and the same one again at the next start.

    Sessions are kept there. Another editor that is open at the same time has the next one.
    """
    with ExitStack() as held:
        for n in range(1, AT_ONCE + 1):
            data_dir = settings.data_dir / "acp" / str(n)
            data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                held.enter_context(data_dir_lock(data_dir))
            except ConfigError:
                continue
            yield data_dir
            return
    raise ConfigError(f"{AT_ONCE} of these run already; start a daemon with `portico serve`, and give --connect its address")


async def _serve(gateway: Gateway, name: str) -> None:
    """Until the input ends, or a signal comes."""
    lines = StandardLines()
    await lines.open()
    # The protocol's package takes half a second; the store is opened meanwhile.
    importing = asyncio.create_task(asyncio.to_thread(importlib.import_module, "gateway.protocols.acp.connection"))
    await gateway.open()
    talking = asyncio.create_task(_talk((await importing).Connection(gateway, name, ADMINISTRATOR, lines.write), lines))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, talking.cancel)
    try:
        await asyncio.wait([talking])
    finally:
        await gateway.close()
    if not talking.cancelled():
        talking.result()


async def _talk(connection: Connection, lines: StandardLines) -> None:
    try:
        async for line in lines.lines():
            try:
                message = parsed(line)
            except ValueError:
                await lines.write(NOT_JSON)
            else:
                await connection.receive(message)
        await connection.settle(LAST_WORDS)
    finally:
        await connection.close()
