"""The claude driver: starts the claude CLI for one task and for a session. drivers/claude/codec.py reads its lines."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivers.claude.commands import permitted
from drivers.claude.content import native_messages
from drivers.claude.permissions import BYPASS, MODES, PLAN, PLAN_TOOL, QUESTION_TOOL
from drivers.claude.probe import commands, efforts, fast_models, greeting, login_status, model_names, models
from drivers.claude.session_file import project_folder, session_file
from drivers.claude.stdin_lines import escape_command, without_forbidden
from drivers.claude.tools import MCP_PREFIX, OTHER_TOOLS, OWN_TOOLS, PLAN_TOOLS, Toolset
from drivers.contract.agent_specs import AgentSpec, SessionSpec, TaskSpec
from drivers.contract.codec import Command, Launch
from drivers.contract.driver_info import (
    ASK_MODE,
    FAST_OPTION,
    MODE_OPTION,
    SLASH_OPTION,
    Capabilities,
    Display,
    DriverInfo,
    Login,
    Mcp,
    Option,
    PermissionMode,
    Permissions,
    Probe,
    Program,
    TakesSchema,
    ToolGrant,
)
from drivers.contract.errors import AgentUnavailable, DriverError
from drivers.contract.line_splitter import text_line
from drivers.runtime.cli_driver import PROBE_SECONDS, CliDriver, made
from drivers.runtime.process import Spawner

if TYPE_CHECKING:
    from drivers.claude.codec import ClaudeCodec

STREAM = ("--output-format", "stream-json", "--verbose", "--include-partial-messages", "--include-hook-events")
END_SECONDS = 2.0
"""The time that a probed CLI has to end by itself."""
ENVIRONMENT = {
    "DISABLE_AUTOUPDATER": "1",
    # By default there are 10, and the error of a wrong key takes more than 90 s. 2 take 2 s.
    "CLAUDE_CODE_MAX_RETRIES": "2",
    # Else a sub-agent goes on after the turn's end, and a turn has two results.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    # Else `@/any/path` in a prompt puts that file into the request, tools or no tools.
    "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
    # The same in 2.1.148, and no texts of the CLI beside the user's.
    "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",
    # Else the application's tools are hidden behind a search tool.
    "ENABLE_TOOL_SEARCH": "false",
    # Ten days and none: the gateway limits the time of the application. The default is 5 minutes without progress.
    "MCP_TOOL_TIMEOUT": "864000000",
    "CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT": "0",
    # Else a result of more than 25,000 tokens goes to a file.
    "MAX_MCP_OUTPUT_TOKENS": "100000000",
}
"""Variables of the CLI. The agent's own `env` overrides them."""
NOT_IN_OWN_MODES = frozenset({"CLAUDE_CODE_DISABLE_ATTACHMENTS"})
"""Variables that are not set in the CLI's own modes: the instructions of plan mode are such a text."""

FAST_SETTINGS = {"fastMode": True}
"""Settings of the fast mode. In print mode the CLI takes it from `--settings` only, not from its settings files (2.1.329)."""
LOGINS = (
    Login("claude-login", "Claude subscription", ("auth", "login", "--claudeai")),
    Login("console-login", "Anthropic Console", ("auth", "login", "--console")),
)
OPTIONS = (
    Option("model", "Model", "An alias such as sonnet or opus, or a model's full name; empty is the CLI's own default."),
    Option("effort", "Effort", "How hard the model thinks, such as low or high; empty is the CLI's own default."),
    Option(
        FAST_OPTION, "Fast mode", "Faster answers at a higher price, from models and accounts that have it.",
        default="off", choices=("off", "on"),
    ),
    Option("api_key", "API key", "An Anthropic API key for this session; empty uses the CLI's own login.", secret=True),
    Option(
        "system_prompt", "System prompt", "Whether a system message is added to the CLI's own prompt or replaces it.",
        default="append", choices=("append", "replace"),
    ),
    Option(
        "settings", "Settings", "Which of the CLI's settings files, hooks and CLAUDE.md apply.",
        default="user,project,local", choices=("user,project,local", "user", "none"),
    ),
    Option(
        SLASH_OPTION, "Slash commands", "Whether a prompt that begins with / is a command of the CLI, or just text.",
        default="off", choices=("off", "on"),
    ),
    Option(
        MODE_OPTION, "Mode", "ask: each call of an untrusted tool asks. Else a mode of the CLI, which decides by its own rules.",
        default=ASK_MODE, choices=(ASK_MODE, *(mode.id for mode in MODES)),
    ),
)  # fmt: skip


