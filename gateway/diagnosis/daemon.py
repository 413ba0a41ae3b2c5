"""Checks of the port and the daemon: who serves the port, and which process has the lock of the data directory."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import http.client
import json
import os
import shlex
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.file_threads import ANSWER_SECONDS, bounded
from gateway import __version__
from gateway.config import Settings
from gateway.diagnosis.report import Check
from gateway.security.loopback import is_loopback
from gateway.security.socket_proof import RECORD

LOCK = "lock"
"""The lock of a data directory."""
SERVICE = "portico.service"
"""The unit of `portico service install`."""
OTHER_PORTS = 50
"""Ports after the configured one among which a free one is looked for."""
MAX_ANSWER = 4 * 1024 * 1024
"""Bytes of an answer that are read."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon is asked."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def request(
        self, method: str, path: str, key: str | None = None, body: Any = None, seconds: float = ANSWER_SECONDS
    ) -> Answer:
        """Send a request, by no proxy, and return the whole answer. Blocks. Raises OSError, http.client.HTTPException."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        try:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            headers |= {"Authorization": f"Bearer {key}"} if key else {}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return Answer(response.status, response.read(MAX_ANSWER))
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Answer:
    """The status and the body of a response."""

    status: int
    body: bytes

    def object(self) -> Mapping[str, Any]:
        """The JSON object of the body; an empty one if it is something else."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Port:
    """What was found at the configured address.

    `free`: nothing listens there. `portico`: a daemon of `version`. `other`: another program. `silent`: a program that accepts
    connections and does not answer. `unusable`: the address cannot be listened on, for the reason `why`.
    """

    state: Literal["free", "portico", "other", "silent", "unusable"]
    version: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has locked the data directory. Its `pid` is None if it cannot be found out."""

    pid: int | None
    arguments: tuple[str, ...] = ()
    is_stopped: bool = False
    is_service: bool = False
    """Whether systemd has started it, as the unit of `portico service install`."""
    ports: frozenset[int] | None = None
    """The ports that it listens on; None if that cannot be found out."""

    @property
    def described(self) -> str:
        # Arguments may be anything: only the names of Portico's own commands are repeated.
        own = "portico " + next((a for a in self.arguments if a in ("serve", "acp")), "")
        name = own if own != "portico " else Path(self.arguments[0]).name if self.arguments else "a program"
        return "another process" if self.pid is None else f"{name} (process {self.pid})"

    @property
    def is_daemon(self) -> bool:
        return "serve" in self.arguments and not self.serves_editors

    @property
    def serves_editors(self) -> bool:
        """Whether it is the daemon that `portico acp` starts, or a `portico acp` that starts it."""
        return "--for-editors" in self.arguments or ("acp" in self.arguments and "serve" not in self.arguments)

    def restart(self, serve: str, signal: str = "") -> str:
        """Return the shell command that ends it and starts a daemon by the command `serve`."""
        if self.is_service:
            return f"systemctl --user restart {SERVICE}"
        return serve if self.pid is None else f"kill {signal}{self.pid}; {serve}"

    def may_serve(self, port: int) -> bool:
        """Whether the daemon at a port can be this process."""
        return not self.serves_editors and (self.ports is None or port in self.ports)


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """The checks, and the address of a daemon that has the data directory; None if there is none that answers."""

    checks: list[Check]
    address: Address | None


def daemon_address(settings: Settings) -> Address:
    """Return the address at which the daemon of these settings is asked: loopback, where it listens on all interfaces."""
    return Address(_reachable(settings.server.host), settings.server.port)


def daemon_version(answer: Answer) -> str | None:
    """Return the version of the daemon that has answered `GET /healthz` so; None if it is another program."""
    found = answer.object()
    version = found.get("version")
    return version if answer.status == 200 and found.get("status") == "ok" and isinstance(version, str) else None


async def check_daemon(settings: Settings | None, portico: str, clock: Clock = SYSTEM_CLOCK) -> DaemonReport:
    """Find out who serves the configured port, and who has the data directory.

    `portico` is the shell command of Portico, with `{}` for a subcommand; arguments can be appended.
    """
    if settings is None:
        return DaemonReport([], None)
    server = settings.server
    address = daemon_address(settings)
    asked = asyncio.create_task(_port(server.host, address, clock)) if server.port else None
    try:
        holder = await bounded(lambda: find_holder(settings.data_dir), clock=clock)
    except (OSError, TimeoutError):
        # The check of the data directory has the reason.
        holder = None
    port = await asked if asked else Port("free")
    if port.state == "portico" and holder is not None and holder.may_serve(server.port):
        return DaemonReport(await _running(address, port, holder, portico, clock), address)
    there = f"{server.host}:{server.port}" if server.port else "a free port at each start (server.port = 0)"
    checks = [_check_port(port, there, holder, await asyncio.to_thread(_other_port, server.host, server.port), portico)]
    holder_port = await _port_of(holder, address, clock) if holder is not None and port.state != "silent" else None
    checks.append(_not_answering(port, there, holder, holder_port, portico))
    return DaemonReport(checks, None)


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


async def _port(host: str, address: Address, clock: Clock) -> Port:
    try:
        await bounded(lambda: _listen(host, address.port), clock=clock)
        return Port("free")
    except TimeoutError:
        return Port("unusable", why="its name is not resolved")
    except UnicodeError:
        return Port("unusable", why="it is no name of a host")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return Port("unusable", why=error.strerror)
    try:
        answer = await bounded(lambda: address.request("GET", "/healthz"), clock=clock)
    except TimeoutError:
        return Port("silent")
    except (OSError, http.client.HTTPException):
        return Port("other")
    version = daemon_version(answer)
    return Port("portico", version) if version is not None else Port("other")


async def _port_of(holder: Holder, address: Address, clock: Clock) -> int | None:
    """Return the port at which a daemon serves its clients, beside one for application-side tools; None if none answers."""
    for port in sorted(holder.ports or ()) if holder.is_daemon and not holder.is_stopped else ():
        if (await _port(address.host, replace(address, port=port), clock)).state == "portico":
            return port
    return None


async def _running(address: Address, port: Port, holder: Holder, portico: str, clock: Clock) -> list[Check]:
    """The checks of a daemon that answers."""
    process = f", process {holder.pid}" if holder.pid is not None else ""
    running = f"running at {address.url}, version {port.version}{process}"
    checks = [Check(name="Port", status="ok", text=f"{address.port}: the daemon serves it")]
    restarted = holder.restart(portico.format("serve"))
    try:
        answer = await bounded(lambda: address.request("GET", "/readyz"), clock=clock)
        found = answer.object()
        reasons, drained = found.get("reasons"), found.get("drained") is True
    except (OSError, http.client.HTTPException):
        reasons, drained = ["it does not answer whether it can take work"], False
    if reasons and drained:
        # Without a command: a restart would end the drain.
        return [*checks, Check(name="Daemon", status="warning", text=f"{running}; {'; '.join(map(str, reasons))}")]
    if reasons:
        text = f"{running}; it cannot take work: {'; '.join(map(str, reasons))}"
        return [*checks, Check(name="Daemon", status="problem", text=text, command=restarted)]
    if port.version != __version__:
        text = f"{running}; this command has version {__version__}: restart the daemon"
        return [*checks, Check(name="Daemon", status="warning", text=text, command=restarted)]
    return [*checks, Check(name="Daemon", status="ok", text=running)]


def _check_port(port: Port, there: str, holder: Holder | None, other: int | None, portico: str) -> Check:
    serve = portico.format("serve")
    elsewhere = f"{serve} --port {other}" if other else serve
    match port.state:
        case "free":
            return Check(name="Port", status="ok", text=f"{there} is free" if ":" in there else there)
        case "unusable":
            text = f"{there} cannot be listened on: {port.why}"
            return Check(name="Port", status="problem", text=text, command=f"{serve} --host 127.0.0.1 --port {other or 7700}")
        case "portico":
            text = f"{there} is served by a Portico (version {port.version}) with another data folder"
            return Check(name="Port", status="problem", text=text, command=elsewhere)
        case "silent" if holder is not None:
            return Check(name="Port", status="info", text=f"{there} is in use, by a program that does not answer")
        case _:
            silent = " and does not answer" if port.state == "silent" else ""
            text = f"{there} is in use by another program{_listener(int(there.rpartition(':')[2]))}{silent}"
            return Check(name="Port", status="problem", text=text, command=elsewhere)


def _not_answering(port: Port, there: str, holder: Holder | None, holder_port: int | None, portico: str) -> Check:
    """The check of a daemon that does not answer at the configured address. `holder_port` is the one where the holder does."""
    serve = portico.format("serve")
    if holder is None:
        return Check(name="Daemon", status="info", text="not running; start it with", command=serve)
    if holder.is_stopped:
        text = f"{holder.described} has the data folder, and is stopped"
        return Check(name="Daemon", status="problem", text=text, command=f"kill -CONT {holder.pid}")
    if holder.serves_editors:
        text = f"runs for editors only (process {holder.pid}, which portico acp has started), and ends for a daemon that starts"
        return Check(name="Daemon", status="info", text=text, command=serve)
    if port.state == "silent":
        text = f"{holder.described} has the data folder, and does not answer at {there} within {ANSWER_SECONDS:g} s"
        # It may not handle SIGTERM either. What is stored stays.
        return Check(name="Daemon", status="problem", text=text, command=holder.restart(serve, "-9 "))
    if holder.is_daemon:
        text = f"{holder.described} has the data folder, and does not listen at {there}: it starts, or has another port"
        other = holder_port or "PORT"
        return Check(name="Daemon", status="warning", text=text, command=f"{portico.format('doctor')} --port {other}")
    text = f"{holder.described} has the lock of the data folder, and does not serve {there}"
    command = f"kill {holder.pid}" if holder.pid is not None else None
    return Check(name="Daemon", status="problem", text=text, command=command)


# -- the port ------------------------------------------------------------------------------------------------------------------


def _listen(host: str, port: int) -> None:
    """Listen for a moment, as the daemon does. Raises OSError if it cannot."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family, kind, protocol) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1)


