"""The acp driver: any agent that speaks the Agent Client Protocol over stdio, by its command line in the configuration.

The protocol's package takes half a second and 24 MB to import, so it is imported when the first such agent is opened: nothing
here may import `acp` or the modules over it at its top.
"""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivers.acp.settings import asked, offered
from drivers.contract.agent import Agent, Prompt
from drivers.contract.codec import Command, Launch
from drivers.contract.errors import AgentUnavailable, DriverError
from drivers.contract.info import DriverInfo, Option, Probe, ToolKind, ToolSpec
from drivers.contract.specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.cli_driver import PROBE_SECONDS, CliDriver
from drivers.runtime.process import Spawner

if TYPE_CHECKING:
    from drivers.acp.codec import AcpCodec
    from drivers.acp.handshake import Wanted

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
"""The protocol's kinds of tools: all that a client can know beforehand of the tools of any agent."""

OPTIONS = (
    Option("mode", "Mode", "One of the agent's modes; empty is its own default."),
    Option("model", "Model", "One of the agent's models, where it offers a choice; empty is its own default."),
    Option("config", "Config options", "Other settings that the agent offers, as ID=VALUE, with commas between them."),
    Option("auth_method", "Log-in", "The id of the agent's way to log in, tried once if it asks for one; empty is none."),
    Option(
        "task_permissions", "Permissions of a task", "Nobody is asked during a task: what it asks is rejected, or all allowed.",
        default="reject", choices=("reject", "allow"),
    ),
)  # fmt: skip

LINGER = 5.0
"""Seconds that a probe waits for an open session's slash commands; an agent that tells them does so at once."""


class AcpDriver(CliDriver):
    """A session is a process that is kept; a task is a session with one prompt."""

    name = "acp"
    tools_by_mcp = True

    def info(self) -> DriverInfo:
        schema = {"type": "object", "properties": {}, "additionalProperties": True}
        return DriverInfo(
            title="ACP agent",
            description="An agent that speaks the Agent Client Protocol over stdio.",
            program="acp-agent",
            tools=tuple(
                ToolSpec(kind, f"{meaning} Every tool of the agent of this kind.", schema, kind=kind)
                for kind, meaning in KINDS.items()
            ),
            options=OPTIONS,
            image_data=True,
            app_tools=True,
            mcp=frozenset({"stdio", "http", "sse"}),
            seeds=False,
            system=False,
            additional_directories=None,
            # The inputs are those of any CLI behind an adapter.
            path_fields=("file_path", "path", "notebook_path", "dir_path", "absolute_path"),
            # claude 2.1.329, codex 0.169.0.
            mcp_call_id_keys=("claudecode/toolUseId", "callId"),
        )

    async def probe(self, spec: AgentSpec, spawner: Spawner) -> Probe:
        await asyncio.to_thread(load)
        return await probe(self, SessionSpec(spec.program, spec.cwd, spec.env, spec.args, spec.options, spec.state), spawner)

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        if spec.history and spec.resume is None:
            raise AgentUnavailable("its own session is gone, and it cannot be given a history; start a new session")
        await asyncio.to_thread(load)
        return await super().open(spec, spawner, limits)

    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        await asyncio.to_thread(load)
        return await super().execute(spec, spawner, limits)

    def session(self, spec: SessionSpec) -> Launch:
        from drivers.acp.app_tools import by_title, past_proxies
        from drivers.acp.codec import AcpCodec
        from drivers.acp.permissions import Grants

        grants = Grants(spec.tools)
        wanted = self._wanted(spec, reads=grants.any_of(("read", "search", "edit")), writes=grants.any_of(("edit",)),
                              terminals=grants.any_of(("execute",)))  # fmt: skip
        directories = tuple(map(str, spec.additional_directories))
        wanted = replace(
            wanted, resume=spec.resume, tool_server=spec.tool_server, servers=spec.mcp_servers, directories=directories
        )
        profile = _profile(spec)._replace(app_tool=by_title(tool.name for tool in spec.app_tools))
        codec = AcpCodec(wanted, grants, profile)
        env = past_proxies(spec.env, spec.tool_server)
        command = Command((spec.program, *spec.args), spec.cwd, env)
        return Launch(command, codec, spec.tool_server, spec.additional_directories)

    def task(self, spec: TaskSpec) -> Launch:
        from drivers.acp.codec import AcpCodec
        from drivers.acp.permissions import Grants

        allowed = spec.options.get("task_permissions") == "allow"
        wanted = self._wanted(spec, reads=allowed, writes=allowed, terminals=allowed)
        wanted = replace(wanted, model=spec.model or wanted.model)
        codec = AcpCodec(wanted, Grants(everything=allowed), _profile(spec), Prompt(spec.task))
        return Launch(Command((spec.program, *spec.args), spec.cwd, spec.env), codec)

    def _wanted(self, spec: AgentSpec, *, reads: bool, writes: bool, terminals: bool) -> Wanted:
        from drivers.acp.handshake import Wanted

        options = spec.options
        return Wanted(
            cwd=str(spec.cwd.resolve()),
            mode=options.get("mode", ""),
            model=options.get("model", ""),
            settings=asked(options),
            auth_method=options.get("auth_method", ""),
            reads=reads,
            writes=writes,
            terminals=terminals,
        )


def load() -> None:
    """Import the protocol; slow the first time."""
    importlib.import_module("drivers.acp.codec")


async def probe(driver: CliDriver, spec: SessionSpec, spawner: Spawner) -> Probe:
    """Open a session and look at what the agent says of itself; the session is closed at once."""
    launch = driver.session(spec)
    codec: AcpCodec = launch.codec  # type: ignore[assignment]
    offer, limits = codec.offer, Limits(start=PROBE_SECONDS, grace=2.0)
    problem: str | None = None
    loop, opened = asyncio.get_running_loop(), False

    def lingers() -> None:
        nonlocal opened
        opened = True
        patience.reschedule(loop.time() + LINGER)

    codec.linger(lingers)
    try:
        async with asyncio.timeout(PROBE_SECONDS + 10) as patience:
            agent = await CliAgent.start(launch, spawner, limits)
            await agent.close()
    except (DriverError, TimeoutError) as error:
        # Once the session was open, it only did not answer a request that it does not know.
        problem = None if opened else str(error) or f"it was not ready {PROBE_SECONDS:g} s after its start"
    info = offer.agent.agent_info if offer.agent else None
    logged_in = None if offer.session_id is None and not offer.unauthenticated else not offer.unauthenticated
    version = info.version if info else None
    options = offered(offer.modes, offer.options)
    return Probe(version, problem, logged_in, offer.models, offer.images, offer.commands, offer.additional_directories, options)


def _profile(spec: AgentSpec) -> Any:
    from drivers.acp.profile import AgentProfile

    return AgentProfile(title=Path(spec.program).name)
