"""The two official clients of the protocol, over either transport of the daemon, with one interface for the tests."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from acp import RequestError, connect_to_agent, text_block
from acp.http import create_http_stream
from acp.schema import ClientCapabilities
from acp.ws import create_websocket_stream

from tests.real.clis import CLIS, require

PACKAGES = CLIS / "acp-client"
SCRIPT = Path(__file__).with_name("client.mjs")

Json = dict[str, Any]


class RequestFailed(Exception):
    """The JSON-RPC error of a request, with its code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Editor(ABC):
    """A client that records updates and permission requests, with files and a terminal of constant content.

    `choose` sets the kind of option that answers permission requests.
    """

    def __init__(self) -> None:
        self.updates: list[Json] = []
        self.permission_requests: list[Json] = []
        self.served: list[str] = []
        self.changed = asyncio.Event()

    @abstractmethod
    async def call(self, method: str, params: Json) -> Json:
        """The result of a request. Raises RequestFailed."""

    @abstractmethod
    async def notify(self, method: str, params: Json) -> None:
        """Send a notification."""

    @abstractmethod
    async def choose(self, kind: str) -> None:
        """Answer later permission requests with this kind of option; with `nothing` they stay pending."""

    async def new(self) -> str:
        return str((await self.call("session/new", {"cwd": ".", "mcpServers": []}))["sessionId"])

    async def prompt(self, session: str, text: str) -> str:
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
        return str((await self.call("session/prompt", prompt))["stopReason"])

    async def load(self, session: str) -> Json:
        return await self.call("session/load", {"sessionId": session, "cwd": ".", "mcpServers": []})

    async def resume(self, session: str) -> Json:
        return await self.call("session/resume", {"sessionId": session, "cwd": ".", "mcpServers": []})

    async def list_ids(self) -> list[str]:
        return [found["sessionId"] for found in (await self.call("session/list", {}))["sessions"]]

    async def until(self, seen: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not seen():
                self.changed.clear()
                await self.changed.wait()

    def received_text(self, kind: str = "agent_message_chunk") -> str:
        found = (notification["update"] for notification in self.updates)
        return "".join(update["content"]["text"] for update in found if update["sessionUpdate"] == kind)


class TypeScript(Editor):
    """@agentclientprotocol/sdk, in a Node process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self._process = process
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._numbers = itertools.count(1)

    async def read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if "n" in message:
                answer = self._answers.pop(message["n"])
                if not answer.done():
                    answer.set_result(message)
            elif "update" in message:
                self.updates.append(message["update"])
            elif "permission" in message:
                self.permission_requests.append(message["permission"])
            elif "served" in message:
                self.served.append(message["served"])
            self.changed.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the client has ended"))

    async def call(self, method: str, params: Json) -> Json:
        n = next(self._numbers)
        self._answers[n] = answered = asyncio.get_running_loop().create_future()
        self._write({"n": n, "method": method, "params": params})
        answer = await asyncio.wait_for(answered, 60)
        if "error" in answer:
            raise RequestFailed(answer["error"]["code"], answer["error"]["message"])
        return dict(answer["result"])

    async def notify(self, method: str, params: Json) -> None:
        self._write({"method": method, "params": params})

    async def choose(self, kind: str) -> None:
        self._write({"choose": kind})

    def _write(self, message: Json) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")


class Python(Editor):
    """agent-client-protocol, in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: Any = None
        self._choice = "allow_once"

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append({"sessionId": session_id, "update": update.model_dump(by_alias=True, mode="json")})
        self.changed.set()

    async def request_permission(self, options: list[Any], session_id: str, tool_call: Any, **_: Any) -> Any:
        self.permission_requests.append({"sessionId": session_id, "toolCall": tool_call.model_dump(by_alias=True, mode="json")})
        self.changed.set()
        if self._choice == "nothing":
            await asyncio.Event().wait()
        chosen = next(option for option in options if option.kind == self._choice)
        return {"outcome": {"outcome": "selected", "optionId": chosen.option_id}}

    async def read_text_file(self, path: str, **_: Any) -> Any:
        self.served.append("fs/read_text_file")
        return {"content": f"text of {path.rpartition('/')[2]}"}

    async def write_text_file(self, **_: Any) -> None:
        self.served.append("fs/write_text_file")

    async def create_terminal(self, **_: Any) -> Any:
        self.served.append("terminal/create")
        return {"terminalId": "terminal-1"}

    async def wait_for_terminal_exit(self, **_: Any) -> Any:
        self.served.append("terminal/wait_for_exit")
        return {"exitCode": 0, "signal": None}

    async def terminal_output(self, **_: Any) -> Any:
        self.served.append("terminal/output")
        return {"output": "made\n", "truncated": False}

    async def kill_terminal(self, **_: Any) -> None:
        self.served.append("terminal/kill")

    async def release_terminal(self, **_: Any) -> None:
        self.served.append("terminal/release")

    async def call(self, method: str, params: Json) -> Json:
        given = {_snake(name): value for name, value in params.items()}
        if "client_capabilities" in given:
            given["client_capabilities"] = ClientCapabilities.model_validate(given["client_capabilities"])
        if "prompt" in given:
            given["prompt"] = [text_block(block["text"]) for block in given["prompt"]]
        try:
            result = await asyncio.wait_for(getattr(self.connection, _CALLS[method])(**given), 60)
        except RequestError as error:
            raise RequestFailed(error.code, str(error)) from None
        return {} if result is None else dict(result.model_dump(by_alias=True, mode="json"))

    async def notify(self, method: str, params: Json) -> None:
        assert method == "session/cancel"
        await self.connection.cancel(session_id=params["sessionId"])

    async def choose(self, kind: str) -> None:
        self._choice = kind


_CALLS = {
    "initialize": "initialize", "session/new": "new_session", "session/prompt": "prompt", "session/load": "load_session",
    "session/resume": "resume_session", "session/list": "list_sessions", "session/close": "close_session",
    "session/fork": "fork_session", "session/set_mode": "set_session_mode",
}  # fmt: skip


def _snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)


