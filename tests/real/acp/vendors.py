"""Drives an ACP agent of claude or codex by one script and records what it sends: the vendor's own adapter, or `portico acp`.

Both run the pinned CLI with a home and a working folder of their own, against a model server on loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.conftest import write_config
from tests.model_server import anthropic, openai
from tests.model_server.scenarios import Block, Failure, Scenario, Step, ToolUse, text_step
from tests.model_server.serving import ModelServer
from tests.real.acp.stdio_agent import RequestFailed, StdioAgent, agent_on_stdio
from tests.real.clis import BIN, CLIS, ROOT, require
from tests.real.editor import SERVER
from tests.support.waiting import wait_until

Json = dict[str, Any]
Side = Literal["vendor", "portico"]

ADAPTERS = CLIS / "node_modules" / "@agentclientprotocol"
ALL_CAPABILITIES: Json = {"elicitation": {"form": {}}, "_meta": {"terminal_output": True}, "auth": {"terminal": True}}
LINES = "".join(f"line {n}\n" for n in range(1, 31))
QUESTION = {
    "question": "Which color?",
    "header": "Color",
    "multiSelect": False,
    "options": [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}],
}
PATCH = "*** Begin Patch\n*** Update File: a.txt\n@@\n line 19\n-line 20\n+twenty\n line 21\n*** End Patch\n"
USAGE_LIMIT = Failure(
    429,
    "usage_limit_reached",
    "The usage limit has been reached.",
    {
        "x-codex-primary-used-percent": "100",
        "x-codex-primary-window-minutes": "300",
        "x-codex-primary-reset-at": "4000000000",
    },
)
CODEX_CONFIG = """
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


@dataclass
class Recording:
    """What one side has sent. `steps` has the messages of each step, `answers` the result or the error of its prompt."""

    work: Path
    initialized: Json = field(default_factory=dict)
    created: Json = field(default_factory=dict)
    steps: dict[str, list[Json]] = field(default_factory=dict)
    answers: dict[str, Json] = field(default_factory=dict)
    requests: dict[str, Json] = field(default_factory=dict)
    """The body of the last request to the model in a step."""
    rejected_key: Json | None = None
    """The error of a prompt that the model server answered with 401; None if it was not answered while the script ran."""
    steered: Json = field(default_factory=dict)
    fast: Json = field(default_factory=dict)
    """The config option of the fast mode."""
    session: str = ""
    listed: list[str] = field(default_factory=list)
    """The sessions that a second process lists while the first one runs."""
    loaded: Json | None = None
    """The error of `session/load` in the second process; None if it has loaded the session."""
    program_missing: tuple[str, Json] = ("", {})
    """The first request that fails when the CLI does not exist, and its error."""
    standard_error: str = ""
    """What the first process has written to its standard error, after `initialize`."""

    def updates(self, step: str, kind: str) -> list[Json]:
        return [update for update in _updates(self.steps[step]) if update["sessionUpdate"] == kind]

    def asked(self, step: str) -> list[Json]:
        """The params of the permission requests."""
        return [frame["params"] for frame in self.steps[step] if frame.get("method") == "session/request_permission"]

    def forms(self, step: str) -> list[Json]:
        return [frame["params"] for frame in self.steps[step] if frame.get("method") == "elicitation/create"]

    def text(self, step: str) -> str:
        return "".join(update["content"]["text"] for update in self.updates(step, "agent_message_chunk"))

    def calls(self, step: str) -> list[Json]:
        """The tool calls as a client has them at the end: the members of all updates, `history` with each of them."""
        found: dict[str, Json] = {}
        for update in _updates(self.steps[step]):
            if "toolCallId" in update:
                call = found.setdefault(update["toolCallId"], {"history": []})
                call["history"].append(update)
                call.update({name: value for name, value in update.items() if name != "_meta"})
        return list(found.values())

    def titles(self, step: str) -> list[str]:
        return [call["title"] for call in self.calls(step)]

    def options(self, category: str) -> list[Json]:
        """The config options of a new session in a category."""
        return [option for option in self.created.get("configOptions") or [] if option.get("category") == category]

    def modes(self) -> list[str]:
        return [mode["id"] for mode in self.created["modes"]["availableModes"]]

    def commands(self) -> set[str]:
        """The slash commands that were announced before the first prompt."""
        lists = self.updates("created", "available_commands_update")
        return {command["name"] for command in lists[-1]["availableCommands"]} if lists else set()


def contents(call: Json) -> list[str]:
    """The texts of a call's content."""
    return [part["content"]["text"] for part in call.get("content") or [] if part["type"] == "content"]


