"""A test bench for tools: the real claude behind a gateway, a model whose replies a test sets, and an AAP client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import write_config
from tests.model_server.anthropic import model_server
from tests.model_server.scenarios import Block, Step, ToolUse, text_step
from tests.model_server.serving import ModelServer
from tests.real.clis import BIN, require
from tests.real.real_cli import SCRIPTS, scripts
from tests.support.daemon import Daemon, gateway_config, run_gateway
from tests.support.sse import arriving

PROGRAM = BIN / "claude"
# Any input is valid.
WEATHER = {"name": "get_weather", "description": "The weather.", "inputSchema": {"type": "object"}}
CLOCK = {"name": "get_time", "description": "The time.", "inputSchema": {"type": "object"}}

Json = dict[str, Any]


def weather(**given: object) -> ToolUse:
    return ToolUse("mcp__app__get_weather", given)


def clock(**given: object) -> ToolUse:
    return ToolUse("mcp__app__get_time", given)


def bash(command: str) -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": "run"})


@dataclass
class Turn:
    """The response to one request, read from its event stream; `error` is that of a rejected request."""

    status: int
    events: list[tuple[str, Json]]
    error: str = ""

    @property
    def session(self) -> str:
        return str(self.events[0][1]["sessionId"])

    @property
    def calls(self) -> list[str]:
        return [data["toolCallId"] for name, data in self.events if name == "tool_call"]

    @property
    def called(self) -> list[str]:
        return [data["name"] for name, data in self.events if name == "tool_call"]

    @property
    def results(self) -> dict[str, Any]:
        return {data["toolCallId"]: data["content"] for name, data in self.events if name == "tool_result"}

    @property
    def text(self) -> str:
        return "".join(data["delta"] for name, data in self.events if name == "text_delta")

    @property
    def stop(self) -> str:
        """The stop reason; the one turn_stop must be the last event."""
        names = [name for name, _ in self.events]
        assert names.count("turn_stop") == 1 and names[-1] == "turn_stop", names
        return str(self.events[-1][1]["stopReason"])


@dataclass
class Bench:
    """The replies of the model are set by `model_calls` and `model_replies`; `start`, `send_turn` and `answer` are the client."""

    base: Path
    model: ModelServer
    replies: dict[str, Sequence[Step]]
    client: httpx.AsyncClient | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def work(self) -> Path:
        return self.base / "work"

    def config(self) -> Json:
        env = {
            "HOME": str(self.home),
            "ANTHROPIC_BASE_URL": self.model.url,
            "ANTHROPIC_API_KEY": "sk-ant-dummy",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "IS_SANDBOX": "1",
            **self.env,
        }
        # The CLI's own modes, which are the default for editors, are tested in acp/test_claude_modes.py.
        agent = {"driver": "claude", "program": str(PROGRAM), "cwd": str(self.work), "env": env, "options": {"mode": "ask"}}
        return gateway_config(self.base, agents={"claude": agent})

    def model_calls(self, *blocks: Block, after: str = "Done.", name: str = "calls") -> str:
        """Let the model make these calls in one message and then reply `after`. Return the prompt that starts it."""
        return self.model_replies(Step(blocks, chunk=5000), text_step(after), name=name)

    def model_replies(self, *steps: Step, name: str = "calls") -> str:
        """Let the model give these replies. Return the prompt that starts it."""
        assert name in SCRIPTS
        self.replies[name] = steps
        return f"go [[{name}]]"

    def settings(self, value: Json) -> None:
        """Write the user settings of the CLI."""
        folder = self.home / ".claude"
        folder.mkdir(exist_ok=True)
        (folder / "settings.json").write_text(json.dumps(value))

    async def start(self, text: str, own: Mapping[str, bool] | None = None, app: Sequence[Json] = (), **more: Any) -> Turn:
        """Create a session. `own` are the agent's tools by name with their trust, `app` the application's."""
        agent = {"name": "claude", "tools": _refs(own or {}), "options": more.pop("options", {})}
        messages = [{"role": "user", "content": text}]
        return await self._turn("PUT", "/session", {"agent": agent, "tools": list(app), "messages": messages, **more})

    async def send_turn(self, session: str, text: str, own: Mapping[str, bool] | None = None, **more: Any) -> Turn:
        agent = {} if own is None else {"agent": {"tools": _refs(own)}}
        return await self.answer(session, {"role": "user", "content": text}, **agent, **more)

    async def answer(self, session: str, *messages: Json, **more: Any) -> Turn:
        return await self._turn("POST", f"/session/{session}", {"messages": list(messages), **more})

    async def get(self, session: str) -> Json:
        assert self.client is not None
        found: Json = (await self.client.get(f"/session/{session}")).json()
        return found

    async def history(self, session: str) -> list[Json]:
        found: list[Json] = (await self.get(session))["history"]["full"]
        return found

    async def _turn(self, method: str, path: str, body: Json) -> Turn:
        assert self.client is not None
        async with self.client.stream(method, path, json={"stream": "delta", **body}) as response:
            if response.status_code >= 400:
                return Turn(response.status_code, [], json.loads(await response.aread())["error"])
            return Turn(response.status_code, [(event.event, event.json()) async for event in arriving(response)])

    def sent(self) -> list[Json]:
        """The messages of the last model request."""
        messages: list[Json] = self.model.bodies()[-1]["messages"]
        return messages

    def results_sent(self) -> dict[str, Json]:
        """The tool results of the last model request, by call id."""
        blocks = [block for m in self.sent() if isinstance(m["content"], list) for block in m["content"]]
        return {block["tool_use_id"]: block for block in blocks if block["type"] == "tool_result"}


def result(call_id: str, content: Any) -> Json:
    return {"role": "tool", "toolCallId": call_id, "content": content}


def grant(call_id: str) -> Json:
    return {"role": "tool_permission", "toolCallId": call_id, "granted": True}


def deny(call_id: str, reason: str | None = None) -> Json:
    return {"role": "tool_permission", "toolCallId": call_id, "granted": False, "reason": reason}


def _refs(own: Mapping[str, bool]) -> list[Json]:
    return [{"name": name, "trust": trust} for name, trust in own.items()]


@asynccontextmanager
async def _bench(base: Path) -> AsyncIterator[Bench]:
    require(PROGRAM)
    for name in ("home", "work"):
        (base / name).mkdir()
    replies: dict[str, Sequence[Step]] = {}
    async with model_server(scripts(replies)) as model:
        yield Bench(base, model, replies)


@pytest.fixture
async def unstarted_bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """A bench without a gateway."""
    async with _bench(tmp_path) as bench:
        yield bench


@pytest.fixture
async def bench(unstarted_bench: Bench) -> AsyncIterator[Bench]:
    """A bench with a gateway in this process."""
    async with run_gateway(unstarted_bench.config()) as running:
        running.client.timeout = httpx.Timeout(120)
        unstarted_bench.client = running.client
        yield unstarted_bench


@asynccontextmanager
async def daemon_of(bench: Bench) -> AsyncIterator[Daemon]:
    """Start a daemon in its own process, which a test can kill and start again; `bench` uses its client."""
    daemon = Daemon(write_config(bench.base, bench.config()), bench.base)
    await daemon.start()
    try:
        async with daemon.client() as client:
            bench.client = client
            yield daemon
    finally:
        if daemon.process is not None and daemon.process.returncode is None:
            await daemon.stop()