@asynccontextmanager
async def editor_on(language: str, transport: str, url: str, agent: str, key: str) -> AsyncIterator[Editor]:
    """An initialized client of the daemon at `url`."""
    address = f"{url.replace('http', 'ws', 1) if transport == 'ws' else url}/acp/{agent}"
    connected = _python(transport, address, key) if language == "python" else _typescript(address, key)
    async with connected as editor:
        capabilities = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
        answer = await editor.call("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})
        assert answer["protocolVersion"] == 1
        assert answer["agentCapabilities"]["loadSession"]
        yield editor


@asynccontextmanager
async def _python(transport: str, address: str, key: str) -> AsyncIterator[Editor]:
    headers = {"Authorization": f"Bearer {key}"}
    stream = (
        create_http_stream(address, headers=headers)
        if transport == "http"
        else await create_websocket_stream(address, headers=headers)
    )
    editor: Any = Python()
    editor.connection = connect_to_agent(editor, stream)
    try:
        yield editor
    finally:
        with suppress(Exception):
            await editor.connection.close()
        await stream.close()


@asynccontextmanager
async def _typescript(address: str, key: str) -> AsyncIterator[Editor]:
    require(PACKAGES / "node_modules" / "@agentclientprotocol", PACKAGES)
    node = shutil.which("node")
    assert node is not None
    process = await asyncio.create_subprocess_exec(
        node, str(SCRIPT), str(PACKAGES), address, key,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=64 * 1024 * 1024,
    )  # fmt: skip
    editor = TypeScript(process)
    reading = asyncio.create_task(editor.read())
    assert process.stdin is not None
    try:
        yield editor
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()
            await process.wait()
        await reading
