"""A daemon with a real CLI as its agent, an empty home folder, a scripted model, and a client of AAP; and how the CLIs differ."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil

from drivers.compatibility import compatibility
from tests.conftest import write_config
from tests.model_server import anthropic, gemini, openai
from tests.model_server.scenarios import Block, Dialogue, Scenario, Step, Text, ToolUse, text_step
from tests.model_server.serving import ModelServer
from tests.real.aap_client import calls_of, frames_of, results_of, text_of
from tests.real.clis import BIN, require
from tests.real.processes import cli_of, clis_of, tear_down, wait_for_exit
from tests.support.daemon import Daemon, gateway_config
from tests.support.requests import execute, get_session, user_message
from tests.support.sse import Frame
from tests.support.waiting import wait_until

Json = dict[str, Any]

PLAIN = "Hello from the model, this is plain text."
WEATHER: Json = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "inputSchema": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
CLOCK: Json = {"name": "get_time", "description": "The time.", "inputSchema": {"type": "object", "properties": {}}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DUMMY_KEY = "sk-dummy-0123456789abcdef"
SCRIPTS = ("calls", "inner", "sticky")
"""Scenarios whose replies a test sets. `sticky` also answers a CLI that adds a prompt of its own, as claude does."""
RULES = "ruled"
"""The second agent of the daemon, which has rules about commands."""


@dataclass(frozen=True)
class Turn:
    """The response to one request of AAP in stream mode `none`. `error` is that of the turn or of a refused request."""

    status: int
    body: Json

    @property
    def stop(self) -> str:
        assert self.status < 300, self.error
        return str(self.body["stopReason"])

    @property
    def error(self) -> str:
        return str(self.body.get("error") or self.body.get("x-portico", {}).get("error", ""))

    @property
    def messages(self) -> list[Json]:
        found: list[Json] = self.body["messages"]
        return found

    @property
    def text(self) -> str:
        """The text of the assistant."""
        return text_of(self.messages)

    @property
    def calls(self) -> list[Json]:
        return calls_of(self.messages)

    @property
    def results(self) -> dict[str, Any]:
        """The results of tools, by the id of the call."""
        return results_of(self.messages)

    @property
    def pending(self) -> list[Json]:
        """The calls that the turn waits for."""
        assert self.stop == "tool_use", (self.stop, self.error)
        return [call for call in self.calls if call["toolCallId"] not in self.results]


def blocks_of(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


@dataclass
class Session:
    """A session; `first` is the turn that created it."""

    cli: RealCli
    id: str
    first: Turn

    async def send(self, *messages: Any, **fields: Any) -> Turn:
        """Send messages. One that is a string is a user message."""
        return await self.cli.request("POST", f"/session/{self.id}", messages, **fields)

    async def say(self, content: Any, **fields: Any) -> str:
        """Send a user message, and return the text of its turn, which must have ended."""
        turn = await self.send(content, **fields)
        assert turn.stop == "end_turn", (turn.stop, turn.error)
        return turn.text

    def begin(self, content: Any, **fields: Any) -> asyncio.Task[Turn]:
        """Send a user message without waiting for its turn."""
        return asyncio.create_task(self.send(content, **fields))

    @asynccontextmanager
    async def stream(self, content: Any, mode: str = "delta") -> AsyncIterator[AsyncIterator[Frame]]:
        body = {"messages": [user_message(content)], "stream": mode}
        async with frames_of(self.cli.client, "POST", f"/session/{self.id}", body) as frames:
            yield frames

    async def frames(self, content: Any, mode: str = "delta") -> list[Frame]:
        """All frames of a turn."""
        async with self.stream(content, mode) as frames:
            return [frame async for frame in frames]

    async def cancel(self) -> Json:
        answer = await self.cli.client.post(f"/session/{self.id}/cancel")
        return dict(answer.json())

    async def info(self) -> Json:
        return await get_session(self.cli.client, self.id)

    async def history(self) -> list[Json]:
        return list((await self.info())["history"]["full"])


@dataclass
class RealCli:
    """One CLI. Its subclasses say how it differs; a difference that has a default here is the exception of one CLI."""

    base: Path
    bin_folder: Path
    model: ModelServer
    replies: dict[str, Sequence[Step]]
    daemon: Daemon = field(init=False)
    client: httpx.AsyncClient = field(init=False)
    env: dict[str, str] = field(init=False)
    """The environment of the agent."""

    name: ClassVar[str]
    shell: ClassVar[str]
    """Its tool for commands."""
    tools: ClassVar[tuple[str, ...]]
    """All that a command which writes needs."""
    reading: ClassVar[str]
    """A tool that does not write."""
    app_prefix: ClassVar[str] = ""
    """What precedes the name of an application's tool in the model's calls."""
    errors: ClassVar[Mapping[str, str]]
    """What a turn says about errors of the model, by their scenario."""
    stops: ClassVar[Mapping[str, str]] = {"maxtok": "max_tokens", "refusal": "refusal"}
    """The stop reasons of answers that the model breaks off, by their scenario."""
    prompts: ClassVar[tuple[str, ...]]
    """Prompts that look like arguments, commands or references to files."""
    own_words: ClassVar[str]
    """Words of the CLI's own system prompt."""
    denied: ClassVar[str]
    """What the model receives about a call that was denied with the reason `too risky`."""
    denials: ClassVar[tuple[str, str]] = ("Tool call denied: too risky", "Tool call denied")
    """The results of calls that were denied with this reason, and without any."""
    exit_code: ClassVar[str]
    """What the output of a command says that has failed with the exit code 3."""
    task_usage: ClassVar[tuple[int, int, int]] = (100, 42, 7)
    """The input, output and cached tokens of a task of one model request."""
    used: ClassVar[Json]
    """The usage of a turn of one model request."""
    long_text: ClassVar[str] = "[[slowtext]]"
    serial: ClassVar[bool] = False
    """Whether the calls of one message come one after the other."""
    cuts_output: ClassVar[bool] = False
    """Whether the CLI shortens an output of a megabyte."""
    whole_result: ClassVar[int] = 5_000_000
    """The characters of an application's result that the model receives whole."""
    one_file: ClassVar[bool] = True
    """Whether a session stays in one file when it is resumed."""
    steers: ClassVar[bool] = True
    repeats: ClassVar[bool] = True
    """Whether it repeats a model request whose stream broke."""
    models: ClassVar[tuple[str, str]]
    """Two of its models."""

    @classmethod
    def model_server(cls, scenarios: Mapping[str, Scenario]) -> AbstractAsyncContextManager[ModelServer]:
        raise NotImplementedError

    @classmethod
    def command(cls, line: str) -> ToolUse:
        """The model's call of a command."""
        raise NotImplementedError

    @classmethod
    def writing(cls, path: str) -> ToolUse:
        """The model's call that writes a file by another tool than the shell."""
        raise NotImplementedError

    @classmethod
    def reading_call(cls, path: str) -> ToolUse:
        """The model's call that reads a file."""
        raise NotImplementedError

    def prepare(self) -> dict[str, str]:
        """Write the settings of the CLI, and return its environment."""
        raise NotImplementedError

    def native_files(self) -> list[Path]:
        """The files in which the CLI stores its sessions."""
        raise NotImplementedError

    def native_ids(self) -> set[str]:
        """The CLI's ids of its stored sessions."""
        return {path.stem for path in self.native_files()}

    def texts(self, role: str) -> list[str]:
        """The texts of `user` or `assistant` in the newest model request, without those that the CLI adds."""
        raise NotImplementedError

    def system(self) -> str:
        """The system prompt of the newest model request."""
        raise NotImplementedError

    def offered(self) -> list[str]:
        """The names of the tools in the newest model request."""
        return [tool.get("name") or tool["type"] for tool in self.last_request().get("tools", [])]

    def offered_apps(self) -> list[str]:
        """The names of the tests' application-side tools in the newest model request."""
        names = [name.removeprefix(self.app_prefix) for name in self.offered()]
        return [name for name in names if name in (WEATHER["name"], CLOCK["name"])]

    def model_of(self, request: Json) -> str:
        return str(request["model"])

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def work(self) -> Path:
        return self.base / "work"

    @property
    def ask(self) -> dict[str, bool]:
        return dict.fromkeys(self.tools, False)

    @property
    def trust(self) -> dict[str, bool]:
        return dict.fromkeys(self.tools, True)

    def app_call(self, tool: str = "get_weather", **given: object) -> ToolUse:
        """The model's call of an application's tool."""
        return ToolUse(f"{self.app_prefix}{tool}", given)

    def calls(self, *blocks: Block, after: str = "Done.", script: str = "calls") -> str:
        """Let the model make these calls in one message, and then reply `after`. Return the prompt."""
        return self.script(Step(blocks, chunk=5000), text_step(after), script=script)

    def script(self, *steps: Step, script: str = "calls") -> str:
        """Let the model give these replies. Return the prompt."""
        self.replies[script] = steps
        return f"go [[{script}]]"

    def runs(self, line: str) -> str:
        """Let the model run a command. Return the prompt."""
        return self.calls(self.command(line))

    def made(self) -> list[str]:
        """The names of the files in the working folder, without those on which a killed sandbox of codex was mounted."""
        return sorted(path.name for path in self.work.iterdir() if not path.name.startswith("."))

    def requests(self, scenario: str | None = None) -> list[Json]:
        """The model requests of sessions and tasks."""
        own = [request for request in self.model.requests if {"messages", "input", "contents"} & request.body.keys()]
        return [request.body for request in own if request.scenario != "aside" and scenario in (None, request.scenario)]

    def last_request(self, scenario: str | None = None) -> Json:
        return self.requests(scenario)[-1]

    def request_text(self, scenario: str | None = None) -> str:
        """The newest model request, as JSON."""
        return json.dumps(self.last_request(scenario), ensure_ascii=False)

    async def create(
        self, *messages: Any, app: Sequence[Json] = (), own: Mapping[str, bool] | None = None, agent: str = "", **options: str
    ) -> Session:
        """Create a session. A message that is a string is a user message; `own` are the agent's tools with their trust."""
        grants = [{"name": name, "trust": trust} for name, trust in (own or {}).items()]
        config = {"name": agent or self.name, "tools": grants, "options": options}
        turn = await self.request("PUT", "/session", messages, agent=config, tools=list(app))
        assert turn.status == 201, turn.error
        return Session(self, turn.body["sessionId"], turn)

    async def request(self, method: str, path: str, messages: Sequence[Any], **fields: Any) -> Turn:
        sent = [message if isinstance(message, dict) else user_message(message) for message in messages]
        answer = await self.client.request(method, path, json={"messages": sent, **fields})
        return Turn(answer.status_code, answer.json())

    async def task(self, text: str, **fields: Any) -> list[Json]:
        """The events of a task by `POST /v1/execute`, whose last one must be its end."""
        events = await execute(self.client, text, self.name, **fields)
        assert [event["kind"] for event in events].index("session_end") == len(events) - 1
        return events

    def version(self) -> str:
        """The version of the installed package."""
        package = self.bin_folder.parent / compatibility()[self.name].package / "package.json"
        return str(json.loads(package.read_text())["version"])

    def processes(self) -> list[psutil.Process]:
        """The processes of the CLI that run sessions or tasks."""
        return clis_of(self.home)

    def process(self) -> psutil.Process:
        """The only process of the CLI that runs a session."""
        return cli_of(self.home)

    async def end_process(self) -> None:
        """Kill the processes of all sessions, of which none runs a turn, and wait until the daemon has noticed."""
        for process in self.processes():
            process.kill()

        async def is_known() -> bool:
            agents = (await self.client.get("/v1/live-agents")).json()["agents"]
            return all(agent["pid"] is None for agent in agents)

        await wait_until(is_known, "the daemon has noticed the exit of its CLI")

    async def restart(self, *, kill: bool = False) -> None:
        """End the daemon by SIGTERM, or by SIGKILL, and start it again when its CLIs have ended."""
        pids = [process.pid for process in clis_of(self.home)]
        await self.client.aclose()
        if kill:
            await self.daemon.kill()
        else:
            assert await self.daemon.stop() == 0
        await self.start(pids)

    async def start(self, before: Sequence[int] = ()) -> None:
        """Start the daemon, and wait until it has probed the CLI and the processes `before` have ended."""
        await self.daemon.start()
        for pid in before:
            await wait_for_exit(pid)
        self.client = self.daemon.client()
        self.client.timeout = httpx.Timeout(120)
        await self.client.get("/meta")

    async def clean(self) -> None:
        """Delete all sessions, files in the working folder and recorded requests, for the next behaviour."""
        if not self.daemon.running:
            await self.start()
        for session in (await self.client.get("/sessions")).json()["sessions"]:
            await self.client.delete(f"/session/{session}")
        await wait_until(lambda: not clis_of(self.home), "the CLIs of the deleted sessions have ended")
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.model.requests.clear()
        self.replies.clear()


