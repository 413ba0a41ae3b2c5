"""The editor's side of `portico acp`: carries lines between standard input and output and the daemon that serves the data
directory, and connects again when that daemon has ended.

It imports little, because most processes of `portico acp` run nothing else.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gateway.cli.output import say
from gateway.errors import ConfigError

CHUNK = 1 << 16
MAX_BUFFERED = 1 << 20
"""Bytes that may wait for one side before the other is not read any more."""
MAX_LINE = 64 * 1024 * 1024
"""Bytes of a line of the editor. A longer one is replaced by LINE_TOO_LONG, which is answered as invalid JSON."""
LINE_TOO_LONG = b"(line too long)\n"
NOTIFICATION = b'{"jsonrpc":"2.0","method"'
"""How the gateway begins a notification. Such lines are not parsed here."""
INTERNAL_ERROR = -32603
MAX_RECONNECTIONS, RECONNECTION_PERIOD = 5, 60.0
"""So many times within so many seconds the editor is connected again. A daemon that ends more often has a fault."""
REFUSAL_TIMEOUT = 0.3
"""Seconds for the first request of an editor that cannot be connected."""
ENDED = "the daemon that serves the sessions has ended before its answer"
EXIT_TIMEOUT = 10
"""Seconds after a signal when this process exits although the daemon has not finished."""
OPENS = {"session/new", "session/fork", "session/load", "session/resume"}
CLOSES = {"session/close", "session/delete"}
OWN_ID = "portico acp: "
"""The beginning of the ids of this process's own requests."""

_Id = int | str


@dataclass
class _EditorState:
    """State that another daemon needs to go on: the requests under way and the sessions that are open."""

    initialize: dict[str, Any] | None = None
    pending: dict[_Id, dict[str, Any]] = field(default_factory=dict)
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: set[_Id] = field(default_factory=set)
    """Ids of the agent's requests that the editor has not answered."""
    last_request_id: int = 0
    """The highest id of the agent's requests."""

    def sent(self, message: Any) -> None:
        """Record a message of the editor."""
        if not isinstance(message, dict) or not isinstance(message.get("id"), int | str):
            return
        if isinstance(message.get("method"), str):
            self.pending[message["id"]] = message
        else:
            self.asked.discard(message["id"])

    def received(self, message: Any) -> None:
        """Record a message to the editor."""
        request_id = message.get("id") if isinstance(message, dict) else None
        if not isinstance(request_id, int | str):
            return
        if "method" in message:
            self.asked.add(request_id)
            if isinstance(request_id, int):
                self.last_request_id = max(self.last_request_id, request_id)
            return
        request = self.pending.pop(request_id, None)
        if request is not None and isinstance(message.get("result"), dict):
            self._succeeded(request, message["result"])

    def _succeeded(self, request: dict[str, Any], result: dict[str, Any]) -> None:
        method, params = request["method"], request.get("params")
        params = params if isinstance(params, dict) else {}
        if method == "initialize":
            self.initialize = params
        elif method in OPENS:
            session_id = result.get("sessionId") if method in ("session/new", "session/fork") else params.get("sessionId")
            # Where it works is known to the store.
            kept = {name: params[name] for name in ("mcpServers", "additionalDirectories") if name in params}
            self.sessions[str(session_id)] = {"cwd": ".", "mcpServers": [], **kept}
        elif method in CLOSES:
            self.sessions.pop(str(params.get("sessionId")), None)


