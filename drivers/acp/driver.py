"""The acp driver: runs any agent that speaks the Agent Client Protocol over stdio, by the command line in the configuration or in
the catalogue.

Nothing here imports `acp`, or a module that does, at the top: `import_protocol` does it when the first such agent is opened.
"""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drivers.acp.catalogue import CatalogueAgent
from drivers.acp.config_options import options_of, requested
from drivers.acp.questions import QUESTION_TOOL
from drivers.contract.agent import Agent, Prompt
from drivers.contract.agent_specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.contract.codec import Command, Launch
from drivers.contract.driver_info import (
    Capabilities,
    Display,
    DriverInfo,
    Login,
    Mcp,
    Option,
    Permissions,
    Probe,
    Program,
    ToolKind,
    ToolSpec,
)
from drivers.contract.errors import DriverError
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.cli_driver import PROBE_SECONDS, CliDriver
from drivers.runtime.process import Spawner

if TYPE_CHECKING:
    from drivers.acp.codec import AcpCodec
    from drivers.acp.handshake import SessionRequest

KINDS: dict[ToolKind, str] = {
    "read": "Reads files or data.",
    "edit": "Changes files or other content.",
    "delete": "Removes files or data.",
    "move": "Moves or renames files.",
    "search": "Searches for information.",
    "execute": "Runs commands or code.",
    "think": "Reasons or plans.",
    "fetch": "Gets data from outside.",
    "switch_mode": "Changes the session's mode.",
    "other": "Anything else.",
}
"""The protocol's ToolKinds: all that a client knows of the tools of an arbitrary agent."""

QUESTIONS = {"type": "object", "properties": {"questions": {"type": "array"}}, "required": ["questions"]}
"""The schema of the input of a question."""

OPTIONS = (
    Option("mode", "Mode", "One of the agent's modes; empty is its own default."),
    Option("model", "Model", "One of the agent's models, where it has several; empty is its own default."),
    Option(
        "config", "Config options", "Other config options of the agent, as ID=VALUE, with commas between them.", sets_others=True
    ),
    Option("auth_method", "Log-in", "The id of an authentication method, tried once if a login is required; empty is none."),
    Option(
        "task_permissions", "Permissions of a task",
        "No client is asked during a task: what the agent requests is rejected, or all allowed.",
        default="reject", choices=("reject", "allow"),
    ),
)  # fmt: skip

DRAIN_SECONDS = 5.0
"""Time limit of a probe, after its session is open, for the agent's slash commands, which come right after the response."""
LATE_COMMANDS = 0.5
"""Seconds that a probe gives an agent that has listed no slash commands by then: gemini 0.61.0 lists them by a timer of a
millisecond, before or after it answers the next request."""