class Claude(RealCli):
    name = "claude"
    shell = "Bash"
    tools = ("Bash", "Write")
    reading = "Read"
    app_prefix = "mcp__app__"
    errors = {"e400": "bad request", "e401": "Invalid API key", "e429": "slow down", "e500": "500"}
    prompts = ("-p --model x", "/help", "/clear\n[[plain]]", "@/etc/hostname", "read @file.txt [[plain]]", "# heading")
    own_words = "# Harness"
    denied = "Tool call denied: too risky"
    exit_code = "Exit code 3"
    used = {"inputTokens": 100, "outputTokens": 42, "cacheReadTokens": 7, "cacheWriteTokens": 0}
    cuts_output = True
    whole_result = 400_000
    models = ("claude-haiku-4-5-20251001", "claude-sonnet-4-5")

    @classmethod
    def model_server(cls, scenarios: Mapping[str, Scenario]) -> AbstractAsyncContextManager[ModelServer]:
        return anthropic.model_server(scenarios)

    @classmethod
    def command(cls, line: str) -> ToolUse:
        return ToolUse("Bash", {"command": line, "description": "run"})

    @classmethod
    def writing(cls, path: str) -> ToolUse:
        return ToolUse("Write", {"file_path": path, "content": "written"})

    @classmethod
    def reading_call(cls, path: str) -> ToolUse:
        return ToolUse("Read", {"file_path": path})

    def prepare(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self.model.url,
            "ANTHROPIC_API_KEY": DUMMY_KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "1",
            "IS_SANDBOX": "1",
        }

    def native_files(self) -> list[Path]:
        return list((self.home / ".claude" / "projects").rglob("*.jsonl"))

    def texts(self, role: str) -> list[str]:
        messages = [message for message in self.last_request()["messages"] if message["role"] == role]
        texts = [block["text"] for message in messages for block in blocks_of(message["content"]) if block["type"] == "text"]
        # The line break keeps `/` from being a command.
        return [text.removeprefix("\n") for text in texts if not text.startswith("<system-reminder>")]

    def system(self) -> str:
        body = self.last_request()
        messages = [message["content"] for message in body["messages"] if message["role"] == "system"]
        return "\n".join(block["text"] for content in (body.get("system", ""), *messages) for block in blocks_of(content))