class EditorLines:
    """Carries lines until standard input ends.

    `connect` takes the highest id of the requests that the editor has received, and returns a socket of the daemon that serves
    the data directory. It raises ConfigError.
    """

    def __init__(self, connect: Callable[[int], socket.socket]) -> None:
        self._connect = connect
        self._state = _EditorState()
        self._from_editor, self._to_editor = bytearray(), bytearray()
        self._from_server, self._to_server = bytearray(), bytearray()
        self._replayed: dict[_Id, str] = {}
        """This process's own requests under way, with the session of each."""
        self._reading = True
        self._skipping = False
        self._signalled = False
        self._half_closed = False
        self._connecting = True
        self._reconnected_at: list[float] = []

    def run(self) -> None:
        """Carry lines. Raises ConfigError if the editor cannot be connected, or cannot be connected again."""
        wakeup, woken = socket.socketpair()
        with wakeup, woken:
            for end in (wakeup, woken):
                end.setblocking(False)
            signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
            handlers = [(number, signal.signal(number, self._on_signal)) for number in (signal.SIGINT, signal.SIGTERM)]
            try:
                self._run(wakeup)
            finally:
                signal.set_wakeup_fd(-1)
                for number, handler in handlers:
                    signal.signal(number, handler)

    def _run(self, wakeup: socket.socket) -> None:
        try:
            server = self._connect(0)
        except ConfigError as error:
            self._refuse(str(error))
            raise
        while True:
            self._connecting = False
            server.setblocking(False)
            try:
                with server:
                    self._carry(server, wakeup)
            except BrokenPipeError:
                # The editor reads no more.
                return
            if not self._reading or self._signalled:
                return
            self._connecting = True
            server = self._reconnect()

    def _refuse(self, reason: str) -> None:
        """Answer the editor's first request with an error, if it comes soon: editors send `initialize` at once."""
        if select.select([0], [], [], REFUSAL_TIMEOUT)[0]:
            self._read_editor()
            with suppress(BrokenPipeError):
                self._answer_pending(reason)

    def _on_signal(self, number: int, _: object) -> None:
        if self._signalled or self._connecting:
            os._exit(0)
        # As at the end of standard input, but for a limited time.
        self._signalled = True
        self._reading = False
        signal.signal(signal.SIGALRM, self._on_signal)
        signal.alarm(EXIT_TIMEOUT)

    # -- carrying ----------------------------------------------------------------------------------------------------

    def _carry(self, server: socket.socket, wakeup: socket.socket) -> None:
        """Carry lines until the server has closed its end. Raises BrokenPipeError if the editor has."""
        self._half_closed = False
        open_ = True
        while open_ or self._to_editor:
            read, written = self._wait(server if open_ else None, wakeup)
            if 0 in read:
                self._read_editor()
            if server in read:
                open_ = self._read_server(server)
            if server in written:
                with suppress(BlockingIOError, ConnectionError):
                    del self._to_server[: server.send(self._to_server[: 4 * CHUNK])]
            if 1 in written:
                self._write_editor()
            if not self._reading and not self._to_server and not self._half_closed and not self._replayed:
                self._half_closed = True
                with suppress(OSError):
                    server.shutdown(socket.SHUT_WR)

    def _wait(self, server: socket.socket | None, wakeup: socket.socket) -> tuple[list[Any], list[Any]]:
        """Return what can be read and what can be written, of that which is needed."""
        readable: list[Any] = [wakeup]
        writable: list[Any] = [1] if self._to_editor else []
        if self._reading and not self._replayed and len(self._to_server) < MAX_BUFFERED:
            readable.append(0)
        if server is not None and len(self._to_editor) < MAX_BUFFERED:
            readable.append(server)
        if server is not None and self._to_server:
            writable.append(server)
        read, written, _ = select.select(readable, writable, [])
        if wakeup in read:
            wakeup.recv(CHUNK)
        return read, written

    def _write_editor(self) -> None:
        # So much is written without blocking.
        del self._to_editor[: os.write(1, self._to_editor[: select.PIPE_BUF])]

    def _read_editor(self) -> None:
        data = os.read(0, CHUNK)
        if not data:
            self._reading = False
            # A last line without a line break.
            data = b"\n" if self._from_editor else b""
        for line in _complete_lines(self._from_editor, data):
            if self._skipping:
                self._skipping = False
                line = LINE_TOO_LONG
            with suppress(ValueError):
                self._state.sent(json.loads(line))
            self._to_server += line
        if len(self._from_editor) > MAX_LINE:
            self._from_editor.clear()
            self._skipping = True

    def _read_server(self, server: socket.socket) -> bool:
        """Read what is there. Return whether the server's end is open."""
        try:
            data = server.recv(4 * CHUNK)
        except BlockingIOError:
            return True
        except ConnectionError:
            data = b""
        for line in _complete_lines(self._from_server, data):
            if not line.startswith(NOTIFICATION) and self._is_own_answer(line):
                continue
            self._to_editor += line
        return bool(data)

    def _is_own_answer(self, line: bytes) -> bool:
        message = json.loads(line)
        session_id = self._replayed.pop(message.get("id"), None) if "method" not in message else None
        if session_id is None:
            self._state.received(message)
            return False
        if session_id and "error" in message:
            self._state.sessions.pop(session_id, None)
            say(f"session {session_id} cannot be opened again: {message['error'].get('message')}", err=True)
        return True

    # -- another daemon ----------------------------------------------------------------------------------------------

    def _reconnect(self) -> socket.socket:
        """Answer the requests under way, connect to another daemon, and open the sessions there that are open here."""
        now = time.monotonic()
        self._reconnected_at = [at for at in self._reconnected_at if now - at < RECONNECTION_PERIOD] + [now]
        state = self._state
        if len(self._reconnected_at) > MAX_RECONNECTIONS:
            self._answer_pending(f"{ENDED}; it has ended several times; see acp.log in the data directory")
            raise ConfigError("the daemon that serves the sessions has ended several times; see acp.log beside them")
        self._from_server.clear()
        self._to_server.clear()
        for request_id in state.asked:
            self._send_to_editor({"method": "$/cancel_request", "params": {"requestId": request_id}})
        state.asked.clear()
        # Nothing has been promised to a client that is not initialized.
        waiting = [request for request in state.pending.values() if request["method"] == "initialize"]
        state.pending = {id_: request for id_, request in state.pending.items() if request["method"] != "initialize"}
        self._answer_pending(f"{ENDED}; send it again")
        try:
            server = self._connect(state.last_request_id)
        except ConfigError as error:
            state.pending = {request["id"]: request for request in waiting}
            self._answer_pending(f"{ENDED}; {error}")
            raise
        for request in waiting:
            state.sent(request)
            self._to_server += _line(request)
        self._replayed = {}
        if state.initialize is not None:
            self._replay("initialize", state.initialize, "")
            for session_id, params in state.sessions.items():
                self._replay("session/resume", {**params, "sessionId": session_id}, session_id)
        return server

    def _replay(self, method: str, params: dict[str, Any], session_id: str) -> None:
        request_id = f"{OWN_ID}{method} {session_id}"
        self._replayed[request_id] = session_id
        self._to_server += _line({"id": request_id, "method": method, "params": params})

    def _answer_pending(self, reason: str) -> None:
        for request_id, request in self._state.pending.items():
            text = f"{request['method']}: {reason}"
            error = {"code": INTERNAL_ERROR, "message": text, "data": {"details": text}}
            self._send_to_editor({"id": request_id, "error": error})
        self._state.pending.clear()
        # Before the wait for another daemon.
        while self._to_editor:
            self._write_editor()

    def _send_to_editor(self, message: dict[str, Any]) -> None:
        self._to_editor += _line(message)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


def _complete_lines(buffered: bytearray, data: bytes) -> list[bytes]:
    """Append the data, and take the complete lines out."""
    end = data.rfind(b"\n") + 1
    if not end:
        buffered += data
        return []
    complete = bytes(buffered) + data[:end]
    buffered[:] = data[end:]
    return [line + b"\n" for line in complete[:-1].split(b"\n")]
