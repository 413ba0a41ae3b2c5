"""The ACP client of all suites: over a `Connection` in this process, standard input and output of `portico acp`, WebSocket and
streamable HTTP. It validates every received message against the JSON schema of the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import httpx
from jsonschema import Draft202012Validator
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket

from gateway.app import Gateway
from gateway.protocols.acp.connection import Connection
from gateway.security.authentication import ADMINISTRATOR, Caller
from tests.conftest import write_config
from tests.support.cluster import ClusterGateway, leave_out
from tests.support.daemon import KEY, SCENARIOS, gateway_config
from tests.support.fork_server import forked_command
from tests.support.sse import arriving

SCHEMA = json.loads((Path(__file__).parents[1] / "acp_schema" / "schema.json").read_text())
RESULTS = {
    "initialize": "InitializeResponse", "authenticate": "AuthenticateResponse", "logout": "LogoutResponse",
    "session/new": "NewSessionResponse", "session/load": "LoadSessionResponse", "session/resume": "ResumeSessionResponse",
    "session/list": "ListSessionsResponse", "session/close": "CloseSessionResponse", "session/delete": "DeleteSessionResponse",
    "session/prompt": "PromptResponse", "session/set_mode": "SetSessionModeResponse",
    "session/set_config_option": "SetSessionConfigOptionResponse",
}  # fmt: skip
PARAMS = {
    "session/update": "SessionNotification", "session/request_permission": "RequestPermissionRequest",
    "$/cancel_request": "CancelRequestNotification", "fs/read_text_file": "ReadTextFileRequest",
    "fs/write_text_file": "WriteTextFileRequest", "terminal/create": "CreateTerminalRequest",
    "terminal/output": "TerminalOutputRequest", "terminal/wait_for_exit": "WaitForTerminalExitRequest",
    "terminal/kill": "KillTerminalRequest", "terminal/release": "ReleaseTerminalRequest",
    "elicitation/create": "CreateElicitationRequest",
}  # fmt: skip
# Fields of the unstable part of the schema, which the official packages include.
UNSTABLE = {"PromptResponse": {"usage"}}
TIMEOUT = 60.0
_CHECKS: dict[str, Draft202012Validator] = {}

Send = Callable[[dict[str, Any]], Awaitable[None]]


def check(shape: str, value: Any) -> None:
    """Check a value against the definition `shape` of the schema.

    Raises jsonschema.ValidationError if it does not match, and AssertionError if it has unknown keys.
    """
    if shape not in _CHECKS:
        _CHECKS[shape] = Draft202012Validator({"$ref": f"#/$defs/{shape}", "$defs": SCHEMA["$defs"]})
    _CHECKS[shape].validate(value)
    unknown = set(value) - _keys(SCHEMA["$defs"][shape]) - UNSTABLE.get(shape, set())
    assert not unknown, f"{shape} has no {unknown}"


def _keys(shape: dict[str, Any]) -> set[str]:
    """The properties of a definition and of all its variants."""
    found = set(shape.get("properties", ()))
    if "$ref" in shape:
        found |= _keys(SCHEMA["$defs"][shape["$ref"].rpartition("/")[2]])
    for variant in (part for name in ("allOf", "anyOf", "oneOf") for part in shape.get(name, ())):
        found |= _keys(variant)
    return found


class RpcFailed(Exception):
    """A response with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code, self.message = error["code"], error["message"]


