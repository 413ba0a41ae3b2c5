"""The undocumented parts of uvicorn and httptools that are used exist as gateway/connection_limits.py uses them.

That the limits work is tested in tests/gateway/server/test_header_limits.py and
tests/gateway/protocols/acp/test_transport_limits.py, the exit code after a signal in tests/gateway/server/test_daemon.py.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httptools
import pytest
import uvicorn
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from gateway.connection_limits import HeaderLimitProtocol
from gateway.embedded_server import EmbeddedServer, listening_address
from gateway.websocket_limits import WebSocketLimitProtocol
from tests.waiting import wait_until

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


async def _app(scope: Any, receive: Any, send: Any) -> None: ...


def _config() -> uvicorn.Config:
    return uvicorn.Config(
        _app, host="127.0.0.1", port=0, http=HeaderLimitProtocol, ws=WebSocketLimitProtocol, lifespan="off", log_config=None
    )


@pytest.mark.parametrize("package", ["uvicorn", "httptools"])
def test_only_tested_minor_versions_are_admitted(package: str) -> None:
    requirements = map(Requirement, tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"])
    specifier = next(requirement.specifier for requirement in requirements if requirement.name == package)
    installed = Version(version(package))
    assert installed in specifier
    assert Version(f"{installed.major}.{installed.minor + 1}.0") not in specifier
    assert Version(f"{installed.major + 1}.0.0") not in specifier


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (HttpToolsProtocol.__init__, ["self", "config", "server_state", "app_state", "_loop"]),
        (HttpToolsProtocol.connection_made, ["self", "transport"]),
        (HttpToolsProtocol.connection_lost, ["self", "exc"]),
        (HttpToolsProtocol.data_received, ["self", "data"]),
        (HttpToolsProtocol.eof_received, ["self"]),
        (HttpToolsProtocol.handle_websocket_upgrade, ["self"]),
        (HttpToolsProtocol.on_message_begin, ["self"]),
        (HttpToolsProtocol.on_url, ["self", "url"]),
        (HttpToolsProtocol.on_header, ["self", "name", "value"]),
        (HttpToolsProtocol.on_headers_complete, ["self"]),
        (HttpToolsProtocol.on_body, ["self", "body"]),
        (HttpToolsProtocol.on_message_complete, ["self"]),
        (HttpToolsProtocol.on_response_complete, ["self"]),
        (HttpToolsProtocol.timeout_keep_alive_handler, ["self"]),
        (HttpToolsProtocol.send_400_response, ["self", "msg"]),
        (WebSocketsSansIOProtocol.keepalive_timeout, ["self"]),
        (WebSocketsSansIOProtocol.start_keepalive, ["self"]),
        (WebSocketsSansIOProtocol.run_asgi, ["self"]),
        (WebSocketsSansIOProtocol.send, ["self", "message"]),
        (uvicorn.Server.capture_signals, ["self"]),
        (uvicorn.Server.main_loop, ["self"]),
        (uvicorn.Server.startup, ["self", "sockets"]),
        (uvicorn.Server.shutdown, ["self", "sockets"]),
    ],
    ids=lambda value: value.__qualname__ if callable(value) else "",
)
def test_overridden_methods_have_these_parameters(method: Callable[..., Any], parameters: list[str]) -> None:
    assert list(inspect.signature(method).parameters) == parameters


async def test_attributes_that_are_read_exist() -> None:
    loop = asyncio.get_running_loop()
    http = HttpToolsProtocol(_config(), ServerState(), {}, loop)
    assert isinstance(http, asyncio.Protocol)
    assert (http.loop, http.transport, http.headers, http.cycle) == (loop, None, None, None)
    assert (http.timeout_keep_alive_task, http.timeout_keep_alive, http.connections) == (None, 5, set())
    cycle = inspect.getsource(httptools_impl.RequestResponseCycle.__init__)
    names = ("response_started", "response_complete", "disconnected", "message_event", "waiting_for_100_continue")
    assert all(f"self.{name}" in cycle for name in (*names, "scope", "more_body", "chunked_encoding", "keep_alive"))
    assert all(httptools_impl.STATUS_LINE[status].startswith(b"HTTP/1.1 %d " % status) for status in (400, 408, 431))
    websocket = WebSocketsSansIOProtocol(_config(), ServerState(), {}, loop)
    assert isinstance(websocket, asyncio.Protocol)
    assert websocket.loop is loop
    assert (websocket.writable.is_set(), websocket.disconnected) == (True, False)
    assert '"extensions": {' in inspect.getsource(WebSocketsSansIOProtocol.handle_connect)
    assert callable(websocket.conn.send_text)
    assert hasattr(websocket, "transport") or "self.transport" in inspect.getsource(WebSocketsSansIOProtocol.connection_made)


def test_exception_in_a_parser_callback_becomes_a_parser_error() -> None:
    class Callbacks:
        def on_url(self, url: bytes) -> None:
            raise LookupError

    with pytest.raises(httptools.HttpParserError):
        httptools.HttpRequestParser(Callbacks()).feed_data(b"GET / HTTP/1.1\r\n\r\n")


async def test_embedded_server_leaves_signal_handlers_as_they_are() -> None:
    before = signal.getsignal(signal.SIGTERM)
    server = EmbeddedServer(_config(), 10)
    serving = asyncio.create_task(server.serve())
    await wait_until(lambda: server.started or serving.done())
    assert signal.getsignal(signal.SIGTERM) is before
    host, port = listening_address(server)
    assert (host, port > 0) == ("127.0.0.1", True)
    server.should_exit = True
    await serving


async def test_a_server_without_requests_has_no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers, call_at = list[float](), loop.call_at

    def recorded(when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *args, **options)

    monkeypatch.setattr(loop, "call_at", recorded)
    server = EmbeddedServer(_config(), 10)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done()
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert timers == []
    server.should_exit = True
    await serving


async def test_a_server_that_is_to_exit_while_it_starts_exits() -> None:
    server = EmbeddedServer(_config(), 10)
    server.should_exit = True
    await asyncio.wait_for(server.serve(), 10)


async def test_headers_of_all_responses_have_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "self.server_state.default_headers" in inspect.getsource(HttpToolsProtocol)
    assert "self.server_state.default_headers = " in inspect.getsource(uvicorn.Server.on_tick)
    config = uvicorn.Config(_app, http=HeaderLimitProtocol, headers=[("x-a", "b")], log_config=None)
    server = EmbeddedServer(config, 10)
    config.load()
    for seconds, date in ((0.0, b"Thu, 01 Jan 1970 00:00:00 GMT"), (86400.5, b"Fri, 02 Jan 1970 00:00:00 GMT")):
        monkeypatch.setattr("time.time", lambda now=seconds: now)
        headers = server.server_state.default_headers
        assert [header for header in headers if header[0] != b"server"] == [(b"date", date), (b"x-a", b"b")]
