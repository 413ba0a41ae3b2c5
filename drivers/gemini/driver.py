"""The gemini driver: Google's gemini CLI. A task is read in gemini_codec.py; a session speaks the Agent Client Protocol.

What is gemini's own of that: a home for each session, a policy that grants tools by their names, and chats seeded by a file.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from drivers.acp.driver import load, probe
from drivers.contract.agent import Agent
from drivers.contract.client_services import READ, WRITE
from drivers.contract.codec import Command, Launch
from drivers.contract.errors import AgentUnavailable
from drivers.contract.info import DriverInfo, Option, Probe
from drivers.contract.specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.gemini.codec import LOG_IN, GeminiCodec
from drivers.gemini.history import chat, chat_file
from drivers.gemini.home import (
    SLUG,
    environment,
    files,
    home_of,
    prepare,
    project_files,
    project_names,
    session_settings,
    task_settings,
    temporary,
)
from drivers.gemini.tools import NAMES, SERVER, TOOLS, app_name, own_servers, policy, server_tools
from drivers.runtime.cli_driver import CliDriver
from drivers.runtime.process import Spawner

MAX_TASK = 8 * 1024 * 1024
"""Bytes of standard input that the CLI reads; what is beyond it passes over without a word."""

OPTIONS = (
    Option("model", "Model", "A model's name, or auto; empty is the CLI's own default."),
    Option("api_key", "API key", "A Gemini API key for this session; empty uses the CLI's own login.", secret=True),
    Option(
        "system_prompt", "System prompt", "Whether a system message is added to the CLI's own prompt or takes its place.",
        default="append", choices=("append", "replace"),
    ),
    Option(
        "settings", "Settings", "Which of the CLI's settings files, hooks and GEMINI.md apply.",
        default="user,project", choices=("user,project", "user", "none"),
    ),
    Option(
        "slash_commands", "Slash commands", "Whether a prompt that begins with / is a command of the CLI, or just text.",
        default="off", choices=("off", "on"),
    ),
)  # fmt: skip


class GeminiDriver(CliDriver):
    """Google's gemini CLI: one process a session, warm between turns."""

    name = "gemini"
    tools_by_mcp = True

    def info(self) -> DriverInfo:
        return DriverInfo(
            title="Gemini CLI",
            description="Google's coding agent, by its gemini CLI.",
            program="gemini",
            install="npm install -g @google/gemini-cli",
            tools=TOOLS,
            options=OPTIONS,
            env=("GEMINI_*", "GOOGLE_*"),
            image_data=True,
            app_tools=True,
            mcp=frozenset({"stdio", "http", "sse"}),
            asks_client=True,
            additional_directories=True,
            slash_option="slash_commands",
            path_fields=("file_path", "path", "dir_path", "absolute_path"),
            plan_tools={"write_todos": "replace"},
            mcp_tool_prefix="mcp__",
        )

    async def probe(self, spec: AgentSpec, spawner: Spawner) -> Probe:
        await asyncio.to_thread(load)
        state = await asyncio.to_thread(temporary)
        try:
            await asyncio.to_thread(prepare, home_of(spec), state, whole=False)
            # Not in the user's folder: the CLI looks through it, and keeps a history of it.
            session = SessionSpec(spec.program, state / "tmp", spec.env, spec.args, {**spec.options, "settings": "user"}, state)
            # Its modes are levels of trust, which the session's own tools are.
            found = replace(await probe(self, session, spawner), options=())
            return found if found.version else replace(await super().probe(spec, spawner), problem=found.problem)
        finally:
            await asyncio.to_thread(shutil.rmtree, state, ignore_errors=True)

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        await asyncio.to_thread(load)
        spec = replace(spec, state=spec.state or await asyncio.to_thread(temporary))
        await asyncio.to_thread(prepare, home_of(spec), _state(spec), whole=False)
        return await super().open(spec, spawner, limits)

    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        if len(spec.task.encode()) > MAX_TASK:
            raise AgentUnavailable(f"gemini reads {MAX_TASK // 1024 // 1024} MiB of a task at most; this one has more")
        spec = replace(spec, state=spec.state or await asyncio.to_thread(temporary))
        await asyncio.to_thread(prepare, home_of(spec), _state(spec), whole=True)
        return await super().execute(spec, spawner, limits)

    def task(self, spec: TaskSpec) -> Launch:
        state, model = _state(spec), spec.model or spec.options.get("model")
        argv = (spec.program, *spec.args, "--output-format", "stream-json", *(("--model", model) if model else ()))
        given = files(state, task_settings(spec, home_of(spec)))
        # Not as `--prompt`: an argument has a limit, and everybody on the machine can read it.
        command = Command(argv, spec.cwd, environment(spec, state), stdin=_literal(spec).encode(), files=given)
        return Launch(command, GeminiCodec())

    def session(self, spec: SessionSpec) -> Launch:
        from drivers.acp.app_tools import past_proxies
        from drivers.acp.codec import AcpCodec
        from drivers.acp.handshake import Wanted
        from drivers.acp.permissions import Grants
        from drivers.gemini.session import profile

        spec = replace(spec, mcp_servers=tuple(own_servers(spec.mcp_servers, project_names(spec.cwd))))
        state, folder, model = _state(spec), str(spec.cwd.resolve()), spec.options.get("model")
        given = _session_files(spec, state, folder)
        resume = spec.resume
        if resume is None and spec.history:
            resume = str(uuid.uuid4())
            given[state / ".gemini" / "tmp" / SLUG / "chats" / chat_file(resume)] = _seed(spec, resume, folder)
        env = past_proxies(environment(spec, state), spec.tool_server)
        if spec.system is not None and spec.options.get("system_prompt") == "replace":
            given[state / "system.md"] = spec.system.encode()
            env["GEMINI_SYSTEM_MD"] = str(state / "system.md")
        allowed = [server.name for server in spec.mcp_servers] + ([SERVER] if spec.tool_server else [])
        # No MCP server of the project's settings is started: without any of the session's own, none that it could name.
        servers = [f"--allowed-mcp-server-names={name}" for name in allowed or [uuid.uuid4().hex]]
        argv = (spec.program, *spec.args, "--acp", *servers, *(("--model", model) if model else ()))
        wanted = Wanted(cwd=folder, resume=resume, late_replay=True, how_to_log_in=f"{LOG_IN}, or the option api_key")
        # Of the files below its folder it asks a client that offers them, by itself and behind its own policy.
        offers = spec.services.supported_methods() if spec.services else frozenset()
        wanted = replace(wanted, servers=spec.mcp_servers, reads=READ in offers, writes=WRITE in offers)
        talk = profile(verbatim=spec.options.get("slash_commands") != "on", app_tools=spec.app_tools)
        # Of the servers' tools the CLI asks only about those that its policy does not let run.
        own = [grant for grant in spec.tools if grant.name in NAMES]
        codec = AcpCodec(wanted, Grants(own, asked=server_tools(spec.mcp_servers), services=True), talk)
        return Launch(Command(argv, spec.cwd, env, files=given), codec, spec.tool_server)