class Client:
    """Sends messages through `send`; the transport passes received messages to `receive`.

    `received` has every message in order, `invalid` the errors of invalid ones. A permission request is answered with the
    option that `choose` returns, or, without `choose`, added to `permission_requests`. Requests for files and terminals are
    added to `service_requests`.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.received: list[dict[str, Any]] = []
        self.invalid: list[Exception] = []
        self.permission_requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.service_requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.choose: Callable[[dict[str, Any]], str | None] | None = None
        self._pending: dict[int | str, tuple[str, asyncio.Future[Any]]] = {}
        self._last = 0
        self._changed = asyncio.Event()

    async def request(self, method: str, params: Any = None, **more: Any) -> Any:
        """Send a request and return its result. Raises RpcFailed."""
        return await asyncio.wait_for(await self.begin(method, params, **more), TIMEOUT)

    async def begin(self, method: str, params: Any = None, *, request_id: int | str | None = None) -> asyncio.Future[Any]:
        """Send a request; return a future of its result."""
        self._last += 1
        request_id = self._last if request_id is None else request_id
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = (method, answer)
        await self._send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": {} if params is None else params})
        return answer

    async def notify(self, method: str, params: Any = None) -> None:
        await self._send({"jsonrpc": "2.0", "method": method, "params": {} if params is None else params})

    async def answer(self, request: dict[str, Any], option: str | None) -> None:
        """Answer a permission request with the id of an option, or with None as cancelled."""
        outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
        await self._send({"jsonrpc": "2.0", "id": request["id"], "result": {"outcome": outcome}})

    async def respond(self, request: dict[str, Any], **result: Any) -> None:
        """Answer a request for a file or a terminal."""
        await self._send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    async def respond_error(self, request: dict[str, Any], code: int, message: str) -> None:
        """Answer a request for a file or a terminal with an error."""
        await self._send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}})

    async def receive(self, message: dict[str, Any]) -> None:
        """Process a message from the agent."""
        try:
            await self._process(message)
        except Exception as error:
            # An error raised in the agent's task could be handled there as a failure of the agent, so the requests fail as
            # well.
            self.invalid.append(error)
            for _, answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(error)
            raise

    async def _process(self, message: dict[str, Any]) -> None:
        assert message["jsonrpc"] == "2.0"
        assert set(message) <= {"jsonrpc", "id", "method", "params", "result", "error"}
        self.received.append(message)
        if "method" in message:
            assert not {"result", "error"} & set(message)
            check(PARAMS[message["method"]], message["params"])
            if message["method"] == "session/update":
                check("SessionUpdate", message["params"]["update"])
            if "id" in message:
                if message["method"] != "session/request_permission":
                    self.service_requests.put_nowait(message)
                elif self.choose is not None:
                    await self.answer(message, self.choose(message["params"]))
                else:
                    self.permission_requests.put_nowait(message)
        else:
            self._process_response(message)
        self._changed.set()

    def _process_response(self, message: dict[str, Any]) -> None:
        assert "params" not in message
        assert ("result" in message) != ("error" in message)
        method, answer = self._pending.get(message["id"], ("", None))
        if "error" in message:
            check("Error", message["error"])
            assert message["error"]["message"]
            assert "\n" not in message["error"]["message"]
        elif method in RESULTS:
            check(RESULTS[method], message["result"])
        self._pending.pop(message["id"], None)
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(RpcFailed(message["error"]))
        else:
            answer.set_result(message["result"])

    async def until(self, seen: Callable[[list[dict[str, Any]]], Any]) -> Any:
        """Wait until `seen` returns a true value for the received messages, and return that value."""
        async with asyncio.timeout(TIMEOUT):
            while not (found := seen(self.received)):
                self._changed.clear()
                await self._changed.wait()
        return found

    async def next_permission_request(self) -> dict[str, Any]:
        """The next permission request."""
        return await asyncio.wait_for(self.permission_requests.get(), TIMEOUT)

    async def next_service_request(self, method: str) -> dict[str, Any]:
        """The next request for a file or a terminal, which must have this method."""
        request = await asyncio.wait_for(self.service_requests.get(), TIMEOUT)
        assert request["method"] == method
        return request

    # -- shortcuts ---------------------------------------------------------------------------------------------------

    async def initialize(self, **capabilities: Any) -> dict[str, Any]:
        return dict(await self.request("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities}))

    async def new(self, cwd: str = ".", **params: Any) -> str:
        return str((await self.request("session/new", {"cwd": cwd, "mcpServers": [], **params}))["sessionId"])

    async def prompt(self, session: str, text: str = "hello") -> dict[str, Any]:
        return dict(await self.request("session/prompt", prompt(session, text)))

    def updates(self, session: str | None = None, since: int = 0) -> list[dict[str, Any]]:
        """The received session updates."""
        found = [m["params"] for m in self.received[since:] if m.get("method") == "session/update"]
        return [p["update"] for p in found if session is None or p["sessionId"] == session]

    def text(self, session: str | None = None, kind: str = "agent_message_chunk", since: int = 0) -> str:
        return "".join(u["content"]["text"] for u in self.updates(session, since) if u["sessionUpdate"] == kind)


def prompt(session: str, *blocks: Any) -> dict[str, Any]:
    return {"sessionId": session, "prompt": [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]}


def load(session: str, cwd: str = ".") -> dict[str, Any]:
    """The params that load, resume or fork a session."""
    return {"sessionId": session, "cwd": cwd, "mcpServers": []}


def kinds(updates: list[dict[str, Any]]) -> list[str]:
    """The kinds of these updates."""
    return [update["sessionUpdate"] for update in updates]


class RemoteConnection:
    """Opens a WebSocket for the first message that is sent. `client` gets those that are received."""

    client: Client

    def __init__(self, url: str) -> None:
        self._url = url
        self._opening = asyncio.Lock()
        self._socket: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message of the client."""
        async with self._opening:
            if self._socket is None:
                headers = {"Authorization": f"Bearer {KEY}"}
                self._socket = await connect_websocket(self._url, additional_headers=headers, proxy=None, max_size=None)
                self._reading = asyncio.create_task(self._read(self._socket))
        await self._socket.send(json.dumps(message))

    async def _read(self, socket: ClientConnection) -> None:
        async for frame in socket:
            await self.client.receive(json.loads(frame))

    async def close(self) -> None:
        """End the connection. Raises the error of an invalid message."""
        if self._socket is not None and self._reading is not None:
            await self._socket.close()
            await self._reading

    def __getattr__(self, name: str) -> NoReturn:
        leave_out(f"uses `{name}` of a connection")


