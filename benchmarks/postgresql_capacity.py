"""What one server of PostgreSQL commits: `python -m benchmarks.postgresql_capacity URL`, with an empty database.

Each writer stores rows of events as a node does: a transaction notifies, checks the lease and adds a row. The rate is that of all
writers together, with and without the notification: PostgreSQL commits transactions that notify one after the other.
"""

from __future__ import annotations

import argparse
import threading
import time

import psycopg

EVENTS, SIZE = 20, 100
"""Events of a row, and bytes of each."""
SECONDS = 3.0
WRITERS = (1, 3, 8)
BODY = b"x" * EVENTS * SIZE


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgresql_capacity", description=__doc__)
    parser.add_argument("url", help="an empty database")
    url = parser.parse_args().url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE leases (log_id text PRIMARY KEY, node text, token bigint)")
        connection.execute(
            "CREATE TABLE events (log_id text, first bigint, last bigint, body bytea, PRIMARY KEY (log_id, first))"
        )
    print(f"rows of {EVENTS} events of {SIZE} bytes, {SECONDS:g} s each\n")  # noqa: T201
    print("| writers | NOTIFY | commits/s | events/s |\n|---:|---|---:|---:|")  # noqa: T201
    for writers in WRITERS:
        for notify in (False, True):
            rate = _rate(url, writers, notify)
            print(f"| {writers} | {'yes' if notify else 'no'} | {rate:.0f} | {rate * EVENTS:.0f} |")  # noqa: T201


def _rate(url: str, writers: int, notify: bool) -> float:
    counts, until = [0] * writers, time.monotonic() + SECONDS
    threads = [threading.Thread(target=_write, args=(url, n, notify, until, counts)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def _write(url: str, number: int, notify: bool, until: float, counts: list[int]) -> None:
    log_id = f"log-{number}-{notify}-{time.monotonic_ns()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO leases VALUES (%s, 'node', 1)", (log_id,))
        first = 1
        while time.monotonic() < until:
            connection.execute(f"BEGIN; SELECT pg_notify('capacity', '{log_id}')" if notify else "BEGIN")
            connection.execute("SELECT token FROM leases WHERE log_id = %s FOR SHARE", (log_id,))
            connection.execute("INSERT INTO events VALUES (%s, %s, %s, %s)", (log_id, first, first + EVENTS - 1, BODY))
            connection.execute("COMMIT")
            counts[number] += 1
            first += EVENTS


if __name__ == "__main__":
    main()
