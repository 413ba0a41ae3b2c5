"""What one server of PostgreSQL commits: `python -m benchmarks.postgresql_capacity [URL]`, with an empty database.

Without a URL it starts a server of its own, with the defaults of PostgreSQL. Each writer stores rows of events as a node does: a
transaction checks the lease and adds a row. The rate is that of all writers together: without notifications, with one in each
transaction, which PostgreSQL commits one after the other, and with those of a node, which come after the commits. The kinds are
measured in turn, so that other work on the machine changes all columns. The delay is from a commit to the notification about it
at another listener.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import psycopg

from benchmarks.figures import percentile
from benchmarks.postgresql_server import server_or
from gateway.store.notifications import CHANNEL
from gateway.store.postgresql_notifications import Notifications
from gateway.store.urls import backend_of

EVENTS, SIZE = 20, 100
"""Events of a row, and bytes of each."""
SECONDS, ROUNDS = 1.0, 4
"""Of each measurement, and how often it is repeated."""
WRITERS = (1, 2, 3, 8)
BODY = b"x" * EVENTS * SIZE
Kind = Literal["none", "in commits", "after commits"]
KINDS: tuple[Kind, ...] = ("none", "in commits", "after commits")


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
        print(f"rows of {EVENTS} events of {SIZE} bytes, {ROUNDS} times {SECONDS:g} s each; commits/s\n")  # noqa: T201
        print("| writers | no NOTIFY | NOTIFY in each | NOTIFY after, as nodes do | delay, median and p95 |")  # noqa: T201
        print("|---:|---:|---:|---:|---:|")  # noqa: T201
        for writers in WRITERS:
            rates, delays = defaultdict[Kind, list[float]](list), list[float]()
            for _ in range(ROUNDS):
                for kind in KINDS:
                    rate, found = _measure(url, writers, kind)
                    rates[kind].append(rate)
                    delays += found if kind == "after commits" else []
            cells = " | ".join(f"{sum(rates[kind]) / ROUNDS:.0f}" for kind in KINDS)
            delay = f"{percentile(delays, 0.5):.1f} and {percentile(delays, 0.95):.1f} ms"
            print(f"| {writers} | {cells} | {delay} |", flush=True)  # noqa: T201


class _Writer:
    """A node, as far as the database sees it."""

    def __init__(self, url: str, number: int, kind: Kind) -> None:
        self.log_id, self.count, self._kind = f"log-{number}-{time.monotonic_ns()}", 0, kind
        self.committed: dict[str, float] = {}
        self._url, self._stopped = url, threading.Event()
        self._notifications = Notifications(backend_of(url).connect)
        self._listener = threading.Thread(target=self._notifications.listen, args=(lambda log_ids: None, self._stopped))

    def __enter__(self) -> _Writer:
        self._connection = psycopg.connect(self._url, autocommit=True)
        self._connection.execute("INSERT INTO leases VALUES (%s, 'node', 1)", (self.log_id,))
        if self._kind != "none":
            self._listener.start()
        return self

    def write(self, until: float) -> None:
        execute, in_commits = self._connection.execute, self._kind == "in commits"
        while time.monotonic() < until:
            row = self.count * EVENTS + 1
            execute(f"BEGIN; SELECT pg_notify('{CHANNEL}', '{self.log_id}')" if in_commits else "BEGIN")
            execute("SELECT token FROM leases WHERE log_id = %s FOR SHARE", (self.log_id,)).fetchall()
            execute("INSERT INTO events VALUES (%s, %s, %s, %s)", (self.log_id, row, row + EVENTS - 1, BODY))
            execute("COMMIT")
            self.count += 1
            if self._kind == "after commits":
                # The oldest commit that no notification was received about yet.
                self.committed.setdefault(self.log_id, time.monotonic())
                self._notifications.add([self.log_id])
                self._notifications.send()

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._stopped.set()
        if self._kind != "none":
            self._notifications.wake()
            self._listener.join()


class _Follower:
    """A node that is notified of what the others write."""

    def __init__(self, url: str, writers: Sequence[_Writer]) -> None:
        self._writers, self._stopped, self.delays = {one.log_id: one for one in writers}, threading.Event(), list[float]()
        self._notifications = Notifications(backend_of(url).connect)
        self._thread = threading.Thread(target=self._notifications.listen, args=(self._notified, self._stopped))

    def _notified(self, log_ids: Sequence[str] | None) -> None:
        now = time.monotonic()
        for writer in (self._writers[log_id] for log_id in log_ids or () if log_id in self._writers):
            if (committed := writer.committed.pop(writer.log_id, None)) is not None:
                self.delays.append((now - committed) * 1000)

    def __enter__(self) -> _Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._notifications.wake()
        self._thread.join()


def _measure(url: str, count: int, kind: Kind) -> tuple[float, list[float]]:
    """Return the commits of a second, and the delays in ms."""
    writers = [_Writer(url, number, kind) for number in range(count)]
    threads = list[threading.Thread]()
    with _Follower(url, writers) as follower:
        for writer in writers:
            writer.__enter__()
        time.sleep(0.1)
        until = time.monotonic() + SECONDS
        for writer in writers:
            threads.append(threading.Thread(target=writer.write, args=(until,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        for writer in writers:
            writer.__exit__()
    return sum(writer.count for writer in writers) / SECONDS, follower.delays


if __name__ == "__main__":
    main()