class Codex(RealCli):
    name = "codex"
    shell = "shell"
    tools = ("shell", "apply_patch")
    reading = "view_image"
    errors = {"e400": "bad request", "e401": "401 Unauthorized", "e429": "429 Too Many Requests", "e500": "high demand"}
    prompts = ("-p [[plain]]", "/review [[plain]]", "@/etc/hostname [[plain]]", "! ls [[plain]]", "$skill \u2028 [[plain]]")
    own_words = "You are Codex"
    denied = "The call of shell was denied: too risky"
    exit_code = "[exit code 3]"
    used = {"inputTokens": 100, "outputTokens": 42, "cacheReadTokens": 7, "cacheWriteTokens": 0, "reasoningTokens": 5}
    whole_result = 10_000
    models = ("gpt-5.4-mini", "gpt-5.5")

    SETTINGS = """
model = "gpt-5.5"
model_provider = "scripted"
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
"""

    @classmethod
    def model_server(cls, scenarios: Mapping[str, Scenario]) -> AbstractAsyncContextManager[ModelServer]:
        return openai.model_server(scenarios)

    @classmethod
    def command(cls, line: str) -> ToolUse:
        return ToolUse("exec_command", {"cmd": line, "yield_time_ms": 90000, "max_output_tokens": 1_000_000})

    @classmethod
    def writing(cls, path: str) -> ToolUse:
        return ToolUse("apply_patch", {"input": f"*** Begin Patch\n*** Add File: {path}\n+written\n*** End Patch\n"})

    @classmethod
    def reading_call(cls, path: str) -> ToolUse:
        return cls.command(f"cat {path}")

    def prepare(self) -> dict[str, str]:
        folder = self.home / ".codex"
        folder.mkdir()
        (folder / "config.toml").write_text(self.SETTINGS.format(url=self.model.url))
        return {"CODEX_HOME": str(folder), "SCRIPTED_KEY": DUMMY_KEY}

    def native_files(self) -> list[Path]:
        return list((self.home / ".codex" / "sessions").rglob("*.jsonl"))

    def texts(self, role: str) -> list[str]:
        items = [item for item in self.last_request()["input"] if item.get("role") == role]
        return [text for item in items for text in openai.texts_of(item) if not openai.INJECTED.match(text)]

    def system(self) -> str:
        items = [item for item in self.last_request()["input"] if item.get("role") == "developer"]
        return "\n".join(
            [str(self.last_request().get("instructions")), *(text for item in items for text in openai.texts_of(item))]
        )


