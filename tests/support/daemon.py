"""A gateway for tests: in this process (`run_gateway`), or as a daemon process (`Daemon`) that can be killed and restarted."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, Self, cast

import httpx

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.app import Gateway
from gateway.config import parse
from gateway.http.server import Server, listening_address
from gateway.security.redaction import Redactor
from gateway.server.http_daemon import uvicorn_config
from gateway.store.times import STORE_TIMES, StoreTimes
from tests.support import cluster
from tests.support.app_pool import app_of
from tests.support.fork_server import forked_command
from tests.support.manual_clock import ManualClock
from tests.support.round_robin import round_robin
from tests.support.store_template import create_database
from tests.support.stores import configured_store
from tests.support.waiting import wait_until

KEY = "test-key-0123456789"
SCENARIOS = Path(__file__).parents[1] / "scenarios"
START_SECONDS, ABORT_SECONDS = 60.0, 15.0


def gateway_config(data_dir: Path, **tables: Any) -> dict[str, Any]:
    """Return a configuration with a `script` agent whose scenarios are in `data_dir`/scenes, merged with the given tables."""
    scenes = data_dir / "scenes"
    scenes.mkdir(parents=True, exist_ok=True)
    agents = {"script": {"driver": "script", "cwd": str(scenes)}, **tables.pop("agents", {})}
    server = {"data_dir": str(data_dir / "data"), "port": 0, "linger": 0.0, **tables.pop("server", {})}
    limits = {"grace": 1.0, **tables.pop("limits", {})}
    store = {**configured_store(Path(server["data_dir"])), **tables.pop("store", {})}
    found = {"server": server, "auth": {"keys": [KEY]}, "limits": limits, "agents": agents, **tables}
    return {**found, "store": store} if store else found


@dataclass
class RunningGateway:
    """A gateway that accepts connections; `client` sends the API key."""

    url: str
    gateway: Gateway
    client: httpx.AsyncClient


@asynccontextmanager
async def run_gateway(
    config: Mapping[str, Any], clock: Clock = SYSTEM_CLOCK, store_times: StoreTimes = STORE_TIMES
) -> AsyncIterator[RunningGateway]:
    """Run a gateway in this loop, on a free port of 127.0.0.1; two nodes behind a proxy where tests.support.cluster says so."""
    if cluster.placement() and "node" not in config:
        async with _run_nodes(config, clock) as nodes:
            yield nodes
        return
    settings = parse(config)
    gateway = Gateway(settings, settings.auth.keys, Redactor(), clock=clock, store_times=store_times)
    async with serve_gateway(gateway) as running:
        yield running


@asynccontextmanager
async def _run_nodes(config: Mapping[str, Any], clock: Clock) -> AsyncIterator[RunningGateway]:
    """Run two nodes with this configuration behind a proxy that gives each request to the next one."""
    first = Path(config["server"]["data_dir"])
    if not str(config.get("store", {}).get("url", "")).startswith("postgresql"):
        cluster.leave_out("has a store of its own")
    key = first.parent / "encryption-key"
    key.parent.mkdir(parents=True, exist_ok=True)
    key.write_text(cluster.ENCRYPTION_KEY)
    keys = first.parent / "node-keys"
    keys.write_text(cluster.NODE_KEY)
    async with AsyncExitStack() as stack:
        nodes = []
        second = first.with_name(f"{first.name}-2")
        for data_dir in (first, second):
            data_dir.mkdir(mode=0o700, exist_ok=True)
        # An agent has a folder of its own at each node otherwise, and a session another one wherever it is shown.
        for folders in ("workspaces", "key-workspaces"):
            (first / folders).mkdir(mode=0o700, exist_ok=True)
            if not (second / folders).is_symlink():
                (second / folders).symlink_to(first / folders)
        for data_dir in (first, second):
            listener = bound_socket()
            node = {"address": address_of(listener), "encryption_key_file": str(key), "key_file": str(keys)}
            server = {**config["server"], "data_dir": str(data_dir)}
            settings = parse({**config, "server": server, "node": node})
            gateway = Gateway(settings, settings.auth.keys, Redactor(), clock=clock)
            nodes.append(await stack.enter_async_context(serve_gateway(gateway, listener)))
        for running in nodes:
            assert running.gateway.node is not None
            await running.gateway.node.beat()
            cluster.place(running.gateway)
        url = await stack.enter_async_context(round_robin([running.url for running in nodes]))
        client = await stack.enter_async_context(http_client(url))
        yield RunningGateway(url, cast(Gateway, cluster.ClusterGateway([running.gateway for running in nodes], url)), client)


def bound_socket() -> socket.socket:
    """Return a socket with a port of 127.0.0.1 that nobody else gets, for a gateway that knows its address before it listens."""
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    return found


def address_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def serve_gateway(gateway: Gateway, listener: socket.socket | None = None) -> AsyncIterator[RunningGateway]:
    """Serve a gateway in this loop, on a bound socket, by default one with a free port of 127.0.0.1."""
    settings = gateway.settings
    if not settings.store.url:
        await create_database(settings.data_dir)
    with app_of(gateway) as app:
        server = _FastExitServer(uvicorn_config(gateway, app, "127.0.0.1", 0))
        task = asyncio.create_task(server.serve([listener] if listener is not None else None))
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the gateway did not start")
            await asyncio.sleep(0.005)
        _, port = listening_address(server)
        url = f"http://127.0.0.1:{port}"
        try:
            async with http_client(url) as client:
                yield RunningGateway(url, gateway, client)
        finally:
            await _outlast(gateway.clock, gateway.stop_runs())
            server.should_exit = True
            await task
            # The turned clock may have overtaken the end of an agent's processes, which takes real time. It goes on then, and
            # needs the event loop.
            await _outlast(gateway.clock, wait_until(lambda: not _agents_end(), "the agents' processes have ended"))


def _agents_end() -> bool:
    """Whether an agent's process is being ended."""
    coroutines = (task.get_coro() for task in asyncio.all_tasks())
    return any(getattr(coroutine, "__qualname__", "") == "Process._close" for coroutine in coroutines)