def connect(
    gateway: Gateway, agent: str = "script", caller: Caller = ADMINISTRATOR, *, slash_commands: str | None = None
) -> tuple[Client, Connection]:
    """A client over a connection in this process, or over a WebSocket to the proxy of a cluster."""
    client: Client
    if isinstance(gateway, ClusterGateway):
        if caller is not ADMINISTRATOR:
            leave_out("connects as a caller without a key")
        flag = "" if slash_commands is None else f"?slash_commands={slash_commands}"
        remote = RemoteConnection(f"ws{gateway.url[4:]}/acp/{agent}{flag}")
        remote.client = Client(remote.send)
        return remote.client, cast(Connection, remote)

    async def to_client(message: dict[str, Any]) -> None:
        await client.receive(json.loads(json.dumps(message)))

    connection = Connection(gateway, agent, caller, to_client, slash_commands=slash_commands)

    async def to_agent(message: dict[str, Any]) -> None:
        await connection.receive(json.loads(json.dumps(message)))

    client = Client(to_agent)
    return client, connection


@asynccontextmanager
async def connected(gateway: Gateway, agent: str = "script", **capabilities: Any) -> AsyncIterator[Client]:
    """A client over a connection in this process, after `initialize`."""
    client, connection = connect(gateway, agent)
    await client.initialize(**capabilities)
    try:
        yield client
    finally:
        await connection.close()


# -- transports -------------------------------------------------------------------------------------------------------


def config(folder: Path) -> dict[str, Any]:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "acp.json").write_text((SCENARIOS / "acp.json").read_text())
    return gateway_config(folder, agents={"script": {"driver": "script", "cwd": str(work), "options": {"scenario": "acp.json"}}})


@asynccontextmanager
async def on_stdio(
    folder: Path,
    agent: str,
    *more: str,
    stderr: bool = False,
    settings: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[Client, asyncio.subprocess.Process]]:
    """A client of `portico acp AGENT` and its process, configured with `settings` or else with `config(folder)`."""
    path = write_config(folder, dict(config(folder) if settings is None else settings))
    command = forked_command("gateway", "acp", "--config", str(path), *more, agent)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE if stderr else None,
        limit=64 * 1024 * 1024,
        cwd=folder,
        env=env,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def send(message: dict[str, Any]) -> None:
        stdin.write(json.dumps(message).encode() + b"\n")
        await stdin.drain()

    async def read() -> None:
        while line := await stdout.readline():
            # A line that is not a JSON-RPC message raises here.
            await client.receive(json.loads(line.decode("utf-8", "strict")))

    client = Client(send)
    reading = asyncio.create_task(read())
    try:
        yield client, process
    finally:
        if process.returncode is None:
            stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 60)
            except TimeoutError:
                process.kill()
        await reading


@asynccontextmanager
async def on_websocket(url: str, agent: str, key: str) -> AsyncIterator[Client]:
    """A client of the daemon at `url`."""
    headers = {"Authorization": f"Bearer {key}"}
    async with connect_websocket(f"ws{url[4:]}/acp/{agent}", additional_headers=headers, proxy=None, max_size=None) as socket:

        async def send(message: dict[str, Any]) -> None:
            await socket.send(json.dumps(message))

        async def read() -> None:
            async for frame in socket:
                await client.receive(json.loads(frame))

        client = Client(send)
        reading = asyncio.create_task(read())
        try:
            yield client
        finally:
            await socket.close()
            await reading


class _Streams:
    """A connection over streamable HTTP: one POST for each message, one stream for the connection and one for each session."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http, self._url = http, url
        self._connection: dict[str, str] = {}
        self._reading: dict[str | None, asyncio.Task[None]] = {}
        self.client = Client(self._send)

    async def _send(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        session = params.get("sessionId") if isinstance(params, dict) else None
        if isinstance(session, str) and session not in self._reading:
            await self._read(session)
        answer = await self._http.post(self._url, json=message, headers=self._headers(session))
        if answer.status_code == 200 and not self._connection:
            self._connection = {"Acp-Connection-Id": answer.headers["acp-connection-id"]}
            await self._read(None)
            return await self.client.receive(answer.json())
        assert answer.status_code == 202, answer.text

    def _headers(self, session: Any) -> dict[str, str]:
        return {**self._connection, **({"Acp-Session-Id": session} if isinstance(session, str) else {})}

    async def _read(self, session: str | None) -> None:
        headers = {"Accept": "text/event-stream", **self._headers(session)}
        response = await self._http.send(self._http.build_request("GET", self._url, headers=headers), stream=True)
        assert response.status_code == 200, await response.aread()
        self._reading[session] = asyncio.create_task(self._take(response))

    async def _take(self, response: httpx.Response) -> None:
        async for event in arriving(response):
            await self.client.receive(event.json())

    async def end(self) -> None:
        """End the connection. Raises the error of an invalid message."""
        await self._http.delete(self._url, headers=self._connection)
        await asyncio.gather(*self._reading.values())


@asynccontextmanager
async def on_http(url: str, agent: str, key: str) -> AsyncIterator[Client]:
    """A client of the daemon at `url`; it may open any number of connections, as each session has a stream."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60, limits=limits, verify=False) as http:
        streams = _Streams(http, f"{url}/acp/{agent}")
        try:
            yield streams.client
        finally:
            await streams.end()
