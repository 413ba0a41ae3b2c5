"""Notifications of PostgreSQL about the logs that nodes write: sent after the commits, all that have come since in one.

PostgreSQL lets transactions that notify commit one after the other, with an fsync each. So a transaction that writes does not
notify: one of its own does, which changes nothing else and waits for no fsync. What a process that ends has not sent is lost;
those who listen look for changes every second besides. Only deletions of sessions, which nobody would find by looking, are
notified in their transactions (gateway/store/notifications.py).
"""

from __future__ import annotations

import logging
import math
import os
import selectors
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg

from gateway.store.notifications import CHANNEL
from gateway.store.sql import Connection

log = logging.getLogger(__name__)

NOTIFIED_LOGS = 100
"""Ids in one notification, whose payload has less than 8000 bytes. An id has 64 at most."""
INTERVAL = 0.005
"""Seconds between two notifications of a process at least. The first one after a pause is sent at once."""
LISTEN_TIMEOUT = 2.0
"""Seconds without a notification after which a listener checks its connection."""
LISTEN_RETRY = 1.0


class Notifications:
    """Sends the notifications of this process and receives those of all, its own included, on one connection and one thread."""

    def __init__(self, connect: Callable[[], Connection], interval: float = INTERVAL) -> None:
        self._connect, self.interval = connect, interval
        self._lock = threading.Lock()
        self._unsent = dict[str, None]()
        self._to_wake = False
        """Whether the thread may wait without knowing that there is something to send."""
        self._pipe: int | None = None
        """The end of a pipe that wakes the thread that listens; None while none does."""

    def add(self, log_ids: Collection[str]) -> None:
        """Notifies of these logs at the next `send`, or when the thread that listens stops."""
        with self._lock:
            self._to_wake = self._to_wake or not self._unsent
            self._unsent.update(dict.fromkeys(log_ids))

    def send(self) -> None:
        """Sends what was added, soon and once for several calls, while a thread listens. It does not block."""
        with self._lock:
            to_wake, self._to_wake = self._to_wake, False
        if to_wake:
            self.wake()

    def wake(self) -> None:
        """Wakes the thread that listens, so that it looks whether it is stopped."""
        with self._lock:
            if self._pipe is not None:
                # With a full pipe it will wake all the same.
                with suppress(BlockingIOError):
                    os.write(self._pipe, b"\0")

    def listen(self, notified: Callable[[Sequence[str] | None], None], stopped: threading.Event) -> None:
        """Calls `notified` with the ids of logs that were written, until `stopped` is set, and sends what `send` got.

        With None it is called where notifications may have been lost: after each connection. It blocks; wake it after a stop.
        """
        with self._waking() as awake:
            while not stopped.is_set():
                try:
                    with closing(self._connect().driver) as connection:
                        self._listen(connection, awake, notified, stopped)
                except psycopg.Error as error:
                    cause = str(error).split("\n", 1)[0]
                    log.warning("notifications of the database are not received; connecting again: %s", cause)
                    stopped.wait(LISTEN_RETRY)

    @contextmanager
    def _waking(self) -> Iterator[int]:
        """Give the end of a pipe that can be read after `wake`."""
        awake, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            yield awake
        finally:
            with self._lock:
                os.close(self._pipe)
                self._pipe = None
            os.close(awake)

    def _listen(
        self,
        connection: psycopg.Connection[Any],
        awake: int,
        notified: Callable[[Sequence[str] | None], None],
        stopped: threading.Event,
    ) -> None:
        received = list[str]()
        # Called for what comes while a statement is executed.
        connection.add_notify_handler(lambda notification: received.append(notification.payload))
        connection.execute(f"LISTEN {CHANNEL}")
        notified(None)
        sent = -math.inf
        with selectors.DefaultSelector() as selector:
            selector.register(connection.pgconn.socket, selectors.EVENT_READ)
            selector.register(awake, selectors.EVENT_READ)
            while not stopped.is_set():
                pause = max(sent + self.interval - time.monotonic(), 0.0) if self._unsent else LISTEN_TIMEOUT
                ready = {key.fileobj for key, _ in selector.select(pause)}
                if awake in ready:
                    os.read(awake, 4096)
                if connection.pgconn.socket in ready:
                    connection.pgconn.consume_input()
                elif not ready and pause == LISTEN_TIMEOUT:
                    # Raises an error where the connection is lost.
                    connection.execute("SELECT 1")
                if self._unsent and time.monotonic() >= sent + self.interval:
                    self._send(connection)
                    sent = time.monotonic()
                while (notification := connection.pgconn.notifies()) is not None:
                    received.append(notification.extra.decode())
                if received:
                    log_ids = list({log_id: None for payload in received for log_id in payload.split(",")})
                    received.clear()
                    notified(log_ids)
            self._send(connection)

    def _send(self, connection: psycopg.Connection[Any]) -> None:
        """Send what is to be sent. After an error it is to be sent still."""
        with self._lock:
            log_ids, self._unsent = list(self._unsent), {}
        # The ids have only characters that need no quotes.
        payloads = (",".join(log_ids[first : first + NOTIFIED_LOGS]) for first in range(0, len(log_ids), NOTIFIED_LOGS))
        statement = "; ".join(f"SELECT pg_notify('{CHANNEL}', '{payload}')" for payload in payloads)
        if not statement:
            return
        try:
            connection.execute(statement)
        except BaseException:
            with self._lock:
                self._unsent = {**dict.fromkeys(log_ids), **self._unsent}
            raise