class ClaudeDriver(CliDriver):
    """Anthropic's claude CLI: one process a session, warm between turns."""

    name = "claude"

    def __init__(self) -> None:
        self._context_sizes: dict[str, int] = {}

    def info(self) -> DriverInfo:
        return DriverInfo(
            title="Claude Code",
            description="Anthropic's coding agent, by its claude CLI.",
            program=Program("claude", "npm install -g @anthropic-ai/claude-code", logins=LOGINS, env=("ANTHROPIC_*", "CLAUDE_*")),
            tools=OWN_TOOLS,
            options=OPTIONS,
            capabilities=Capabilities(
                seeds=True,
                system=True,
                image_http=True,
                image_data=True,
                app_tools=True,
                steers=True,
                compaction=True,
                additional_directories=True,
            ),
            permissions=Permissions(MODES, question_tools=frozenset({QUESTION_TOOL})),
            mcp=Mcp(frozenset({"stdio", "http", "sse"}), tool_prefix=MCP_PREFIX),
            display=Display(
                tool_kinds=OTHER_TOOLS,
                path_fields=("file_path", "path", "notebook_path"),
                error_prefixes=("<tool_use_error>",),
                plan_tools=PLAN_TOOLS,
            ),
        )

    def permitted_modes(self, env: Mapping[str, str], *, confined: bool) -> tuple[PermissionMode, ...]:
        # The CLI does not start as root with permission to bypass, outside of a sandbox.
        root = hasattr(os, "geteuid") and os.geteuid() == 0 and not confined and not env.get("IS_SANDBOX")
        return tuple(mode for mode in MODES if not (root and mode.unrestricted))

    def takes_schema(self, schema: Mapping[str, Any]) -> TakesSchema | None:
        # It is the schema of a tool's input, which the model's API restricts.
        plain = schema.get("type") == "object" and schema.keys().isdisjoint(("anyOf", "oneOf", "allOf"))
        return "with_session" if plain else None

    async def probe(self, spec: AgentSpec, spawner: Spawner) -> Probe:
        """The version, the login, and the models and commands that the CLI lists when a session is opened (no request is made).

        Without anybody's settings: with them the hooks of SessionStart would run (2.1.329). So commands of a project or of the
        user are not among these.
        """
        found = await super().probe(spec, spawner)
        if found.problem:
            return found
        try:
            answer = await self._greeting(_probed(spec), spawner)
            # Only of a CLI that opens a session: one that does not know these words sends them to the model.
            known = await self._logged_in(spec, spawner)
        except (DriverError, TimeoutError) as error:
            return Probe(found.version, f"claude {found.version}: {str(error) or f'no answer in {PROBE_SECONDS:g} s'}")
        return Probe(
            found.version,
            None,
            known,
            models(answer),
            commands=commands(answer),
            model_names=model_names(answer),
            efforts=efforts(answer),
            fast_models=fast_models(answer),
        )

    async def _logged_in(self, spec: AgentSpec, spawner: Spawner) -> bool | None:
        process = await spawner.spawn(Command((spec.program, "auth", "status"), spec.cwd, _environment(spec), stdin=b""))
        printed: list[str] = []
        try:
            async with spawner.clock.timeout(PROBE_SECONDS):
                while lines := await process.read_lines():
                    printed += map(text_line, lines)
                    if (reported := login_status("\n".join(printed))) is not None:
                        return reported
                return {0: True, 1: False}.get(await process.exit_code())
        finally:
            await asyncio.shield(process.close(END_SECONDS))

    async def _greeting(self, spec: SessionSpec, spawner: Spawner) -> Mapping[str, Any]:
        """Start a session, and return its answer to `initialize`."""
        launch = await made(self.session, spec)
        codec, printed = launch.codec, list[str]()
        process = await spawner.spawn(launch.command)
        try:
            async with spawner.clock.timeout(PROBE_SECONDS):
                process.write(codec.outbox)
                while lines := await process.read_lines():
                    codec.receive_lines(lines)
                    printed += map(text_line, lines)
                    if codec.start_error or codec.protocol_error:
                        raise codec.start_error or AgentUnavailable(codec.protocol_error)
                    if codec.phase == "ready":
                        return greeting(printed)
                if process.failure is not None:
                    raise AgentUnavailable(process.failure)
                code = await process.exit_code()
        finally:
            # Without a network 2.1.329 takes 20 s to end by itself. It writes files of the user's home.
            await asyncio.shield(process.close(END_SECONDS))
        printed += process.stderr_tail()
        raise AgentUnavailable(f"it opened no session (exit code {code}): {' '.join(printed)[-500:] or 'it wrote no message'}")

    def home_folders(self, spec: AgentSpec) -> tuple[Path, ...]:
        return (_home(spec),)

    def home_files(self, spec: AgentSpec) -> tuple[Path, ...]:
        return () if spec.env.get("CLAUDE_CONFIG_DIR") else (_home(spec).with_name(".claude.json"),)

    def task(self, spec: TaskSpec) -> Launch:
        model = spec.model or spec.options.get("model")
        argv = [spec.program, *spec.args, "--print", *STREAM, *([f"--model={model}"] if model else [])]
        argv += [*_effort(spec), *(("--settings", json.dumps(FAST_SETTINGS)) if _is_fast(spec) else ())]
        command = Command(tuple(argv), spec.cwd, _environment(spec), stdin=_literal(spec, spec.task).encode())
        return Launch(command, _codec_class()(once=True))

    def session(self, spec: SessionSpec) -> Launch:
        mode = spec.options.get(MODE_OPTION, ASK_MODE)
        own_mode = None if mode == ASK_MODE else mode
        tools = Toolset(
            _granted(spec),
            spec.app_tools,
            spec.mcp_servers,
            mode=own_mode,
            ruled=spec.permissions.ruled,
            answers=spec.output_schema is not None,
        )
        settings = {**tools.settings(), **(FAST_SETTINGS if _is_fast(spec) else {})}
        fresh = str(uuid.uuid4())
        files: dict[Path, bytes] = {}
        if spec.seed.resume is not None:
            identity = ("--resume", spec.seed.resume)
        elif native_messages(spec.seed.history):
            files = {_session_path(spec, fresh): _seed(spec, tools)}
            identity = ("--resume", fresh)
        else:
            identity = ("--session-id", fresh)
        servers = tools.server_file()
        server_file = spec.state / "mcp-servers.json" if servers and spec.state else None
        if servers and server_file:
            files[server_file] = servers
        argv = (*_session_arguments(spec, tools, settings, server_file), *identity)
        command = Command(argv, spec.cwd, _environment(spec), files=files, state=spec.state)
        codec = _codec_class()(
            _initialize(spec),
            tools=tools,
            is_command=_is_command(spec, lasting=spec.permissions.lasting_choices),
            mode=own_mode,
            modes=spec.permissions.modes,
            folder=str(spec.cwd),
            sources=_sources(spec).split(",") if spec.permissions.lasting_choices else (),
            context_sizes=self._context_sizes,
        )
        codec.native_id = identity[1]
        return Launch(command, codec)


