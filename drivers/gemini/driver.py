"""The gemini driver: runs Google's gemini CLI, a task with stream-json output, a session over the Agent Client Protocol.

A session adds to `drivers.acp` a private home folder, a policy file that grants tools by name, and histories as chat files.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from drivers.acp import import_protocol, probe_session
from drivers.codecs.slash_commands import escape
from drivers.contract.agent import Agent
from drivers.contract.agent_specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.contract.client_services import READ, WRITE
from drivers.contract.codec import Command, Launch
from drivers.contract.driver_info import (
    ASK_MODE,
    MODE_OPTION,
    SLASH_OPTION,
    Capabilities,
    Display,
    DriverInfo,
    Login,
    Mcp,
    Option,
    Permissions,
    Probe,
    Program,
)
from drivers.contract.errors import AgentUnavailable
from drivers.gemini.history import chat_file, chat_file_name
from drivers.gemini.home import (
    SLUG,
    environment,
    home_files,
    prepare_home,
    project_files,
    project_names,
    require_own_servers,
    require_trust,
    session_settings,
    task_settings,
    user_folder,
    users_file,
)
from drivers.gemini.modes import MCP_PREFIX, MODES, own_mode, user_policies
from drivers.gemini.one_shot_codec import LOGIN_HINT, GeminiTaskCodec
from drivers.gemini.policy import policy_file
from drivers.gemini.tools import NAMES, SERVER, TOOLS, app_tool_name, rename_servers, server_prefixes
from drivers.runtime.cli_driver import CliDriver
from drivers.runtime.process import Spawner
from drivers.runtime.temporary_folder import throwaway_folder

ONLY_ITS_POLICIES = ("--policy=~/.gemini/policies", "--admin-policy=")
"""Without these, settings of a project can name other policies instead (0.44.0 to 0.61.0). The `~` is the folder GEMINI_CLI_HOME:
the CLI would split its path at a comma."""
MAX_TASK = 8 * 1024 * 1024
"""Bytes of standard input that the CLI reads; it drops the rest without an error."""

OPTIONS = (
    Option("model", "Model", "A model's name, or auto; empty is the CLI's own default."),
    Option("api_key", "API key", "A Gemini API key for this session; empty uses the CLI's own login.", secret=True),
    Option(
        "system_prompt", "System prompt", "Whether a system message is added to the CLI's own prompt or replaces it.",
        default="append", choices=("append", "replace"),
    ),
    Option(
        "settings", "Settings", "Which of the CLI's settings files, hooks and GEMINI.md apply.",
        default="user,project", choices=("user,project", "user", "none"),
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


class GeminiDriver(CliDriver):
    """One `gemini --acp` process per session, which stays between turns; one `gemini` process per task."""

    name = "gemini"
    tools_by_mcp = True

    def info(self) -> DriverInfo:
        return DriverInfo(
            title="Gemini CLI",
            description="Google's coding agent, by its gemini CLI.",
            program=Program(
                "gemini",
                "npm install -g @google/gemini-cli",
                # It asks at its start.
                logins=(Login("gemini-login", "Google"),),
                env=("GEMINI_*", "GOOGLE_*"),
            ),
            tools=TOOLS,
            options=OPTIONS,
            capabilities=Capabilities(
                seeds=True, system=True, image_data=True, app_tools=True, additional_directories=True, asks_client=True
            ),
            permissions=Permissions(MODES),
            mcp=Mcp(frozenset({"stdio", "http", "sse"}), tool_prefix=MCP_PREFIX),
            display=Display(
                path_fields=("file_path", "path", "dir_path", "absolute_path"), plan_tools={"write_todos": "replace"}
            ),
        )

    async def probe(self, spec: AgentSpec, spawner: Spawner) -> Probe:
        await import_protocol()
        async with throwaway_folder(spawner.temporary) as state:
            await asyncio.to_thread(prepare_home, user_folder(spec), state, link_all=False)
            # Not in the working folder: the CLI reads the folder's files, and keeps a history of it.
            options = {**spec.options, "settings": "user"}
            session = SessionSpec(spec.program, state / "tmp", spec.env, spec.args, options, state, spec.confined)
            # The CLI's modes are levels of trust; a session grants tools by its list instead.
            found = replace(await probe_session(self, session, spawner), options=())
            if found.problem is None:
                return found
            version = found.version or (await super().probe(spec, spawner)).version
            problem = f"{' '.join(filter(None, ('gemini', version)))}: {found.problem.removeprefix('gemini: ')}"
            return replace(found, version=version, problem=problem)

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        await import_protocol()
        await asyncio.to_thread(prepare_home, user_folder(spec), _state(spec), link_all=False)
        return await super().open(spec, spawner, limits)

    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        if len(spec.task.encode()) > MAX_TASK:
            raise AgentUnavailable(f"gemini reads {MAX_TASK // 1024 // 1024} MiB of a task at most; this one is longer")
        await asyncio.to_thread(prepare_home, user_folder(spec), _state(spec), link_all=True)
        return await super().execute(spec, spawner, limits)

    def home_files(self, spec: AgentSpec) -> tuple[Path, ...]:
        # The login, which is linked into the home folder of each session.
        return (user_folder(spec),)

    def task(self, spec: TaskSpec) -> Launch:
        state, model = _state(spec), spec.model or spec.options.get("model")
        argv = (spec.program, *spec.args, "--output-format", "stream-json", *_model_argument(model))
        files = home_files(state, task_settings(spec, user_folder(spec)))
        # Not as `--prompt`: an argument's length is limited, and every user of the machine can read it.
        command = Command(argv, spec.cwd, environment(spec, state), stdin=_task_text(spec).encode(), files=files, state=state)
        return Launch(command, GeminiTaskCodec())

    def session(self, spec: SessionSpec) -> Launch:
        from drivers.acp import AcpCodec, Grants, SessionRequest, bypass_proxy
        from drivers.gemini.acp_profile import agent_profile

        if spec.mcp_servers:
            spec = replace(spec, mcp_servers=tuple(rename_servers(spec.mcp_servers, project_names(spec.cwd))))
        names = [server.name for server in spec.mcp_servers] + ([SERVER] if spec.tool_server else [])
        require_own_servers(spec.cwd, names)
        if names:
            require_trust(spec)
        state, folder, model = _state(spec), str(spec.cwd), spec.options.get("model")
        files = _session_files(spec, state, folder)
        resume = spec.seed.resume
        if resume is None and spec.seed.history:
            resume = str(uuid.uuid4())
            files[state / ".gemini" / "tmp" / SLUG / "chats" / chat_file_name(resume)] = _seed(spec, resume, folder)
        env = bypass_proxy(environment(spec, state), spec.tool_server)
        if spec.seed.system is not None and spec.options.get("system_prompt") == "replace":
            files[state / "system.md"] = spec.seed.system.encode()
            env["GEMINI_SYSTEM_MD"] = str(state / "system.md")
        # Without an allowed name the CLI starts all MCP servers of the project's settings; a random name allows none of them.
        servers = [f"--allowed-mcp-server-names={name}" for name in names or [uuid.uuid4().hex]]
        argv = (spec.program, *spec.args, "--acp", *ONLY_ITS_POLICIES, *servers, *_model_argument(model))
        # For files in its working folder the CLI uses the client's methods, if declared, after it has asked by its own policy.
        methods = spec.services.supported_methods() if spec.services else frozenset()
        mode = own_mode(spec)
        request = SessionRequest(
            cwd=folder,
            mode=mode or "",
            resume=resume,
            login_hint=f"{LOGIN_HINT}, or the option api_key",
            read_files=READ in methods,
            write_files=WRITE in methods,
            replays_after_load=True,
            mcp_servers=spec.mcp_servers,
        )
        # The CLI requests permission only for MCP tools that its policy does not allow.
        tools = [grant for grant in spec.tools if grant.name in NAMES]
        grants = Grants(
            tools,
            ask_prefixes=server_prefixes(spec.mcp_servers),
            agent_asks=True,
            left_to_agent=lambda name: mode is not None and name in NAMES,
        )
        profile = agent_profile(verbatim=spec.options.get(SLASH_OPTION) != "on", app_tools=spec.app_tools)
        command = Command(argv, spec.cwd, env, files=files, state=state)
        return Launch(command, AcpCodec(request, grants, profile, changes_modes=mode is not None))


def _model_argument(model: str | None) -> tuple[str, ...]:
    # As one argument: the CLI takes `--model --yolo` for two flags (0.61.0).
    return (f"--model={model}",) if model else ()


def _state(spec: AgentSpec) -> Path:
    assert spec.state is not None, "its home is there"
    return spec.state


def _session_files(spec: SessionSpec, state: Path, folder: str) -> dict[Path, bytes]:
    """The files of a session's home: settings, policy and context."""
    user, own = user_folder(spec), state / ".gemini"
    tools = [grant.name for grant in spec.tools if grant.name in NAMES]
    files = {**home_files(state, session_settings(spec, user, tools)), **project_files(state, folder)}
    mode = own_mode(spec)
    policy = policy_file(spec.tools, spec.app_tools, spec.mcp_servers, own_modes=mode is not None)
    files[own / "policies" / "portico.toml"] = policy.encode()
    if mode is not None and spec.options.get("settings") != "none":
        policies = user_policies(user, tools, confined=spec.confined)
        files |= {own / "policies" / name: content for name, content in policies.items()}
    context = [] if spec.options.get("settings") == "none" else _context(spec)
    if spec.seed.system is not None and spec.options.get("system_prompt") != "replace":
        context.append(spec.seed.system)
    files[own / "GEMINI.md"] = "\n\n".join(context).encode()
    return files


def _context(spec: SessionSpec) -> list[str]:
    """Return the user's context file, if it can be read. Raises AgentUnavailable."""
    try:
        content = users_file(spec, "GEMINI.md")
        return [] if content is None else [content.decode()]
    except (OSError, ValueError):
        return []


def _seed(spec: SessionSpec, session_id: str, folder: str) -> bytes:
    """The chat file of the session's history."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    tool_names = {tool.name: app_tool_name(tool.name) for tool in spec.app_tools}
    return chat_file(spec.seed.history, session_id, folder, [str(uuid.uuid4()) for _ in spec.seed.history], now, tool_names)


def _task_text(spec: TaskSpec) -> str:
    """The task; a newline before a leading `/` makes it text."""
    return spec.task if spec.options.get(SLASH_OPTION) == "on" else escape(spec.task, "\n")
