"""ACP, "Response types": each response that the gateway gives a client, and each that a client gives the gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.documents.documents import Json, load, sections, whole
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway

RESPONSES = {name: shape for section in sections("acp_responses").values() for name, shape in section.items()}
REASONS = load("acp_responses")["Stop Reasons"]
TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "bool": bool, "String": str, "SessionId": str, "StopReason": str}
NOT_SENT = {"models", "_meta"}
"""Optional fields that no response of these tests has. Models are config options: docs/protocols/acp.md."""


class Client:
    """A client over a WebSocket. Its requests are answered by `replies` meanwhile, by their methods."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._last = socket, 0
        self.replies: dict[str, Json] = {}
        self.asked: list[Json] = []
        self.texts: list[str] = []

    async def request(self, method: str, params: Json) -> Json:
        """Send a request and return its result."""
        self._last += 1
        await self.send({"id": self._last, "method": method, "params": params})
        async with asyncio.timeout(60):
            while True:
                message = json.loads(await self._socket.recv())
                if message.get("id") == self._last and "method" not in message:
                    assert "error" not in message, message
                    return dict(message["result"])
                if "id" in message:
                    self.asked.append(message)
                    await self.send({"id": message["id"], "result": self.replies[message["method"]]})
                elif message["params"]["update"]["sessionUpdate"] == "agent_message_chunk":
                    await self._saw(message["params"]["sessionId"], message["params"]["update"]["content"]["text"])

    async def _saw(self, session: str, text: str) -> None:
        """Keep a text of the agent, and cancel the run if it says so."""
        self.texts.append(text)
        if text == "cancel me":
            await self.send({"method": "session/cancel", "params": {"sessionId": session}})

    async def send(self, message: Json) -> None:
        await self._socket.send(json.dumps({"jsonrpc": "2.0", **message}))


def check(name: str, found: Json, *, complete: bool = True) -> Json:
    """Check a response against the document, and that it has all fields that the gateway has a value for. Null is no value."""
    found = {field: value for field, value in found.items() if value is not None}
    shape = RESPONSES[name]
    assert found.keys() <= shape.keys(), f"{name} has no {found.keys() - shape.keys()}"
    required = {field for field, about in shape.items() if about.get("required")}
    assert required <= found.keys()
    assert not complete or shape.keys() - NOT_SENT <= found.keys()
    for field, value in found.items():
        kind = shape[field]["type"]
        expected = TYPES.get(kind, list if kind.startswith("List") else dict)
        assert isinstance(value, expected) and isinstance(value, bool) == (kind == "bool"), (name, field, value)
    return found