def terminal_output(call: Json) -> list[str]:
    """The pieces of output that a client appends to a call's terminal."""
    metas = [update.get("_meta") or {} for update in call["history"]]
    return [meta["terminal_output"]["data"] for meta in metas if "terminal_output" in meta]


def terminal_exit(call: Json) -> list[Json]:
    metas = [update.get("_meta") or {} for update in call["history"]]
    return [meta["terminal_exit"] for meta in metas if "terminal_exit" in meta]


def _updates(frames: list[Json]) -> list[Json]:
    return [frame["params"]["update"] for frame in frames if frame.get("method") == "session/update"]


@dataclass
class Bench:
    """A side with its folders, its command and its environment; `model` is the server of its model."""

    base: Path
    side: Side
    command: list[str]
    env: dict[str, str]
    without_program: dict[str, str]
    """The environment in which the CLI does not exist."""
    model: ModelServer

    @property
    def work(self) -> Path:
        return self.base / "work"

    @property
    def errors(self) -> Path:
        """The standard error of the processes that use `env`."""
        return self.base / "stderr"

    def start(self, env: Mapping[str, str] | None = None) -> AbstractAsyncContextManager[StdioAgent]:
        log = self.errors if env is None else self.base / "stderr-of-others"
        return agent_on_stdio(self.command, env or self.env, self.work, log)

    def last_request(self) -> Json:
        """The body of the newest request of a turn; that for a session's title, which claude sends at any time, has no tools."""
        turns = (r.body for r in reversed(self.model.requests) if r.scenario != "e401" and r.body.get("tools"))
        return next(turns, {})


class Script:
    """A client that runs named steps in one session and records them."""

    def __init__(self, bench: Bench, agent: StdioAgent) -> None:
        self.bench, self.agent = bench, agent
        self.record = Recording(bench.work)

    async def open(self, command: str, **params: Any) -> None:
        """Initialize, begin a prompt that the model server rejects in a session of its own, and create the session.

        Waits until its slash commands are announced, with this one.
        """
        record, agent = self.record, self.agent
        record.initialized = await _initialize(agent, ALL_CAPABILITIES)
        async with self._recorded("created"):
            record.created = await self._new(**params)
            record.session = record.created["sessionId"]
            await agent.until(lambda: _has_command(agent, record.session, command))
        self._rejected = agent.begin_prompt((await self._new())["sessionId"], "[[e401]]")

    async def _new(self, **params: Any) -> Json:
        found: Json = await self.agent.request("session/new", {"cwd": str(self.bench.work), "mcpServers": []} | params)
        return found

    @asynccontextmanager
    async def _recorded(self, step: str) -> AsyncIterator[None]:
        first = len(self.agent.frames)
        yield
        self.record.steps[step] = [
            frame
            for frame in self.agent.since(first)
            if "params" not in frame or frame["params"].get("sessionId") in (None, self.record.session)
        ]

    async def step(self, name: str, prompt: str = "", choose: str = "allow_once") -> None:
        """Send a prompt, by default the one that lets the model do what the scenario `name` has."""
        self.agent.choose = lambda params: choose
        async with self._recorded(name):
            try:
                self.record.answers[name] = await self.agent.prompt(self.record.session, prompt or f"go [[{name}]]")
            except RequestFailed as failed:
                self.record.answers[name] = {"error": failed.error}
        self.record.requests[name] = self.bench.last_request()

    async def set_mode(self, mode: str) -> None:
        await self.agent.request("session/set_mode", {"sessionId": self.record.session, "modeId": mode})

    async def plan_with_codex(self) -> None:
        """Turn the plan mode on, which is a config option of the vendor's adapter and a mode of Portico."""
        if "plan" in self.record.modes():
            await self.set_mode("plan")
            return
        option = {"configId": "collaboration_mode", "value": "plan"}
        await self.agent.request("session/set_config_option", {"sessionId": self.record.session, **option})

    async def busy(self) -> None:
        """While a command waits for a file, send another prompt and a message to the run at work, then create the file."""
        agent, session = self.agent, self.record.session
        self.agent.choose = lambda params: "allow_once"
        async with self._recorded("busy"):
            first = agent.begin_prompt(session, "go [[busy]]")
            await wait_until((self.bench.base / "started").exists, "the command runs")
            held = agent.begin_prompt(session, "[[echo:Second.]]")
            params = {"sessionId": session, "prompt": [{"type": "text", "text": "turn left"}]}
            self.record.steered = await agent.request("_session/steering", params)
            # The output of the command arrives before it ends, where it is sent while it runs.
            with suppress(TimeoutError):
                await agent.until(lambda: "terminal_output" in json.dumps(agent.since(-4)), 1.0)
            (self.bench.base / "released").touch()
            for name, future in (("busy", first), ("held", held)):
                try:
                    self.record.answers[name] = await asyncio.wait_for(future, 60)
                except RequestFailed as failed:
                    self.record.answers[name] = {"error": failed.error}

    async def fast(self) -> None:
        """Turn the fast mode on in a session of its own, with the default model, and send a prompt."""
        created = await self._new()
        session = created["sessionId"]
        [self.record.fast] = [option for option in created["configOptions"] if option["id"] in ("fast", "fast-mode")]
        option = {"configId": self.record.fast["id"], "value": "on"}
        await self.agent.request("session/set_config_option", {"sessionId": session, **option})
        await self.agent.prompt(session, "[[echo:Fast.]]")
        self.record.requests["fast"] = self.bench.last_request()

    async def beside(self, *prompts: str) -> None:
        """In a second process, list the sessions, open this one, and send prompts to a new one, without any capability."""
        record = self.record
        async with self.bench.start() as agent:
            await _initialize(agent, {})
            listed = await agent.request("session/list", {})
            record.listed = [session["sessionId"] for session in listed["sessions"]]
            folder = {"cwd": str(self.bench.work), "mcpServers": []}
            try:
                await agent.request("session/load", {"sessionId": record.session, **folder})
            except RequestFailed as failed:
                record.loaded = failed.error
            created = await agent.request("session/new", folder)
            for name in prompts:
                first = len(agent.frames)
                record.answers[f"plain {name}"] = await agent.prompt(created["sessionId"], f"go [[{name}]]")
                record.steps[f"plain {name}"] = agent.since(first)
                record.requests[f"plain {name}"] = self.bench.last_request()

    async def without_program(self) -> None:
        """In a process that cannot find the CLI, create a session and send a prompt, until one fails."""
        async with self.bench.start(self.bench.without_program) as agent:
            method = "initialize"
            try:
                await _initialize(agent, {})
                method = "session/new"
                created = await agent.request(method, {"cwd": str(self.bench.work), "mcpServers": []})
                method = "session/prompt"
                await agent.prompt(created["sessionId"], "hello")
            except RequestFailed as failed:
                self.record.program_missing = method, failed.error
            except EOFError:
                self.record.program_missing = method, {"message": "", "ended": True}

    async def close(self, patience: float) -> None:
        """Wait so many seconds for the error of the prompt with the rejected key, and record what is in standard error."""
        await asyncio.wait([self._rejected], timeout=patience)
        self.record.standard_error = self.bench.errors.read_text()
        if self._rejected.done():
            failed = self._rejected.exception()
            assert isinstance(failed, RequestFailed), failed
            self.record.rejected_key = failed.error
        else:
            self._rejected.cancel()