def _other_port(host: str, port: int) -> int | None:
    """Return a free port after the configured one."""
    bind = host if is_loopback(host) else "127.0.0.1"
    for other in range(max(port, 1024) + 1, min(max(port, 1024) + OTHER_PORTS, 65536)):
        with suppress(OSError):
            _listen(bind, other)
            return other
    return None


def _listener(port: int) -> str:
    """The program that listens on a port, in words; empty if that cannot be found out."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,) and connection.pid:
                return f" ({psutil.Process(connection.pid).name()}, process {connection.pid})"
    return ""


# -- the lock ------------------------------------------------------------------------------------------------------------------


def find_holder(data_dir: Path) -> Holder | None:
    """Return the process that has locked a data directory; None if there is none. Blocks. Raises OSError."""
    try:
        lock = os.open(data_dir / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        try:
            # Shared, so that it does not fail for a second diagnosis. A daemon that starts now tries again.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            # The process that took the lock may have handed it over and ended, as `portico acp` does.
            holders = [_holder(_pid_of_record(data_dir)), _holder(_pid_of_lock(os.fstat(lock).st_ino))]
            own = (holder for holder in holders if holder.is_daemon or holder.serves_editors)
            return next(own, holders[1])
    finally:
        os.close(lock)


def _pid_of_lock(inode: int) -> int | None:
    """Return the process that Linux names as the holder of an exclusive lock on a file."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            # 5: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF
            fields = line.split()
            if fields[1:2] == ["FLOCK"] and "WRITE" in fields and fields[5].rpartition(":")[2] == str(inode):
                return int(fields[4]) or None
    return None


def _pid_of_record(data_dir: Path) -> int | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((data_dir / RECORD).read_bytes())["pid"])
    return None


def _holder(pid: int | None) -> Holder:
    if pid is None or pid <= 0:
        return Holder(None)
    try:
        process = psutil.Process(pid)
        stopped = process.status() == psutil.STATUS_STOPPED
        return Holder(pid, tuple(process.cmdline()), stopped, _is_service(pid), _ports(process))
    except psutil.Error:
        return Holder(None)


def _ports(process: psutil.Process) -> frozenset[int] | None:
    """Return the ports that a process listens on, whatever its arguments, variables and configuration say."""
    try:
        connections = process.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    return frozenset(found.laddr[1] for found in connections if found.status == psutil.CONN_LISTEN)


def _is_service(pid: int) -> bool:
    with suppress(OSError):
        return any(line.endswith(f"/{SERVICE}") for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    return False


def quoted_command(program: str, options: Mapping[str, Path | str | None]) -> str:
    """Return the shell command of Portico with `{}` for a subcommand, and the options that are given."""
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    escaped = shlex.join(given).replace("{", "{{").replace("}", "}}")
    return f"{shlex.quote(program)} {{}} {escaped}".rstrip()