async def _outlast(clock: Clock, awaited: Awaitable[Any]) -> None:
    await (clock.outlast(awaited) if isinstance(clock, ManualClock) else awaited)


NO_CERTIFICATES = httpx.create_ssl_context(verify=False)


def http_client(url: str) -> httpx.AsyncClient:
    """Return a client that sends the API key. It loads no certificates, because that takes longer than many tests."""
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60, verify=NO_CERTIFICATES)


class _FastExitServer(Server):
    """A server that looks for its end in steps of 5 ms, where uvicorn's are 0.1 s: that adds up over all tests."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # noqa: ASYNC110 - as in uvicorn, which has no event for it
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # As uvicorn's, which waits 0.1 s even if no connection is open.
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for _ in range(20):
            if not self.server_state.connections and not self.server_state.tasks:
                return await self.lifespan.shutdown()
            await asyncio.sleep(0.005)
        await super().shutdown(sockets)


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@dataclass
class Daemon:
    """`portico serve` in its own process. `start()` sets `url`; `kill()` sends SIGKILL, `stop()` SIGTERM.

    The fork server forks it, unless `forked` is false, which is for tests of the start itself.
    """

    config: Path
    home: Path
    env: dict[str, str] = field(default_factory=dict)
    forked: bool = True
    url: str = ""
    process: asyncio.subprocess.Process | None = None
    """The daemon, or its launcher (tests/support/fork_launcher.py), which passes signals on and has the daemon's exit status."""
    pid: int = 0
    stderr: bytes = b""
    log_mode: ClassVar[Literal["wb", "ab"]] = "wb"
    own_session: ClassVar[bool] = False

    async def start(self) -> Self:
        """Start it, and wait until it accepts connections. Raises RuntimeError with its log if it does not."""
        await self.spawn()
        assert self.process is not None and self.process.stdout is not None
        try:
            line = (await asyncio.wait_for(self.process.stdout.readline(), START_SECONDS)).decode()
        except TimeoutError:
            raise RuntimeError(f"the daemon was not ready after {START_SECONDS:g} s: {await self.abort()}") from None
        if not line.startswith("portico listening on "):
            await self.process.communicate()
            code = self.process.returncode
            raise RuntimeError(f"no listening line but {line!r}, exit code {code}: {self.log_tail()}")
        self.url = line.split()[-1]
        return self

    async def spawn(self) -> None:
        """Start the process without waiting for it."""
        # The log goes to a file: the daemon would block on a full pipe that is not read.
        with self.log.open(self.log_mode) as log:
            await self._spawn(log)

    def command(self) -> Sequence[str]:
        """The command of a daemon that is not forked."""
        return (sys.executable, "-m", "gateway", "serve", "--config", str(self.config))

    async def _spawn(self, log: IO[bytes]) -> None:
        reading, writing = os.pipe()
        command = forked_command("gateway", *self.command()[3:], pid_fd=writing) if self.forked else self.command()
        try:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self.environment(),
                pass_fds=(writing,),
                start_new_session=self.own_session,
            )
        finally:
            os.close(writing)
        try:
            self.pid = int(await asyncio.to_thread(os.read, reading, 100)) if self.forked else self.process.pid
        finally:
            os.close(reading)

    @property
    def log(self) -> Path:
        return self.home / "daemon.log"

    def log_tail(self, size: int = 5000) -> str:
        return self.log.read_text(errors="replace")[-size:]

    async def abort(self) -> str:
        """Send SIGABRT, on which the process may write what its threads do to its log. Return the end of the log."""
        if self.running:
            self.send_signal(signal.SIGABRT)
            assert self.process is not None
            # Another process may hold the other end of its output open.
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), ABORT_SECONDS)
        return self.log_tail()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def environment(self) -> dict[str, str]:
        own = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "TMPDIR": tempfile.gettempdir()}
        return {**own, **self.env}

    def client(self) -> httpx.AsyncClient:
        return http_client(self.url)

    async def kill(self) -> None:
        """Send SIGKILL and wait."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)
        await self.process.communicate()

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal, wait, and return the exit code. Standard error is in `stderr` afterwards."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        await asyncio.wait_for(self.process.communicate(), 60)
        self.stderr = self.log.read_bytes()
        return self.process.returncode or 0