def _has_command(agent: StdioAgent, session: str, command: str) -> bool:
    """Whether this slash command of the session was announced."""
    return any(
        command == announced["name"]
        for _, frame in agent.frames
        if frame.get("method") == "session/update" and frame["params"]["sessionId"] == session
        for announced in frame["params"]["update"].get("availableCommands", ())
    )


async def _initialize(agent: StdioAgent, capabilities: Json) -> Json:
    found: Json = await agent.request("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})
    return found


def calls(*blocks: Block, after: str = "Done.") -> Scenario:
    return Scenario((Step(blocks, chunk=5000), text_step(after)))


# -- claude ------------------------------------------------------------------------------------------------------------


def _bash(command: str, **more: object) -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": "what it does", **more})


def claude_scenarios(base: Path, requested: Callable[[], list[Json]]) -> dict[str, Scenario]:
    """The scenarios; `requested` returns the bodies of the requests that the model has got so far."""
    path = str(base / "work" / "a.txt")
    waits = f"touch {base}/started; until [ -e {base}/released ]; do sleep 0.05; done; echo over"
    written = ToolUse("Write", {"file_path": str(base / "work" / "b.txt"), "content": "word " * 100})
    return {
        "command": calls(_bash("true\necho two > made")),
        "unasked": calls(
            _bash("ls"),
            ToolUse("Read", {"file_path": path, "offset": 20, "limit": 3}),
            ToolUse("Grep", {"pattern": "line 2", "path": str(base / "work" / "sub")}),
            _bash("touch allowed"),
            _bash("rm a.txt"),
        ),
        "edit": calls(ToolUse("Edit", {"file_path": path, "old_string": "line 20\n", "new_string": "twenty\n"})),
        "push": calls(_bash("git push origin && npm run build")),
        "mcp": calls(ToolUse("mcp__small__secret", {"name": "a name"})),
        "written": Scenario((Step((written,), chunk=200, delay=0.01), text_step("Done."))),
        "todo": calls(ToolUse("TodoWrite", {"todos": [{"content": "x", "status": "pending", "activeForm": "x"}]})),
        "background": calls(_bash("sleep 0.2; echo over", run_in_background=True)),
        "question": calls(ToolUse("AskUserQuestion", {"questions": [QUESTION]})),
        "busy": calls(_bash(waits), after="First."),
        "exit": calls(ToolUse("ExitPlanMode", {"plan": "# The plan\n\n1. Do it"})),
        "planfile": Scenario(
            (lambda _: _write_plan(requested()), Step((ToolUse("ExitPlanMode", {}),), chunk=5000), text_step("Done."))
        ),
    }


def _write_plan(requests: list[Json]) -> Step:
    """Write the plan to the file that the CLI names to the model in plan mode, given the bodies of the requests."""
    path = re.findall(r"/[^\s`'\"]+/plans/[\w-]+\.md", json.dumps(requests))[-1]
    return Step((ToolUse("Write", {"file_path": path, "content": "# The plan\n\n1. Do it\n"}),), chunk=5000)


@asynccontextmanager
async def claude_bench(base: Path, side: Side, linger: float = 0.0) -> AsyncIterator[Bench]:
    """The agent of this side for claude, whose user has rules and whose project has a slash command."""
    program = require(BIN / "claude")
    adapter = require(ADAPTERS / "claude-agent-acp" / "dist" / "index.js")
    home = _folders(base)
    (home / ".claude").mkdir()
    rules = {"permissions": {"allow": ["Bash(touch:*)"], "deny": ["Bash(rm:*)"]}}
    (home / ".claude" / "settings.json").write_text(json.dumps(rules))
    commands = base / "work" / ".claude" / "commands"
    commands.mkdir(parents=True)
    (commands / "hello.md").write_text("---\ndescription: Says hello.\n---\nSay hello.\n")
    async with anthropic.model_server(claude_scenarios(base, lambda: model.bodies())) as model:
        env = {
            **_environment(home, program),
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "sk-ant-dummy",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
        }
        own = {"CLAUDE_CODE_EXECUTABLE": str(program)}
        missing = {"CLAUDE_CODE_EXECUTABLE": "/nonexistent/claude"}
        yield _bench(base, side, "claude", adapter, env, own, missing, model, linger)


async def record_claude(base: Path, side: Side) -> Recording:
    """Run the script with the agent of this side for claude."""
    async with claude_bench(base, side) as bench, bench.start() as agent:
        script = Script(bench, agent)
        meta = {"systemPrompt": {"append": "MARKED-PROMPT"}, "claudeCode": {"options": {"model": "haiku"}}}
        secret = {"name": "SECRET", "value": "x"}
        server = {"name": "small", "command": sys.executable, "args": [str(SERVER)], "env": [secret]}
        await script.open("hello", _meta=meta, mcpServers=[server])
        await script.set_mode("default")
        await script.step("unasked")
        await script.step("command")
        await script.step("edit")
        await script.step("push", choose="reject_once")
        await script.step("mcp")
        await script.step("written")
        await script.step("todo")
        await script.step("background")
        agent.fill = lambda params: {"action": "accept", "content": {"question_0": "Blue"}}
        await script.step("question")
        await script.busy()
        await script.set_mode("plan")
        await script.step("exit", choose="reject_once")
        await script.step("planfile", choose="reject_once")
        await script.fast()
        await script.beside("command", "question")
        await script.without_program()
        await script.close(0 if side == "vendor" else 30)
    return script.record


# -- codex -------------------------------------------------------------------------------------------------------------


def _exec(command: str, **more: object) -> ToolUse:
    return ToolUse("exec_command", {"cmd": command, **more})


def codex_scenarios(base: Path) -> dict[str, Scenario]:
    # The CLI does not report what a command puts out in its first milliseconds.
    waits = f"touch {base}/started; sleep 0.5; echo one; until [ -e {base}/released ]; do sleep 0.05; done; echo over"
    outside = {"sandbox_permissions": "require_escalated", "justification": "it needs to"}
    return {
        "command": calls(_exec("true\necho two > made", **outside)),
        "unasked": calls(_exec("ls"), _exec("sed -n 20,22p a.txt"), _exec("grep -n 'line 2' a.txt")),
        "edit": calls(ToolUse("apply_patch", {"input": PATCH})),
        "plan": calls(ToolUse("update_plan", {"plan": [{"step": "one", "status": "in_progress"}]})),
        "busy": calls(_exec(waits, yield_time_ms=30000, **outside), after="First."),
        "planned": Scenario((text_step("<proposed_plan>\n# The plan\n\n1. Do it\n</proposed_plan>"),)),
        "limited": Scenario((Step(failure=USAGE_LIMIT),)),
        "ruled": calls(_exec("touch ruled", **outside)),
        "review": calls(_exec("touch reviewed", **outside)),
    }


@asynccontextmanager
async def codex_bench(base: Path, side: Side, linger: float = 0.0) -> AsyncIterator[Bench]:
    """The agent of this side for codex, whose user has a skill and a rule."""
    program = require(BIN / "codex")
    adapter = require(ADAPTERS / "codex-acp" / "dist" / "index.js")
    home = _folders(base)
    skill = home / ".codex" / "skills" / "greet"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: greet\ndescription: Greets.\n---\nGreet the user.\n")
    (home / ".codex" / "rules").mkdir()
    (home / ".codex" / "rules" / "default.rules").write_text('prefix_rule(pattern=["touch", "ruled"], decision="allow")\n')
    async with openai.model_server(codex_scenarios(base)) as model:
        (home / ".codex" / "config.toml").write_text(CODEX_CONFIG.format(url=model.url))
        env = {**_environment(home, program), "CODEX_HOME": str(home / ".codex"), "SCRIPTED_KEY": "sk-dummy"}
        own, missing = {"CODEX_PATH": str(program)}, {"CODEX_PATH": "/nonexistent"}
        yield _bench(base, side, "codex", adapter, env, own, missing, model, linger)


async def record_codex(base: Path, side: Side) -> Recording:
    """Run the script with the agent of this side for codex."""
    async with codex_bench(base, side) as bench, bench.start() as agent:
        script = Script(bench, agent)
        await script.open("$greet", _meta={"systemPrompt": {"append": "MARKED-PROMPT"}})
        await script.step("unasked")
        await script.set_mode("read-only")
        await script.step("command")
        await script.step("edit")
        await script.step("ruled")
        await script.step("plan")
        await script.busy()
        await script.step("review", "/review [[review]]" if side == "vendor" else "/$review-agent [[review]]")
        await script.step("limited")
        await script.plan_with_codex()
        await script.step("planned", choose="reject_once")
        await script.step("approved", "again [[planned]]")
        await script.fast()
        await script.beside("command")
        await script.without_program()
        await script.close(30)
    return script.record


# -- both --------------------------------------------------------------------------------------------------------------


def _folders(base: Path) -> Path:
    """Create the home and the working folder, which is a repository; return the home."""
    home, work = base / "home", base / "work"
    (work / "sub").mkdir(parents=True)
    home.mkdir()
    (work / "a.txt").write_text(LINES)
    subprocess.run(["git", "init", "-q", str(work)], check=True, env={"PATH": os.environ["PATH"], "HOME": str(home)})
    return home


def _environment(home: Path, program: Path) -> dict[str, str]:
    return {"PATH": f"{program.parent}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}


def _bench(
    base: Path,
    side: Side,
    cli: str,
    adapter: Path,
    env: dict[str, str],
    own: dict[str, str],
    missing: dict[str, str],
    model: ModelServer,
    linger: float,
) -> Bench:
    """The bench of a side. `own` and `missing` name the program to the adapter; Portico finds it by PATH.

    `linger` is how long the daemon is kept for a next start, in seconds.
    """
    if side == "vendor":
        return Bench(base, side, ["node", str(adapter)], env | own, env | missing, model)
    agent: Json = {"driver": cli}
    if "SCRIPTED_KEY" in env:
        # The configuration names the variables that an agent's CLI gets besides the usual ones.
        agent["env"] = {"SCRIPTED_KEY": env["SCRIPTED_KEY"]}
    config = write_config(base, {"server": {"linger": linger}, "agents": {cli: agent}})
    command = [sys.executable, "-m", "gateway", "acp", "--config", str(config), cli]
    env = env | {"PYTHONPATH": str(ROOT)}
    # With another home, because a daemon has one environment for all editors.
    other = base / "other-home"
    other.mkdir()
    return Bench(base, side, command, env, env | {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(other)}, model)


def record_both(base: Path, run: Callable[[Path, Side], Any]) -> tuple[Recording, Recording]:
    """Run a script with the vendor's adapter and with Portico, at the same time."""

    async def both() -> tuple[Recording, Recording]:
        for side in ("vendor", "portico"):
            (base / side).mkdir()
        vendor, portico = await asyncio.gather(run(base / "vendor", "vendor"), run(base / "portico", "portico"))
        return vendor, portico

    return asyncio.run(both())