@asynccontextmanager
async def connected(running: RunningGateway, agent: str = "script", **capabilities: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with connect(f"ws{running.url[4:]}/acp/{agent}", additional_headers=headers, proxy=None) as socket:
        client = Client(socket)
        await client.request("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})
        yield client


@asynccontextmanager
async def playing(folder: Path, *turns: Json, **capabilities: Any) -> AsyncIterator[tuple[Client, str]]:
    """Give a client of an agent that plays these turns, with a session."""
    config = gateway_config(folder)
    config["agents"]["script"]["options"] = {"scenario": "scene.json"}
    (folder / "scenes" / "scene.json").write_text(json.dumps({"turns": list(turns)}))
    async with run_gateway(config) as running, connected(running, **capabilities) as client:
        yield client, (await client.request("session/new", {"cwd": ".", "mcpServers": []}))["sessionId"]


def text(words: str) -> list[Json]:
    return [{"type": "text", "text": words}]


async def test_initialize(portico: RunningGateway) -> None:
    async with connected(portico) as client:
        found = check("InitializeResponse", await client.request("initialize", {"protocolVersion": 1}))
    assert found["protocolVersion"] == 1
    assert {"name", "version"} <= found["agentInfo"].keys()
    assert found["authMethods"] == RESPONSES["InitializeResponse"]["authMethods"]["default"]


CLAUDE = """#!/bin/sh
case $1 in
--version) echo '2.1.329 (Claude Code)' ;;
auth) echo '{"loggedIn": true}' ;;
*) read request
   models='{"models": [{"value": "opus"}]}'
   echo '{"type": "control_response", "response": {"subtype": "success", "request_id": "init", "response": '"$models"'}}'
   cat > /dev/null ;;
esac
"""
"""An agent that has a login and a list of models."""


async def test_authenticate_and_set_session_model(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text(CLAUDE)
    program.chmod(0o755)
    config = gateway_config(tmp_path, agents={"claude": {"driver": "claude", "program": str(program)}})
    async with run_gateway(config) as running, connected(running, "claude") as client:
        await running.client.get("/meta")
        methods = check("InitializeResponse", await client.request("initialize", {"protocolVersion": 1}))["authMethods"]
        check("AuthenticateResponse", await client.request("authenticate", {"methodId": methods[0]["id"]}))
        session = (await client.request("session/new", {"cwd": ".", "mcpServers": []}))["sessionId"]
        model = {"sessionId": session, "modelId": "opus"}
        check("SetSessionModelResponse", await client.request("session/set_model", model))
        listed = await running.client.get(f"/session/{session}")
        assert listed.json()["agent"]["options"]["model"] == "opus"


async def test_session_management(portico: RunningGateway) -> None:
    async with connected(portico) as client:
        where: Json = {"cwd": ".", "mcpServers": []}
        new = check("NewSessionResponse", await client.request("session/new", where))
        known = {**where, "sessionId": new["sessionId"]}
        assert {"currentModeId", "availableModes"} <= new["modes"].keys()
        await client.request("session/prompt", {"sessionId": new["sessionId"], "prompt": text("hello")})
        check("LoadSessionResponse", await client.request("session/load", known))
        check("ResumeSessionResponse", await client.request("session/resume", known))
        fork = check("ForkSessionResponse", await client.request("session/fork", known))
        assert fork["sessionId"] != new["sessionId"]
        one = {"sessionId": new["sessionId"]}
        check("SetSessionModeResponse", await client.request("session/set_mode", {**one, "modeId": "edit"}))
        option = {**one, "configId": "permissions", "value": "auto"}
        check("SetSessionConfigOptionResponse", await client.request("session/set_config_option", option))
        listed = check("ListSessionsResponse", await client.request("session/list", {}), complete=False)
        assert {session["sessionId"] for session in listed["sessions"]} == {new["sessionId"], fork["sessionId"]}
        for _ in range(50):
            await client.request("session/new", where)
        page = check("ListSessionsResponse", await client.request("session/list", {}))
        rest = await client.request("session/list", {"cursor": page["nextCursor"]})
        assert len(page["sessions"]) + len(check("ListSessionsResponse", rest, complete=False)["sessions"]) == 52


PROMPTS: dict[str, list[Json]] = {
    "end_turn": [{"text": "x"}, {"usage": {"input_tokens": 1, "output_tokens": 2}}],
    "max_tokens": [{"text": "x"}, {"stop": "max_tokens"}],
    "refusal": [{"text": "x"}, {"stop": "refusal"}],
    "cancelled": [{"text": "cancel me"}, {"hang": True}],
}


@pytest.mark.parametrize("reason", PROMPTS)
async def test_prompt(tmp_path: Path, reason: str) -> None:
    assert set(REASONS) - PROMPTS.keys() == {"max_turn_requests"}, "no agent of these tests has such a limit"
    async with playing(tmp_path, {"steps": PROMPTS[reason]}) as (client, session):
        answer = await client.request("session/prompt", {"sessionId": session, "prompt": text("go")})
    assert check("PromptResponse", answer, complete=reason == "end_turn")["stopReason"] == reason


OUTCOMES = [
    ({"outcome": "selected", "optionId": "allow_once"}, "end_turn"),
    ({"outcome": "selected", "optionId": "reject_once"}, "end_turn"),
    ({"outcome": "cancelled"}, "cancelled"),
]


@pytest.mark.parametrize("meta", [{}, {"_meta": {"x": 1}}], ids=["plain", "with _meta"])
async def test_responses_of_a_client(tmp_path: Path, meta: Json) -> None:
    """The gateway takes each response as the document has it: files, permissions and terminals."""
    ended = {"exitCode": 0, "signal": None}
    services: list[Json] = [
        {"read_file": "a.txt"},
        {"write_file": {"path": "a.txt", "text": "x"}},
        {"terminal": {"command": "make"}},
        {"terminal": {"command": "make", "kill_after": 0}},
    ]
    calls: list[Json] = [{"tool_call": {"name": "editor", "id": f"c{n}", "client": one}} for n, one in enumerate(services)]
    ask: Json = {"tool_call": {"name": "editor", "id": "asked", "ask": True}}
    told = whole("text", "{results.c0}|{results.c1}|{results.c2}|{results.asked}")
    capabilities = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
    async with playing(tmp_path, {"steps": [*calls, ask, told]}, **capabilities) as (client, session):
        client.replies = {
            "fs/read_text_file": {"content": "read", **meta},
            "fs/write_text_file": meta,
            "terminal/create": {"terminalId": "t", **meta},
            "terminal/output": {"output": "made\n", "truncated": False, "exitStatus": ended, **meta},
            "terminal/wait_for_exit": {**ended, **meta},
            "terminal/release": meta,
            "terminal/kill": meta,
        }
        for outcome, reason in OUTCOMES:
            client.replies["session/request_permission"] = {"outcome": outcome, **meta}
            answer = await client.request("session/prompt", {"sessionId": session, "prompt": text("go")})
            assert answer["stopReason"] == reason
    assert {message["method"] for message in client.asked} == client.replies.keys()
    allowed, rejected = client.texts
    assert allowed == "read|done|made\n|done"
    assert rejected.startswith("read|done|made\n|Tool call denied")


AGENT = """
import json, os, sys
def send(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def read(): return json.loads(sys.stdin.readline() or sys.exit(0))
def ask(method, **params):
    send(id=method, method=method, params={"sessionId": "s", **params})
    while (message := read()).get("id") != method: pass
    return message["result"]
def work():
    path, asked = os.getcwd() + "/a.txt", {"toolCallId": "c", "title": "Work"}
    options = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
    found = [["RequestPermissionResponse", ask("session/request_permission", toolCall=asked, options=options)]]
    found += [["WriteTextFileResponse", ask("fs/write_text_file", path=path, content="written")]]
    found += [["ReadTextFileResponse", ask("fs/read_text_file", path=path)]]
    found += [["CreateTerminalResponse", ask("terminal/create", command="cat", args=["a.txt"])]]
    terminal = {"terminalId": found[-1][1]["terminalId"]}
    found += [["WaitForTerminalExitResponse", ask("terminal/wait_for_exit", **terminal)]]
    found += [["TerminalOutputResponse", ask("terminal/output", **terminal)]]
    found += [["KillTerminalCommandResponse", ask("terminal/kill", **terminal)]]
    return found + [["ReleaseTerminalResponse", ask("terminal/release", **terminal)]]
results = {"initialize": {"protocolVersion": 1, "agentCapabilities": {}}, "session/new": {"sessionId": "s"}}
while message := read():
    if message.get("method") == "session/prompt":
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": json.dumps(work())}}
        send(method="session/update", params={"sessionId": "s", "update": update})
        send(id=message["id"], result={"stopReason": "end_turn"})
    elif "id" in message:
        send(id=message["id"], result=results.get(message["method"], {}))
"""
"""An agent behind the gateway. It asks for each service of a client, and answers with the responses."""


async def test_responses_to_an_agent_behind_the_gateway(tmp_path: Path) -> None:
    entry = {"driver": "acp", "program": sys.executable, "args": ["-I", "-S", "-c", AGENT], "cwd": str(tmp_path / "scenes")}
    async with (
        run_gateway(gateway_config(tmp_path, agents={"behind": entry})) as running,
        connected(running, "behind") as client,
    ):
        session = (await client.request("session/new", {"cwd": ".", "mcpServers": []}))["sessionId"]
        await client.request("session/set_mode", {"sessionId": session, "modeId": "auto"})
        await client.request("session/prompt", {"sessionId": session, "prompt": text("go")})
    found = dict(json.loads("".join(client.texts)))
    for name, response in found.items():
        check(name, response, complete=False)
    named = {name for title in ("File System", "Permissions", "Terminal") for name in sections("acp_responses")[title]}
    assert found.keys() == named
    assert found["RequestPermissionResponse"]["outcome"] == {"outcome": "selected", "optionId": "allow_once"}
    assert found["ReadTextFileResponse"]["content"] == found["TerminalOutputResponse"]["output"] == "written"
    assert found["TerminalOutputResponse"]["exitStatus"]["exitCode"] == found["WaitForTerminalExitResponse"]["exitCode"] == 0
