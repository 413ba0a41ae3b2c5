"""A small agent for the Agent Client Protocol, which uses the official package. Its prompts are commands.

`python -m tests.support.acp_agent`. The first word of a prompt names a command (`do_*` below), the rest is its argument. Sessions
are stored in the folder ACP_AGENT_SESSIONS, so that another process can resume them. Flags in ACP_AGENT_FLAGS: `noresume`,
`noload`, `noimage`, `login` (requires one), `nologin` (and rejects it), `http` (supports MCP servers by HTTP too),
`commands` (sends its
slash commands before the response to `session/new`), `commands_later` (sends them after it),
`commands_last` (sends them after
the response to an unknown request), `deaf` and `fragile` (does not respond to an
unknown request, or exits), `folders` (supports additional directories), `forgets` (loads sessions without their messages).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import anyio
from acp import PROTOCOL_VERSION, RequestError, run_agent
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    AuthMethodAgent,
    Implementation,
    InitializeResponse,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
    ToolCallUpdate,
)

FLAGS = frozenset(os.environ.get("ACP_AGENT_FLAGS", "").split())
SESSIONS = Path(os.environ.get("ACP_AGENT_SESSIONS", "."))
PERMISSIONS = [
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


class NoAnswer(Exception):
    """The run was cancelled during a permission request."""


class SmallAgent:
    """Runs one command per prompt."""

    def __init__(self) -> None:
        self.client: Any = None
        self.cancelled = asyncio.Event()
        self.servers: list[Any] = []
        self.session_start = ""
        self.mode, self.model, self.loud = "calm", "small", False
        self.logged_in = not FLAGS & {"login", "nologin"}
        self.tools: Any = None
        self.mcp: Any = None

    def on_connect(self, conn: Client) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **kwargs: Any) -> InitializeResponse:
        resume: dict[str, Any] = {} if "noresume" in FLAGS else {"resume": {}}
        folders: dict[str, Any] = {"additionalDirectories": {}} if "folders" in FLAGS else {}
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=Implementation(name="small", title="Small", version="1.2.3"),
            agent_capabilities=AgentCapabilities(
                load_session="noload" not in FLAGS,
                mcp_capabilities=McpCapabilities(http="http" in FLAGS),
                prompt_capabilities=PromptCapabilities(image="noimage" not in FLAGS),
                session_capabilities=SessionCapabilities.model_validate({"close": {}, **resume, **folders}),
            ),
            auth_methods=[AuthMethodAgent(id="password", name="Password")],
        )

    async def authenticate(self, method_id: str, **kwargs: Any) -> None:
        if "nologin" in FLAGS:
            raise RequestError(-32000, "wrong password")
        self.logged_in = True

    async def new_session(self, cwd: str, mcp_servers: Any = (), **kwargs: Any) -> NewSessionResponse:
        if not self.logged_in:
            raise RequestError(-32000, "Authentication required")
        self.servers = list(mcp_servers)
        self.session_start = _session_start("new", kwargs)
        await self._connect_servers(mcp_servers)
        session_id = uuid.uuid4().hex
        self._store(session_id, [])
        if "commands" in FLAGS:
            await self._send_commands(session_id, "shout")
        if "commands_later" in FLAGS:
            self._run_later(self._send_commands(session_id, "shout"))
        return NewSessionResponse.model_validate({"sessionId": session_id, **self._settings()})

    async def load_session(self, cwd: str, session_id: str, mcp_servers: Any = (), **kwargs: Any) -> LoadSessionResponse:
        self.session_start = _session_start("load", kwargs)
        await self._connect_servers(mcp_servers)
        for text in self._load(session_id) if "forgets" not in FLAGS else ():
            await self._send_text(session_id, "user_message_chunk", text)
            await self._send_text(session_id, "agent_message_chunk", f"replay of {text}")
        return LoadSessionResponse.model_validate(self._settings())

    async def resume_session(self, cwd: str, session_id: str, mcp_servers: Any = (), **kwargs: Any) -> ResumeSessionResponse:
        self.session_start = _session_start("resume", kwargs)
        await self._connect_servers(mcp_servers)
        self._load(session_id)
        return ResumeSessionResponse.model_validate(self._settings())

    async def close_session(self, session_id: str, **kwargs: Any) -> None:
        (SESSIONS / f"{session_id}.closed").touch()

    async def set_session_mode(self, session_id: str, mode_id: str, **kwargs: Any) -> SetSessionModeResponse:
        self.mode = mode_id
        return SetSessionModeResponse()

    async def set_config_option(self, config_id: str, session_id: str, value: Any, **kwargs: Any) -> Any:
        if config_id == "model":
            self.model = value
        else:
            self.loud = value
        return SetSessionConfigOptionResponse.model_validate({"configOptions": self._settings()["configOptions"]})

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        self.cancelled.set()

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if "deaf" in FLAGS:
            await anyio.sleep_forever()
        if "fragile" in FLAGS:
            os._exit(3)
        if "commands_last" in FLAGS:
            self._run_later(self._send_commands_after(0.03))
        raise RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        return

    async def prompt(self, session_id: str, prompt: list[Any], **kwargs: Any) -> PromptResponse:
        self.cancelled.clear()
        text = "".join(getattr(block, "text", "") for block in prompt)
        images = [block for block in prompt if block.type == "image"]
        self._store(session_id, [*self._load(session_id), text])
        command_name, _, argument = text.partition(" ")
        if command_name == "/shout":
            command_name, argument = "say", argument.upper()
        if images:
            await self._send_text(
                session_id, "agent_message_chunk", f"saw {len(images)} image of {len(images[0].data)} characters"
            )
        try:
            stop = await getattr(self, f"do_{command_name}", self.do_say)(session_id, argument or text)
        except NoAnswer:
            stop = "cancelled"
        usage = {"totalTokens": 15, "inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 2}
        return PromptResponse.model_validate({"stopReason": stop or "end_turn", "usage": usage})

    async def _send_commands_after(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        [session] = os.listdir(SESSIONS)
        await self._send_commands(session.removesuffix(".json"), "shout")

    async def _send_commands(self, session: str, name: str) -> None:
        commands = [{"name": name, "description": "Repeats it louder.", "input": {"hint": "text to repeat"}}]
        await self._update(session, sessionUpdate="available_commands_update", availableCommands=commands)

    def _run_later(self, work: Any) -> None:
        """Run `work` right after the response to the current request, which is queued before another task runs."""
        self.work = asyncio.create_task(work)

    # -- commands -----------------------------------------------------------------------------------------------------

    async def do_say(self, session: str, text: str) -> None:
        await self._send_text(session, "agent_thought_chunk", "Hm.")
        await self._send_text(session, "agent_message_chunk", text)

    async def do_recall(self, session: str, _: str) -> None:
        await self._send_text(session, "agent_message_chunk", " | ".join(self._load(session)))

    async def do_servers(self, session: str, _: str) -> None:
        for server in self.servers:
            env = " ".join(f"{variable.name}={variable.value}" for variable in server.env)
            await self._send_text(session, "agent_message_chunk", " ".join([server.name, server.command, *server.args, env]))

    async def do_folders(self, session: str, _: str) -> None:
        await self._send_text(session, "agent_message_chunk", self.session_start)

    async def do_settings(self, session: str, _: str) -> None:
        await self._send_text(session, "agent_message_chunk", f"{self.mode} {self.model} {self.loud}")

    async def do_read(self, session: str, path: str) -> None:
        """Reads a file by the client's method, under a tool call."""
        await self._update(session, sessionUpdate="tool_call", toolCallId="r1", title=f"Read {path}", kind="read",
                           status="in_progress", rawInput={"path": path}, locations=[{"path": path}])  # fmt: skip
        try:
            got = (await self.client.read_text_file(session_id=session, path=path)).content
            end = {"status": "completed"}
        except RequestError as error:
            got, end = str(error), {"status": "failed"}
        content = [{"type": "content", "content": {"type": "text", "text": got}}]
        await self._update(session, sessionUpdate="tool_call_update", toolCallId="r1", content=content, **end)
        await self._send_text(session, "agent_message_chunk", f"read: {got}")

    async def do_write(self, session: str, path: str) -> None:
        """Requests permission, then writes by the client's method."""
        edit = [{"type": "diff", "path": path, "oldText": "", "newText": "written\n"}]
        call = {"toolCallId": "w1", "title": f"Write {path}", "kind": "edit", "status": "pending", "content": edit}
        if not await self._permitted(session, call):
            return await self._send_text(session, "agent_message_chunk", "not written")
        await self.client.write_text_file(session_id=session, path=path, content="written\n")
        await self._update(session, sessionUpdate="tool_call_update", toolCallId="w1", status="completed")
        await self._send_text(session, "agent_message_chunk", "written")

    async def do_sneak(self, session: str, path: str) -> None:
        """Writes through the client without asking first."""
        try:
            await self.client.write_text_file(session_id=session, path=path, content="sneaked\n")
            await self._send_text(session, "agent_message_chunk", "written")
        except RequestError as error:
            await self._send_text(session, "agent_message_chunk", f"refused: {error}")

    async def do_linger(self, session: str, path: str) -> None:
        """Writes through the client once the response to the prompt is sent."""
        self._run_later(self.client.write_text_file(session_id=session, path=path, content="unseen\n"))

    async def do_run(self, session: str, command: str) -> None:
        """Requests permission, then runs a command in a terminal of the client."""
        call = {"toolCallId": "x1", "title": command, "kind": "execute", "status": "pending", "rawInput": {"command": command}}
        if not await self._permitted(session, call):
            return await self._send_text(session, "agent_message_chunk", "not run")
        terminal = await self.client.create_terminal(session_id=session, command=command)
        terminal_content = [{"type": "terminal", "terminalId": terminal.terminal_id}]
        await self._update(
            session, sessionUpdate="tool_call_update", toolCallId="x1", status="in_progress", content=terminal_content
        )
        waiting = asyncio.create_task(self.client.wait_for_terminal_exit(session_id=session, terminal_id=terminal.terminal_id))
        cancelled = asyncio.create_task(self.cancelled.wait())
        await asyncio.wait([waiting, cancelled], return_when=asyncio.FIRST_COMPLETED)
        if self.cancelled.is_set():
            await self.client.release_terminal(session_id=session, terminal_id=terminal.terminal_id)
            return "cancelled"  # type: ignore[return-value]
        cancelled.cancel()
        ended = await waiting
        await self.client.terminal_output(session_id=session, terminal_id=terminal.terminal_id)
        await self.client.release_terminal(session_id=session, terminal_id=terminal.terminal_id)
        status = "completed" if ended.exit_code == 0 else "failed"
        await self._update(session, sessionUpdate="tool_call_update", toolCallId="x1", status=status)
        await self._send_text(session, "agent_message_chunk", f"exit code {ended.exit_code}")

    async def do_switch(self, session: str, command: str) -> None:
        """Reports `git status`, asks for another command as the same call, and then runs a third one besides."""
        call = {"toolCallId": "s1", "title": "git status", "kind": "execute", "rawInput": {"command": "git status"}}
        await self._update(session, sessionUpdate="tool_call", status="in_progress", **call)
        await self._update(session, sessionUpdate="tool_call_update", toolCallId="s1", rawInput={"command": command})
        if not await self._permitted(session, {"toolCallId": "s1", "rawInput": {"command": command}}):
            return await self._send_text(session, "agent_message_chunk", "not run")
        for line in (command, "touch besides.txt"):
            try:
                terminal = await self.client.create_terminal(session_id=session, command=line)
            except RequestError as error:
                return await self._send_text(session, "agent_message_chunk", f"refused: {error}")
            await self.client.wait_for_terminal_exit(session_id=session, terminal_id=terminal.terminal_id)
            await self.client.release_terminal(session_id=session, terminal_id=terminal.terminal_id)
        await self._send_text(session, "agent_message_chunk", "both ran")

    async def do_both(self, session: str, _: str) -> None:
        """Two permission requests at the same time."""
        calls = [{"toolCallId": f"b{n}", "title": f"call {n}", "kind": "execute", "rawInput": {"n": n}} for n in (1, 2)]
        given = await asyncio.gather(*(self._permitted(session, call) for call in calls))
        for call, granted in zip(calls, given, strict=True):
            if granted:
                await self._update(session, sessionUpdate="tool_call_update", toolCallId=call["toolCallId"],
                                   status="completed", rawOutput={"ok": call["title"]})  # fmt: skip
        await self._send_text(session, "agent_message_chunk", f"both: {given}")

    async def do_plan(self, session: str, _: str) -> None:
        entries = [{"content": "think", "priority": "high", "status": "pending"}]
        await self._update(session, sessionUpdate="plan", entries=entries)
        commands = [{"name": "help", "description": "Helps."}]
        await self._update(session, sessionUpdate="available_commands_update", availableCommands=commands)
        await self._update(session, sessionUpdate="current_mode_update", currentModeId="wild")
        await self._update(session, sessionUpdate="usage_update", used=10, size=100)
        await self._update(session, sessionUpdate="session_info_update", title="A plan")
        await self._send_text(session, "agent_message_chunk", "planned")

    async def do_late(self, session: str, _: str) -> None:
        """Sends new slash commands after the response to the prompt."""
        await self._send_text(session, "agent_message_chunk", "later")
        self._run_later(self._send_commands(session, "whisper"))

    async def do_name(self, session: str, title: str) -> None:
        """Sets the title of the session; the word `null` removes it."""
        await self._update(session, sessionUpdate="session_info_update", title=None if title == "null" else title)

    async def do_wait(self, session: str, text: str) -> str:
        await self._send_text(session, "agent_message_chunk", text)
        await self.cancelled.wait()
        return "cancelled"

    async def do_stop(self, session: str, reason: str) -> str:
        await self._send_text(session, "agent_message_chunk", "half a")
        return reason

    async def do_fail(self, session: str, text: str) -> None:
        raise RequestError(-32603, "Internal error", {"details": text})

    async def do_exit(self, session: str, _: str) -> None:
        await self._send_text(session, "agent_message_chunk", "bye")
        sys.stderr.write("the small agent goes\n")
        os._exit(7)

    async def do_elicit(self, session: str, _: str) -> None:
        try:
            await self.client.ext_method("nonsense", {})
        except RequestError as error:
            await self._send_text(session, "agent_message_chunk", f"answered: {error.code}")

    async def do_tools(self, session: str, _: str) -> None:
        """Lists the client's tools."""
        found = (await self.tools.list_tools()).tools if self.tools else []
        listed = [[tool.name, tool.description, tool.input_schema] for tool in found]
        await self._send_text(session, "agent_message_chunk", json.dumps(listed))

    async def do_call(self, session: str, argument: str) -> None:
        """Calls one of the client's tools: `NAME INPUT`."""
        name, _, given = argument.partition(" ")
        await self._send_text(session, "agent_message_chunk", "Calling. ")
        result = await self._call(session, f"c{uuid.uuid4().hex}", name, json.loads(given or "{}"))
        await self._send_text(session, "agent_message_chunk", _result_text(result))

    async def do_ask(self, session: str, name: str) -> None:
        """Calls a tool of the client after a permission request: `NAME [named]`. `named`: with the name of the tool, not only a
        title."""
        name, _, named = name.partition(" ")
        call = {"toolCallId": "m1", **_tool(name), "kind": "other", "status": "pending", "rawInput": {"a": 1}}
        if not named:
            del call["_meta"]
        if not await self._permitted(session, call):
            return await self._send_text(session, "agent_message_chunk", "not called")
        await self._send_text(session, "agent_message_chunk", _result_text(await self._call(session, "m1", name, {"a": 1})))

    async def do_silent(self, session: str, name: str) -> None:
        """Calls a tool of the client without a tool call update."""
        await self._send_text(session, "agent_message_chunk", _result_text(await self.tools.call_tool(name, {})))

    async def do_many(self, session: str, argument: str) -> None:
        """Calls a tool N times: `N NAME reported|made`. `reported`: reported before the first call. `made`: all at once."""
        count, name, how = argument.split()
        inputs = {f"m{n}": {"n": n} for n in range(int(count))}
        if how == "reported":
            for call_id, given in inputs.items():
                await self._update(session, sessionUpdate="tool_call", toolCallId=call_id, **_tool(name),
                                   kind="other", status="pending", rawInput=given)  # fmt: skip
            results = [await self._call(session, call_id, name, given) for call_id, given in inputs.items()]
        else:
            results = await asyncio.gather(*(self._call(session, call_id, name, given) for call_id, given in inputs.items()))
        await self._send_text(session, "agent_message_chunk", " | ".join(map(_result_text, results)))

    async def do_mixed(self, session: str, name: str) -> None:
        """Requests permission for a command of its own while a call of the client's tool is pending."""
        own = {"toolCallId": "x1", "title": "own", "kind": "execute", "status": "pending", "rawInput": {"command": "own"}}
        result, granted = await asyncio.gather(self._call(session, "m1", name, {"a": 1}), self._permitted(session, own))
        if granted:
            await self._update(session, sessionUpdate="tool_call_update", toolCallId="x1", status="completed", rawOutput="ran")
        await self._send_text(session, "agent_message_chunk", f"{_result_text(result)} {granted}")

    # -- helpers ------------------------------------------------------------------------------------------------------

    async def _call(self, session: str, call_id: str, name: str, given: dict[str, Any]) -> Any:
        await self._update(session, sessionUpdate="tool_call", toolCallId=call_id, **_tool(name), kind="other",
                           status="in_progress", rawInput=given)  # fmt: skip
        result = await self.tools.call_tool(name, given)
        if self.cancelled.is_set():
            raise NoAnswer
        content = [{"type": "content", "content": {"type": "text", "text": _result_text(result)}}]
        status = "failed" if result.is_error else "completed"
        await self._update(session, sessionUpdate="tool_call_update", toolCallId=call_id, status=status, content=content)
        return result

    async def _connect_servers(self, servers: Any) -> None:
        """Connect to the client's MCP server, for as long as this process lives."""
        for server in servers:
            ready = asyncio.Event()
            self.mcp = asyncio.create_task(self._connect(server, ready))
            await asyncio.wait([self.mcp, asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)

    async def _connect(self, server: Any, ready: asyncio.Event) -> None:
        # These imports take half of the start time, and most tests do not need them.
        import httpx2
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        if "http" in FLAGS:
            headers = {header.name: header.value for header in server.headers}
            client = httpx2.AsyncClient(headers=headers, timeout=None)
            streams = streamable_http_client(server.url, http_client=client, max_sse_event_size=None)
        else:
            assert not any("TOKEN" in arg for arg in server.args)
            env = {variable.name: variable.value for variable in server.env}
            streams = stdio_client(StdioServerParameters(command=server.command, args=server.args, env=env))
        async with streams as (reading, writing), ClientSession(reading, writing) as self.tools:
            await self.tools.initialize()
            ready.set()
            await anyio.sleep_forever()

    async def _permitted(self, session: str, call: dict[str, Any]) -> bool:
        options: Any = PERMISSIONS
        answer = await self.client.request_permission(
            session_id=session, tool_call=ToolCallUpdate.model_validate(call), options=options
        )
        if answer.outcome.outcome == "cancelled":
            raise NoAnswer
        return bool(answer.outcome.option_id == "yes")

    async def _send_text(self, session: str, kind: str, text: str) -> None:
        await self._update(session, sessionUpdate=kind, content={"type": "text", "text": text})

    async def _update(self, session: str, **update: Any) -> None:
        from acp.schema import SessionNotification

        checked = SessionNotification.model_validate({"sessionId": session, "update": update})
        await self.client.session_update(session_id=session, update=checked.update)

    def _settings(self) -> dict[str, Any]:
        models = [{"value": value, "name": value} for value in ("small", "large")]
        return {
            "modes": {"availableModes": [{"id": m, "name": m} for m in ("calm", "wild")], "currentModeId": self.mode},
            "configOptions": [
                {"id": "model", "name": "Model", "category": "model", "type": "select", "currentValue": self.model,
                 "options": models},
                {"id": "loud", "name": "Loud", "type": "boolean", "currentValue": self.loud},
            ],
        }  # fmt: skip

    def _store(self, session_id: str, prompts: list[str]) -> None:
        (SESSIONS / f"{session_id}.json").write_text(json.dumps(prompts))

    def _load(self, session_id: str) -> list[str]:
        path = SESSIONS / f"{session_id}.json"
        if not path.exists():
            raise RequestError(-32002, f"Resource not found: {session_id}")
        found: list[str] = json.loads(path.read_text())
        return found


def _session_start(how: str, given: dict[str, Any]) -> str:
    """Return the method that started the session (`new`, `load` or `resume`) and its additional directories."""
    return " ".join([how, *(given.get("additional_directories") or ())])


def _tool(name: str) -> dict[str, Any]:
    """The members of a report of a call of the client's tool, as qwen's program writes them."""
    return {"title": f"{name} (portico MCP Server)", "_meta": {"toolName": f"mcp__portico__{name}"}}


def _result_text(result: Any) -> str:
    """Return an MCP result as text."""
    parts = [getattr(part, "text", None) or f"{part.type} of {len(part.data)}" for part in result.content]
    return ("error: " if result.is_error else "") + ", ".join(part if len(part) < 1000 else f"{len(part)} long" for part in parts)


if __name__ == "__main__":
    asyncio.run(run_agent(SmallAgent(), use_unstable_protocol=True))  # type: ignore[arg-type]
