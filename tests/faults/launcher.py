"""`portico` with injected faults: `python -m tests.faults.launcher serve …`, as `python -m gateway serve …`.

`FAULTS` is the path of a JSON file that is read before each statement:

| key | meaning |
|---|---|
| `id` | a new id starts counting again |
| `fail_after` | writes that succeed before the first that fails; absent: none fails |
| `seconds` | how long all writes fail from then on; 0: only that one |
| `error` | the text of SQLite's error |
| `kill_at` | the process kills itself at this write, counted from 1 |
| `kill` | `before` or `after` the write is executed |
| `clock` | seconds that are added to the system time (`time.time`) |

`FAULTS_TRACE` is a file to which each write is appended, with the number of its transaction. The methods of the store that
execute statements and transactions are wrapped, and `time.time` is replaced. Reads do not fail.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WRITES = ("INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "REPLACE")


class Faults:
    """The faults of this process, as the file defines them at each moment."""

    def __init__(self, path: Path, trace: Path | None) -> None:
        self._path, self._trace = path, trace
        self._read_at = 0
        self._plan: dict[str, Any] = {}
        self._writes = self._transactions = 0
        self._failing_since: float | None = None

    def plan(self) -> dict[str, Any]:
        """The content of the file. A new `id` starts the counts again."""
        changed = self._path.stat().st_mtime_ns
        if changed != self._read_at:
            before, self._plan = self._plan.get("id"), json.loads(self._path.read_text())
            self._read_at = changed
            if self._plan.get("id") != before:
                self._writes, self._failing_since = 0, None
        return self._plan

    def before(self, statement: str) -> None:
        """Called before each statement. Raises sqlite3.OperationalError."""
        if not is_write(statement):
            return
        plan = self.plan()
        self._writes += 1
        if self._trace is not None:
            with self._trace.open("a") as file:
                file.write(json.dumps([plan.get("id"), self._transactions, describe(statement)]) + "\n")
        if plan.get("kill_at") == self._writes and plan["kill"] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fails(plan):
            raise sqlite3.OperationalError(plan["error"])

    def after(self, statement: str) -> None:
        """Called after each statement."""
        plan = self.plan()
        if is_write(statement) and plan.get("kill_at") == self._writes and plan["kill"] == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    def transaction_over(self) -> None:
        """Called at the end of each transaction. The store has one writer, so that writes of two are not mixed."""
        self._transactions += 1

    def _fails(self, plan: dict[str, Any]) -> bool:
        if "fail_after" not in plan or self._writes <= plan["fail_after"]:
            return False
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            return True
        return time.monotonic() - self._failing_since < float(plan["seconds"])

    def now(self, real: float) -> float:
        """The system time as this process sees it."""
        return real + float(self.plan().get("clock", 0.0))


def is_write(statement: str) -> bool:
    """Whether a statement changes the database."""
    return statement.lstrip().upper().startswith(WRITES)


def describe(statement: str) -> str:
    """The verb and the table of a statement, such as `INSERT runs`."""
    words = statement.replace('"', " ").replace("(", " ").split()
    verb = words[0].upper()
    skip = {"INTO", "FROM", "TABLE", "INDEX", "UNIQUE", "OR", "REPLACE", "IGNORE", "IF", "EXISTS", "NOT"}
    return " ".join([verb, *[word for word in words[1:] if word.upper() not in skip][:1]])


def install(faults: Faults) -> None:
    """Make the faults effective for every SQLite store of this process."""
    from gateway.store.sql import Connection
    from gateway.store.sqlite import SqliteBackend

    def with_faults(execute: Callable[..., Any]) -> Callable[..., Any]:
        def executed(self: Connection, statement: str, *values: Any) -> Any:
            faults.before(statement)
            result = execute(self, statement, *values)
            faults.after(statement)
            return result

        return executed

    real = SqliteBackend.transaction

    @contextmanager
    def transaction(self: SqliteBackend) -> Iterator[Connection]:
        try:
            with real(self) as connection:
                yield connection
        finally:
            faults.transaction_over()

    for name in ("execute", "execute_many"):
        setattr(Connection, name, with_faults(getattr(Connection, name)))
    SqliteBackend.transaction = transaction  # type: ignore[method-assign]


def main() -> None:
    """Install the faults of the environment and run the command line."""
    path, trace = Path(os.environ.pop("FAULTS")), os.environ.pop("FAULTS_TRACE", "")
    faults = Faults(path, Path(trace) if trace else None)
    install(faults)
    if "clock" in faults.plan():
        real = time.time
        time.time = lambda: faults.now(real())
    from gateway.cli.main import main as portico

    sys.argv[0] = "portico"
    portico()


if __name__ == "__main__":
    main()
