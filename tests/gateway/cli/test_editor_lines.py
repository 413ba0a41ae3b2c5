"""The editor's side of `portico acp`, in a process of its own, with the sockets of processes that this test plays."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

import pytest

from gateway.cli.editor_lines import MAX_RECONNECTIONS, EditorLines
from gateway.errors import ConfigError

FAILED = 100
"""Added to the exit code if the editor could not be connected again."""


class Editor:
    """The editor's ends of the pipes, and the ends of the processes that the lines are carried to, in their order."""

    def __init__(self) -> None:
        pairs = [socket.socketpair() for _ in range(MAX_RECONNECTIONS + 2)]
        stdin, self._in = os.pipe()
        self._out, stdout = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._carry(pairs, stdin, stdout)
        for end in (stdin, stdout):
            os.close(end)
        for _, theirs in pairs:
            theirs.close()
        self.servers = [ours for ours, _ in pairs]
        self.input = os.fdopen(self._in, "wb", buffering=0)
        self.output: IO[bytes] = os.fdopen(self._out, "rb")

    def _carry(self, pairs: list[tuple[socket.socket, socket.socket]], stdin: int, stdout: int) -> None:
        """Exit with the number of connections."""
        connections, code = [theirs for _, theirs in pairs], 0
        count = 0

        def connect(last_request_id: int) -> socket.socket:
            nonlocal count
            count += 1
            connection = connections[count - 1]
            # One that has ended already is noticed when its lines are read.
            with suppress(ConnectionError):
                connection.sendall(b'{"last":%d}\n' % last_request_id)
            return connection

        try:
            for ours, _ in pairs:
                ours.close()
            for source, target in ((stdin, 0), (stdout, 1)):
                os.dup2(source, target)
            for end in (stdin, stdout, self._in, self._out):
                os.close(end)
            EditorLines(connect).run()
        except ConfigError:
            code = FAILED
        except BaseException:
            code = 2 * FAILED
        finally:
            os._exit(code + count)

    def send(self, message_id: int, method: str, **params: Any) -> None:
        self.input.write(json.dumps({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params}).encode() + b"\n")

    def exit_code(self) -> int:
        self.input.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def editor() -> Iterator[Editor]:
    editor = Editor()
    yield editor
    editor.input.close()
    for server in editor.servers:
        server.close()
    editor.output.close()


def line(file: IO[bytes]) -> Any:
    return json.loads(file.readline())


def test_the_editor_is_connected_again_a_limited_number_of_times(editor: Editor) -> None:
    editor.send(1, "initialize")
    with editor.servers[0].makefile("rb") as server:
        assert (line(server), line(server)["method"]) == ({"last": 0}, "initialize")
    for server_end in editor.servers:
        server_end.close()
    answer = line(editor.output)
    assert (answer["id"], "it has ended several times" in answer["error"]["message"]) == (1, True)
    assert editor.exit_code() == FAILED + 1 + MAX_RECONNECTIONS


def test_another_process_gets_the_sessions_that_are_open(editor: Editor) -> None:
    requests: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("initialize", {"protocolVersion": 1}, {}),
        ("session/new", {"cwd": "/one", "mcpServers": []}, {"sessionId": "one"}),
        ("session/new", {"cwd": "/two", "mcpServers": [{"name": "files"}]}, {"sessionId": "two"}),
        ("session/close", {"sessionId": "one"}, {}),
    ]
    with editor.servers[0].makefile("rb") as server:
        line(server)
        for number, (method, params, result) in enumerate(requests):
            editor.send(number, method, **params)
            assert line(server)["method"] == method
            editor.servers[0].sendall(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n")
            assert line(editor.output)["id"] == number
        editor.servers[0].sendall(b'{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{}}\n')
        assert line(editor.output)["id"] == 7
    editor.servers[0].close()
    assert line(editor.output)["params"] == {"requestId": 7}
    with editor.servers[1].makefile("rb") as server:
        assert line(server) == {"last": 7}
        replayed = [line(server), line(server)]
        two = {"cwd": ".", "mcpServers": [{"name": "files"}], "sessionId": "two"}
        expected = [("initialize", {"protocolVersion": 1}), ("session/resume", two)]
        assert [(message["method"], message["params"]) for message in replayed] == expected
        for message in replayed:
            editor.servers[1].sendall(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}).encode() + b"\n")
        editor.send(9, "session/list")
        # The answers to this process's own requests are not the editor's.
        assert line(server)["id"] == 9
        editor.servers[1].sendall(b'{"jsonrpc":"2.0","id":9,"result":{}}\n')
        assert line(editor.output)["id"] == 9
        # When the editor ends its input, the process gets the end of its own.
        editor.input.close()
        assert server.read() == b""
    editor.servers[1].close()
    assert editor.exit_code() == 2
