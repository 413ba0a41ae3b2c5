"""A client of the Agent Client Protocol for tests: over a Connection in this process, or over what `transports.py` has. Every
message that it gets is checked against the protocol's JSON schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from gateway.gateway import Gateway
from gateway.protocols.acp.connection import Connection
from gateway.security.authentication import ADMINISTRATOR

SCHEMA = json.loads((Path(__file__).parents[3] / "acp_schema" / "schema.json").read_text())
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
}  # fmt: skip
# In the unstable part of the schema, which clients of that part read: the official packages have it.
UNSTABLE = {"PromptResponse": {"usage"}}
PATIENCE = 60.0
_CHECKS: dict[str, Draft202012Validator] = {}

Send = Callable[[dict[str, Any]], Awaitable[None]]


def check(shape: str, value: Any) -> None:
    """Raises jsonschema.ValidationError unless the value has the shape of that name, AssertionError if it has other keys."""
    if shape not in _CHECKS:
        _CHECKS[shape] = Draft202012Validator({"$ref": f"#/$defs/{shape}", "$defs": SCHEMA["$defs"]})
    _CHECKS[shape].validate(value)
    unknown = set(value) - _keys(SCHEMA["$defs"][shape]) - UNSTABLE.get(shape, set())
    assert not unknown, f"{shape} has no {unknown}"


def _keys(shape: dict[str, Any]) -> set[str]:
    """The properties of a shape, of any of its variants."""
    found = set(shape.get("properties", ()))
    if "$ref" in shape:
        found |= _keys(SCHEMA["$defs"][shape["$ref"].rpartition("/")[2]])
    for variant in (part for name in ("allOf", "anyOf", "oneOf") for part in shape.get(name, ())):
        found |= _keys(variant)
    return found


class RpcFailed(Exception):
    """An answer that is an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code, self.message = error["code"], error["message"]