class AcpDriver(CliDriver):
    """A session is one process for all its turns; a task is a session with one prompt.

    With an entry of the catalogue it is the driver of that agent, whose command line it knows.
    """

    name = "acp"
    tools_by_mcp = True

    def __init__(self, agent: CatalogueAgent | None = None) -> None:
        self._agent = agent
        self._costs = dict[str, float]()
        if agent is not None:
            self.name = agent.agent

    def info(self) -> DriverInfo:
        schema = {"type": "object", "properties": {}, "additionalProperties": True}
        agent = self._agent
        defaults = agent.options if agent else {}
        return DriverInfo(
            title=agent.title if agent else "ACP agent",
            description=agent.description if agent else "An agent that speaks the Agent Client Protocol over stdio.",
            program=Program(
                agent.program,
                agent.install,
                logins=(Login(f"{agent.agent}-login", agent.title, agent.login),) if agent.login else (),
                env=agent.variables,
                set_env=agent.env,
            )
            if agent
            else Program("acp-agent"),
            tools=(
                *(
                    ToolSpec(kind, f"{meaning} Every tool of the agent of this kind.", schema, kind=kind)
                    for kind, meaning in KINDS.items()
                ),
                ToolSpec(QUESTION_TOOL, "Asks the user questions; the answers are the call's result.", QUESTIONS, "Questions"),
            ),
            permissions=Permissions(question_tools=frozenset({QUESTION_TOOL})),
            options=tuple(replace(option, default=defaults.get(option.name, option.default)) for option in OPTIONS),
            capabilities=Capabilities(image_data=True, app_tools=True, additional_directories=None),
            # The call ids of claude 2.1.329 and codex 0.169.0.
            mcp=Mcp(frozenset({"stdio", "http", "sse"}), call_id_keys=("claudecode/toolUseId", "callId")),
            # The inputs are those of any CLI behind an adapter.
            display=Display(
                path_fields=(
                    "file_path",
                    "filePath",
                    "filepath",
                    "fileName",
                    "path",
                    "notebook_path",
                    "dir_path",
                    "absolute_path",
                )
            ),
        )

    async def probe(self, spec: AgentSpec, spawner: Spawner) -> Probe:
        await import_protocol()
        session = SessionSpec(spec.program, spec.cwd, spec.env, spec.args, spec.options, spec.state)
        probe = await probe_session(self, session, spawner)
        # The catalogue's defaults stay: without its mode an agent may run tools unasked. A value that a newer version does not
        # have is the probe's problem.
        defaults = dict(self._agent.options) if self._agent else {}
        modes = next((option.choices for option in probe.options if option.name == "mode"), ())
        if self._agent and self._agent.earlier_modes:
            names = (defaults["mode"], *self._agent.earlier_modes)
            defaults["mode"] = next((name for name in names if name in modes), names[0])
        options = (replace(option, default=defaults.get(option.name, option.default)) for option in probe.options)
        return replace(probe, options=tuple(options))

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        await import_protocol()
        return await super().open(spec, spawner, limits)

    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        await import_protocol()
        return await super().execute(spec, spawner, limits)

    def session(self, spec: SessionSpec) -> Launch:
        from drivers.acp.agent_profile import AgentProfile
        from drivers.acp.app_tool_calls import names_of
        from drivers.acp.catalogue_profiles import profile_of
        from drivers.acp.codec import AcpCodec
        from drivers.acp.mcp_servers import bypass_proxy
        from drivers.acp.permissions import Grants

        grants = Grants(spec.tools)
        request = replace(
            _session_request(spec, self._agent),
            resume=spec.seed.resume,
            read_files=self._declares("read", grants.lists_any(("read", "search", "edit"))),
            write_files=self._declares("write", grants.lists_any(("edit",))),
            terminals=self._declares("terminal", grants.lists_any(("execute",))),
            questions=True,
            tool_server=spec.tool_server,
            mcp_servers=spec.mcp_servers,
            additional_directories=tuple(map(str, spec.additional_directories)),
        )
        general = AgentProfile(Path(spec.program).name, app_tools=names_of([tool.name for tool in spec.app_tools]))
        profile = profile_of(self.name, general)
        command = Command(self._command_line(spec), spec.cwd, bypass_proxy(spec.env, spec.tool_server))
        codec = AcpCodec(request, grants, profile, costs=self._costs)
        return Launch(command, codec, spec.additional_directories)

    def home_files(self, spec: AgentSpec) -> tuple[Path, ...]:
        home = Path(spec.env.get("HOME", "~")).expanduser()
        name = Path(spec.program).name
        folders = {"XDG_CONFIG_HOME": ".config", "XDG_DATA_HOME": ".local/share", "XDG_STATE_HOME": ".local/state",
                   "XDG_CACHE_HOME": ".cache"}  # fmt: skip
        own = (home / folder for folder in (self._agent.folders if self._agent else ()))
        return (
            *own,
            home / f".{name}",
            *(Path(spec.env.get(variable) or home / usual) / name for variable, usual in folders.items()),
        )

    def task(self, spec: TaskSpec) -> Launch:
        from drivers.acp.agent_profile import AgentProfile
        from drivers.acp.catalogue_profiles import profile_of
        from drivers.acp.codec import AcpCodec
        from drivers.acp.permissions import Grants

        allow = spec.options.get("task_permissions") == "allow"
        request = _session_request(spec, self._agent)
        request = replace(
            request,
            model=spec.model or request.model,
            read_files=self._declares("read", allow),
            write_files=self._declares("write", allow),
            terminals=self._declares("terminal", allow),
        )
        profile = profile_of(self.name, AgentProfile(Path(spec.program).name))
        codec = AcpCodec(request, Grants(allow_all=allow), profile, Prompt(spec.task))
        return Launch(Command(self._command_line(spec), spec.cwd, spec.env), codec)

    def _declares(self, method: str, permitted: bool) -> bool:
        """Whether these methods of the client are declared to the agent: by default if the session permits their kind of tool."""
        if self._agent is None or self._agent.client_methods is None:
            return permitted
        return method in self._agent.client_methods

    def _command_line(self, spec: AgentSpec) -> tuple[str, ...]:
        """The program and its arguments, with those of the catalogue."""
        return (spec.program, *(self._agent.args if self._agent else ()), *spec.args)


def _session_request(spec: AgentSpec, agent: CatalogueAgent | None) -> SessionRequest:
    """What the options set of a session, and how to log in."""
    from drivers.acp.handshake import SessionRequest

    mode = spec.options.get("mode", "")
    return SessionRequest(
        cwd=str(spec.cwd),
        mode=mode,
        earlier_modes=agent.earlier_modes if agent and mode == agent.options.get("mode") else (),
        model=spec.options.get("model", ""),
        config_options=requested(spec.options),
        auth_method=spec.options.get("auth_method", ""),
        login_hint=f"use {agent.key}" if agent and agent.key else "",
    )


async def import_protocol() -> None:
    """Import the codec and the protocol's package, in a thread: the first time takes 0.5 s."""
    await asyncio.to_thread(importlib.import_module, "drivers.acp.codec")


async def probe_session(driver: CliDriver, spec: SessionSpec, spawner: Spawner) -> Probe:
    """Open a session of a driver whose codec is an AcpCodec, read what the agent reports, and close the session.

    Returns a Probe with the `problem` if the session cannot be opened; raises nothing for it.
    """
    launch = driver.session(spec)
    codec: AcpCodec = launch.codec  # type: ignore[assignment]
    session, limits = codec.session, Limits(start=PROBE_SECONDS, grace=2.0)
    problem: str | None = None
    is_open = False

    def opened() -> None:
        nonlocal is_open
        is_open = True
        timeout.reschedule(spawner.clock.monotonic() + DRAIN_SECONDS)

    codec.drain(opened)
    try:
        async with spawner.clock.timeout(PROBE_SECONDS + 10) as timeout:
            agent = await CliAgent.start(launch, spawner, limits)
            try:
                if not session.commands:
                    await spawner.clock.sleep(LATE_COMMANDS)
            finally:
                await agent.close()
    except (DriverError, TimeoutError) as error:
        # An agent whose session was open has only failed to respond to the unknown request that `drain` sends.
        problem = None if is_open else str(error) or f"it was not ready {PROBE_SECONDS:g} s after its start"
    info = session.agent.agent_info if session.agent else None
    return Probe(
        version=info.version if info else None,
        problem=problem,
        logged_in=None if session.id is None and not session.login_required else not session.login_required,
        models=session.models,
        images=session.images,
        commands=session.commands,
        additional_directories=session.additional_directories,
        options=options_of(session.modes, session.config_options),
    )