def _state(spec: AgentSpec) -> Path:
    assert spec.state is not None, "open and execute see to it"
    return spec.state


def _session_files(spec: SessionSpec, state: Path, folder: str) -> dict[Path, bytes]:
    """The home of a session: what it is called, what it may do, what it is told."""
    user, own = home_of(spec), state / ".gemini"
    tools = [grant.name for grant in spec.tools if grant.name in NAMES]
    given = {**files(state, session_settings(spec, user, tools)), **project_files(state, folder)}
    given[own / "policies" / "portico.toml"] = policy(spec.tools, spec.app_tools, spec.mcp_servers).encode()
    context = [] if spec.options.get("settings") == "none" else _read(user / "GEMINI.md")
    if spec.system is not None and spec.options.get("system_prompt") != "replace":
        context.append(spec.system)
    given[own / "GEMINI.md"] = "\n\n".join(context).encode()
    return given


def _read(path: Path) -> list[str]:
    try:
        return [path.read_text("utf-8")]
    except (OSError, ValueError):
        return []


def _seed(spec: SessionSpec, session_id: str, folder: str) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    names = {tool.name: app_name(tool.name) for tool in spec.app_tools}
    return chat(spec.history, session_id, folder, [str(uuid.uuid4()) for _ in spec.history], now, names)


def _literal(spec: TaskSpec) -> str:
    return "\n" + spec.task if spec.task.startswith("/") and spec.options.get("slash_commands") != "on" else spec.task
