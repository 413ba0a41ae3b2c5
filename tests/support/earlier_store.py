"""A store as a Portico before version 1 of the tables has left it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import stores

NUMBER = 11
"""The version that the earlier Portico gave to its tables."""
MESSAGE = '{"role": "user", "content": "ä 東京\\n"}'
SECRET = b"\x00\xff encrypted"

_KILLED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("INSERT INTO messages VALUES ('s', 1, 'last', 4)")
connection.commit()
os._exit(0)
"""


def write_and_kill(file: Path) -> None:
    """Add a message to an earlier store in a process that ends without closing the database file."""
    subprocess.run([sys.executable, "-c", _KILLED, str(file)], check=True)


def create_earlier_store(data_dir: Path) -> str:
    """Create some of the tables, with a row in most of them. Return the URL of the database."""
    url = stores.store_url(data_dir, empty=True)
    binary = "BLOB" if stores.kind() == "sqlite" else "BYTEA"
    for statement in (
        "CREATE TABLE schema_version (version INTEGER NOT NULL, compatible_from INTEGER)",
        f"INSERT INTO schema_version VALUES ({NUMBER}, 10)",
        f"CREATE TABLE sessions (id VARCHAR(64) PRIMARY KEY, agent VARCHAR(64) NOT NULL, secrets {binary}, created_at FLOAT)",
        "CREATE TABLE messages (session_id VARCHAR(64), position INTEGER, body TEXT, seq BIGINT)",
        f"CREATE TABLE events (log_id VARCHAR(64), first BIGINT, last BIGINT, body {binary}, PRIMARY KEY (log_id, first))",
        "CREATE TABLE notes (session_id VARCHAR(64) PRIMARY KEY, title TEXT)",
    ):
        stores.sql(data_dir, statement)
    if stores.kind() == "sqlite":
        stores.sql(data_dir, "CREATE VIRTUAL TABLE search_texts USING fts5(body)")
        stores.sql(data_dir, "INSERT INTO search_texts (rowid, body) VALUES (1, 'tokyo')")
    stores.sql(data_dir, "INSERT INTO sessions VALUES ('s', 'echo', :secret, 1.5)", {"secret": SECRET})
    stores.sql(data_dir, "INSERT INTO messages VALUES ('s', 0, :body, NULL)", {"body": MESSAGE})
    stores.sql(data_dir, "INSERT INTO events VALUES ('s', 1, 3, :body)", {"body": '[1, "ä"]\n[2]'.encode()})
    return url