def _granted(spec: SessionSpec) -> Sequence[ToolGrant]:
    """The tools of a session. One that has no other mode than plan mode does not have the tool whose approval leaves that."""
    return tuple(tool for tool in spec.tools if tool.name != PLAN_TOOL) if spec.permissions.modes == {PLAN} else spec.tools


def _codec_class() -> type[ClaudeCodec]:
    # Imported with the first process: 5 ms of the start of each command.
    from drivers.claude.codec import ClaudeCodec

    return ClaudeCodec


def _session_arguments(
    spec: SessionSpec, tools: Toolset, settings: Mapping[str, Any], server_file: Path | None
) -> tuple[str, ...]:
    model = spec.options.get("model")
    return (
        spec.program,
        *spec.args,
        # Takes all that follows up to the next flag.
        *(("--add-dir", *map(str, spec.additional_directories)) if spec.additional_directories else ()),
        "--print",
        "--input-format",
        "stream-json",
        *STREAM,
        # Reports when the CLI reads a message that was sent while it worked.
        "--replay-user-messages",
        "--permission-prompt-tool",
        "stdio",
        # No tool runs that the session does not list: none of the CLI's own, none of an MCP server in its settings.
        *tools.arguments(server_file),
        *(("--settings", json.dumps(settings)) if settings else ()),
        "--setting-sources",
        _sources(spec),
        # The CLI refuses it to root outside of a sandbox, and the mode itself without it.
        *(("--allow-dangerously-skip-permissions",) if BYPASS in spec.permissions.modes else ()),
        *((f"--model={model}",) if model else ()),
        *_effort(spec),
    )