class Gemini(RealCli):
    name = "gemini"
    shell = "run_shell_command"
    tools = ("run_shell_command", "write_file")
    reading = "read_file"
    app_prefix = "mcp_portico_"
    errors = {"e400": "bad request", "e401": "invalid x-api-key", "e429": "slow down", "e500": "internal"}
    prompts = ("-hello [[plain]]", "/help [[plain]]", "--version [[plain]]", "? [[plain]]")
    own_words = "Gemini CLI"
    denied = "canceled by the user"
    denials = ("too risky", "The user did not permit this tool call.")
    exit_code = ""
    # With the request by which it chooses the model.
    task_usage = (186, 84, 14)
    used = {"inputTokens": 100, "outputTokens": 42, "cacheReadTokens": 0}
    # Different words: the CLI stops a repeated word as a loop.
    long_text = "[[slowcount]]"
    serial = True
    one_file = False
    steers = False
    repeats = False
    stops = {"maxtok": "end_turn", "refusal": "end_turn"}
    models = ("gemini-2.5-pro", "gemini-2.5-flash")

    @classmethod
    def model_server(cls, scenarios: Mapping[str, Scenario]) -> AbstractAsyncContextManager[ModelServer]:
        slow = Scenario((Step((Text(" ".join(map(str, range(2000)))),), chunk=8, delay=0.05),))
        return gemini.model_server({**scenarios, "slowcount": slow})

    @classmethod
    def command(cls, line: str) -> ToolUse:
        return ToolUse("run_shell_command", {"command": line, "description": "run"})

    @classmethod
    def writing(cls, path: str) -> ToolUse:
        return ToolUse("write_file", {"file_path": path, "content": "written"})

    @classmethod
    def reading_call(cls, path: str) -> ToolUse:
        return ToolUse("read_file", {"file_path": path})

    def prepare(self) -> dict[str, str]:
        return {"GEMINI_API_KEY": DUMMY_KEY, "GOOGLE_GEMINI_BASE_URL": self.model.url}

    def native_files(self) -> list[Path]:
        return list(self.base.rglob("session-*.jsonl"))

    def native_ids(self) -> set[str]:
        # Behind a time, which changes when a session is loaded.
        return {path.stem.rpartition("-")[2] for path in self.native_files()}

    def texts(self, role: str) -> list[str]:
        wire = "model" if role == "assistant" else role
        parts = [part for content in self.last_request()["contents"] if content.get("role") == wire for part in content["parts"]]
        texts = [part["text"] for part in parts if "text" in part and not part.get("thought")]
        # The zero-width space keeps `/` from being a command.
        return [text.removeprefix("\u200b") for text in texts if text and not gemini.INJECTED.match(text)]

    def system(self) -> str:
        return str(self.last_request()["systemInstruction"]["parts"][0]["text"])

    def offered(self) -> list[str]:
        return [tool["name"] for group in self.last_request().get("tools", []) for tool in group["functionDeclarations"]]

    def model_of(self, request: Json) -> str:
        [recorded] = [found for found in self.model.requests if found.body is request]
        return recorded.path.rpartition("/")[2].partition(":")[0]


