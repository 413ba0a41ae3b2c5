"""What one server of PostgreSQL commits: `python -m benchmarks.postgresql_capacity [URL]`, with an empty database.

Without a URL it starts a server of its own, with the defaults of PostgreSQL. Each writer stores rows of events as a node does: a
transaction checks the lease and adds a row. The rate is that of all writers together.
"""

from __future__ import annotations

import argparse
import threading
import time

import psycopg

from benchmarks.postgresql_server import server_or

EVENTS, SIZE = 20, 100
"""Events of a row, and bytes of each."""
SECONDS, ROUNDS = 1.0, 4
"""Of each measurement, and how often it is repeated."""
WRITERS = (1, 2, 3, 8)
BODY = b"x" * EVENTS * SIZE


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgresql_capacity", description=__doc__)
    parser.add_argument("url", nargs="?", default="", help="an empty database; without it a server is started")
    with server_or(parser.parse_args().url) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE leases (log_id text PRIMARY KEY, node text, token bigint)")
            connection.execute(
                "CREATE TABLE events (log_id text, first bigint, last bigint, body bytea, PRIMARY KEY (log_id, first))"
            )
        print(f"rows of {EVENTS} events of {SIZE} bytes, {ROUNDS} times {SECONDS:g} s each\n")  # noqa: T201
        print("| writers | commits/s |")  # noqa: T201
        print("|---:|---:|")  # noqa: T201
        for writers in WRITERS:
            rate = sum(_measure(url, writers) for _ in range(ROUNDS)) / ROUNDS
            print(f"| {writers} | {rate:.0f} |", flush=True)  # noqa: T201


class _Writer:
    """A node, as far as the database sees it."""

    def __init__(self, url: str, number: int) -> None:
        self._log_id, self.count = f"log-{number}-{time.monotonic_ns()}", 0
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("INSERT INTO leases VALUES (%s, 'node', 1)", (self._log_id,))

    def write(self, until: float) -> None:
        execute = self._connection.execute
        while time.monotonic() < until:
            row = self.count * EVENTS + 1
            execute("BEGIN")
            execute("SELECT token FROM leases WHERE log_id = %s FOR SHARE", (self._log_id,)).fetchall()
            execute("INSERT INTO events VALUES (%s, %s, %s, %s)", (self._log_id, row, row + EVENTS - 1, BODY))
            execute("COMMIT")
            self.count += 1

    def close(self) -> None:
        self._connection.close()


def _measure(url: str, count: int) -> float:
    """Return the commits of a second."""
    writers = [_Writer(url, number) for number in range(count)]
    until = time.monotonic() + SECONDS
    threads = [threading.Thread(target=writer.write, args=(until,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for writer in writers:
        writer.close()
    return sum(writer.count for writer in writers) / SECONDS


if __name__ == "__main__":
    main()
