"""PgBouncer for tests, if it is installed: pools transactions on a free port of 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support import run_folder
from tests.support.postgresql import Server, _free_port, _other_account

POOL = 3
"""Connections to the server: less than a store has to the pooler."""


@contextmanager
def pooled(server: Server, database: str) -> Iterator[str]:
    """Give the URL of a database behind a pooler. Skips the test where `pgbouncer` is not installed."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer", dir=run_folder.current()))
    port = _free_port()
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"""[databases]
{database} = host=127.0.0.1 port={server.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {POOL}
"""
    )
    # It does not run as root.
    account: dict[str, Any] = {}
    if os.geteuid() == 0:
        other = _other_account()
        account = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    command = [program, "-q", str(folder / "pgbouncer.ini")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **account)
    url = f"postgresql://postgres@127.0.0.1:{port}/{database}"
    try:
        _wait(url)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait(url: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            return psycopg.connect(url).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