class Client:
    """`request` and `notify` go out through `send`; what comes in is given to `take`. `got` has every message, in order, and
    `wrong` what was wrong with some."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.got: list[dict[str, Any]] = []
        self.wrong: list[Exception] = []
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.services: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.choose: Callable[[dict[str, Any]], str | None] | None = None
        self._open: dict[int | str, tuple[str, asyncio.Future[Any]]] = {}
        self._last = 0
        self._news = asyncio.Event()

    async def request(self, method: str, params: Any = None, **more: Any) -> Any:
        """The result. Raises RpcFailed."""
        return await asyncio.wait_for(await self.begin(method, params, **more), PATIENCE)

    async def begin(self, method: str, params: Any = None, *, request_id: int | str | None = None) -> asyncio.Future[Any]:
        """Send a request; its result comes later."""
        self._last += 1
        request_id = self._last if request_id is None else request_id
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[request_id] = (method, answer)
        await self._send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": {} if params is None else params})
        return answer

    async def notify(self, method: str, params: Any = None) -> None:
        await self._send({"jsonrpc": "2.0", "method": method, "params": {} if params is None else params})

    async def answer(self, request: dict[str, Any], option: str | None) -> None:
        """Answer a permission request by an option's id, or with None as cancelled."""
        outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
        await self._send({"jsonrpc": "2.0", "id": request["id"], "result": {"outcome": outcome}})

    async def done(self, request: dict[str, Any], **result: Any) -> None:
        """Answer a request for a service."""
        await self._send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    async def failed(self, request: dict[str, Any], code: int, message: str) -> None:
        """Refuse one."""
        await self._send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}})

    async def take(self, message: dict[str, Any]) -> None:
        """A message of the agent's."""
        try:
            await self._take(message)
        except Exception as error:
            # Raised in the agent's own task it may be taken for a failure of the agent.
            self.wrong.append(error)
            for _, answer in self._open.values():
                if not answer.done():
                    answer.set_exception(error)
            raise

    async def _take(self, message: dict[str, Any]) -> None:
        assert message["jsonrpc"] == "2.0"
        assert set(message) <= {"jsonrpc", "id", "method", "params", "result", "error"}
        self.got.append(message)
        if "method" in message:
            assert not {"result", "error"} & set(message)
            check(PARAMS[message["method"]], message["params"])
            if message["method"] == "session/update":
                check("SessionUpdate", message["params"]["update"])
            if "id" in message:
                if message["method"] != "session/request_permission":
                    self.services.put_nowait(message)
                elif self.choose is not None:
                    await self.answer(message, self.choose(message["params"]))
                else:
                    self.asked.put_nowait(message)
        else:
            self._answered(message)
        self._news.set()

    def _answered(self, message: dict[str, Any]) -> None:
        assert "params" not in message
        assert ("result" in message) != ("error" in message)
        method, answer = self._open.get(message["id"], ("", None))
        if "error" in message:
            check("Error", message["error"])
            assert message["error"]["message"]
            assert "\n" not in message["error"]["message"]
        elif method in RESULTS:
            check(RESULTS[method], message["result"])
        self._open.pop(message["id"], None)
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(RpcFailed(message["error"]))
        else:
            answer.set_result(message["result"])

    async def until(self, seen: Callable[[list[dict[str, Any]]], Any]) -> Any:
        """Wait until what has come is as wanted."""
        async with asyncio.timeout(PATIENCE):
            while not (found := seen(self.got)):
                self._news.clear()
                await self._news.wait()
        return found

    async def question(self) -> dict[str, Any]:
        """The next permission request."""
        return await asyncio.wait_for(self.asked.get(), PATIENCE)

    async def service(self, method: str) -> dict[str, Any]:
        """The next request for a file or a terminal, which must be this one."""
        request = await asyncio.wait_for(self.services.get(), PATIENCE)
        assert request["method"] == method
        return request

    # -- short ways -------------------------------------------------------------------------------------------------

    async def initialize(self, **capabilities: Any) -> dict[str, Any]:
        return dict(await self.request("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities}))

    async def new(self, cwd: str = ".", **params: Any) -> str:
        return str((await self.request("session/new", {"cwd": cwd, "mcpServers": [], **params}))["sessionId"])

    async def prompt(self, session: str, text: str = "hello") -> dict[str, Any]:
        return dict(await self.request("session/prompt", prompt(session, text)))

    def updates(self, session: str | None = None, since: int = 0) -> list[dict[str, Any]]:
        """The session updates that have come."""
        found = [m["params"] for m in self.got[since:] if m.get("method") == "session/update"]
        return [p["update"] for p in found if session is None or p["sessionId"] == session]

    def text(self, session: str | None = None, kind: str = "agent_message_chunk", since: int = 0) -> str:
        return "".join(u["content"]["text"] for u in self.updates(session, since) if u["sessionUpdate"] == kind)


def prompt(session: str, *received_text: Any) -> dict[str, Any]:
    return {"sessionId": session, "prompt": [{"type": "text", "text": s} if isinstance(s, str) else s for s in received_text]}


def load(session: str, cwd: str = ".") -> dict[str, Any]:
    """What asks for a session that is there: to be loaded, resumed or forked."""
    return {"sessionId": session, "cwd": cwd, "mcpServers": []}


def kinds(updates: list[dict[str, Any]]) -> list[str]:
    """What updates are about."""
    return [update["sessionUpdate"] for update in updates]


def connect(gateway: Gateway, agent: str = "script") -> tuple[Client, Connection]:
    """A client over a connection in this process."""
    client: Client

    async def to_client(message: dict[str, Any]) -> None:
        await client.take(json.loads(json.dumps(message)))

    connection = Connection(gateway, agent, ADMINISTRATOR, to_client)

    async def to_agent(message: dict[str, Any]) -> None:
        await connection.receive(json.loads(json.dumps(message)))

    client = Client(to_agent)
    return client, connection