def _probed(spec: AgentSpec) -> SessionSpec:
    """The session of a probe, with the arguments of any session."""
    options = {**spec.options, "settings": "none"}
    session = SessionSpec(spec.program, spec.cwd, spec.env, spec.args, options, spec.state, spec.confined)
    return replace(session, tools=(ToolGrant("Read"),))


def _initialize(spec: SessionSpec) -> dict[str, Any]:
    # In the control request, not in the arguments, which every user can read in the process list.
    members: dict[str, Any] = {}
    if spec.output_schema is not None:
        # As the argument `--json-schema`.
        members["jsonSchema"] = spec.output_schema
    if spec.seed.system is not None:
        replaces = spec.options.get("system_prompt") == "replace"
        members["systemPrompt" if replaces else "appendSystemPrompt"] = spec.seed.system
    return members


def _effort(spec: AgentSpec) -> tuple[str, ...]:
    effort = spec.options.get("effort")
    return (f"--effort={effort}",) if effort else ()


def _is_fast(spec: AgentSpec) -> bool:
    return spec.options.get(FAST_OPTION) == "on"


def _sources(spec: SessionSpec) -> str:
    settings = spec.options.get("settings", "user,project,local")
    return "" if settings == "none" else settings


def _environment(spec: AgentSpec) -> dict[str, str]:
    key = spec.options.get("api_key")
    own_mode = spec.options.get(MODE_OPTION, ASK_MODE) != ASK_MODE
    return {
        **{name: value for name, value in ENVIRONMENT.items() if not (own_mode and name in NOT_IN_OWN_MODES)},
        # By which the CLI permits its mode bypassPermissions to root.
        **({"IS_SANDBOX": "1"} if spec.confined else {}),
        **spec.env,
        **({"ANTHROPIC_API_KEY": key} if key else {}),
    }


def _literal(spec: TaskSpec, task: str) -> str:
    # No command of a task writes to settings: nobody is asked about it.
    is_command = _is_command(spec, lasting=False)
    return escape_command(task) if is_command is None else without_forbidden(task, is_command)


def _is_command(spec: AgentSpec, *, lasting: bool) -> Callable[[str], bool] | None:
    """Whether a prompt may be the slash command of a name; None if there are no commands."""
    if spec.options.get(SLASH_OPTION) != "on":
        return None
    return partial(permitted, locked=spec.locked, lasting=lasting)


def _seed(spec: SessionSpec, tools: Toolset) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return session_file(tools.native_history(spec.seed.history), [str(uuid.uuid4()) for _ in spec.seed.history], now)


def _home(spec: AgentSpec) -> Path:
    return Path(spec.env.get("CLAUDE_CONFIG_DIR") or Path(spec.env.get("HOME", "~")).expanduser() / ".claude")


def _session_path(spec: SessionSpec, session_id: str) -> Path:
    return _home(spec) / "projects" / project_folder(str(spec.cwd.resolve())) / f"{session_id}.jsonl"