CLIS: dict[str, type[RealCli]] = {cli.name: cli for cli in (Claude, Codex, Gemini)}


def scripts(replies: Mapping[str, Sequence[Step]]) -> dict[str, Scenario]:
    """Scenarios of these names, whose replies may change while a server has them."""

    def reply(name: str, n: int, _: Dialogue) -> Step:
        steps = replies.get(name, ())
        return steps[n] if n < len(steps) else text_step("(script over)")

    return {name: Scenario(tuple(partial(reply, name, n) for n in range(9)), sticky=name == "sticky") for name in SCRIPTS}


@asynccontextmanager
async def open_cli(name: str, base: Path, bin_folder: Path = BIN) -> AsyncIterator[RealCli]:
    """A daemon with the CLI of this name as its agent, for the length of the block. Its processes are ended afterwards."""
    kind = CLIS[name]
    require(bin_folder / name)
    replies: dict[str, Sequence[Step]] = {}
    async with kind.model_server(scripts(replies)) as model:
        cli = kind(base, bin_folder, model, replies)
        for folder in (cli.home, cli.work):
            folder.mkdir()
        cli.env = {"HOME": str(cli.home), "PATH": f"{bin_folder}:{os.environ['PATH']}", **cli.prepare()}
        # The CLI's own modes, which are the default for editors, have tests of their own.
        agent = {"driver": name, "cwd": str(cli.work), "env": cli.env, "options": {"mode": "ask"}}
        rules = [
            {"tool": cli.shell, "when": {"command": "touch allowed*"}, "decide": "allow"},
            {"tool": cli.shell, "when": {"command": "touch denied*"}, "decide": "deny", "reason": "not permitted here"},
            {"tool": cli.shell, "when": {"command": "touch asked*"}, "decide": "ask"},
        ]
        agents = {name: agent, RULES: {**agent, "policy": rules}}
        config = gateway_config(base, agents=agents, limits={"start": 120.0, "grace": 5.0})
        cli.daemon = Daemon(write_config(base, config), base)
        try:
            await cli.start()
            yield cli
            await cli.client.aclose()
        finally:
            await tear_down(cli.home, [cli.daemon])
