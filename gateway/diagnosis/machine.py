"""Checks of what Portico runs on: Python, the sandbox, containers, git, and variables of proxies."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.containers import working_version
from drivers.runtime.file_threads import ANSWER_SECONDS, bounded
from drivers.runtime.install_commands import install_command
from drivers.runtime.sandbox import landlock_version, unavailable
from gateway import __version__
from gateway.agents.configured_agents import Agents
from gateway.config import Runtime, Settings
from gateway.diagnosis.report import Check
from gateway.installation import FORMER_NAME, command_without_former_name
from gateway.worktrees.git import problem_of_version

PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
"""The variables that name a proxy for `http://` addresses."""
NOT_PROXIED = ("no_proxy", "NO_PROXY")
LOOPBACK = ("127.0.0.1", "127.0.0.0/8", "*")
"""Entries of NO_PROXY that keep requests for 127.0.0.1 from a proxy."""


def check_software() -> Check:
    python = f"Python {platform.python_version()}, {sys.executable}"
    text = f"{__version__}, {python}"
    if command := command_without_former_name():
        text += f"; replace the package `{FORMER_NAME}`, the former name of this one: on package indexes it is another project"
        return Check(name="Portico", status="warning", text=text, command=command)
    return Check(name="Portico", status="ok", text=text)


async def check_sandbox(settings: Settings | None) -> list[Check]:
    """A sandbox that an agent of the configuration needs and cannot have is a problem of the configuration."""
    problem = unavailable()
    if problem is not None:
        return [Check(name="Sandbox", status="info", text=f"not available: {problem}")]
    names = [name for name, agent in settings.agents.items() if agent.sandbox != "off"] if settings else []
    used = f"; used by {', '.join(names)}" if names else ""
    return [Check(name="Sandbox", status="ok", text=f"available (Landlock version {landlock_version()}){used}")]


async def check_containers(settings: Settings | None, environ: Mapping[str, str]) -> list[Check]:
    """Whether the programs that make the containers of the configuration's agents work, and their versions. Images are checked
    with the agents."""
    used = dict[Runtime, list[str]]()
    for name, agent in settings.agents.items() if settings else ():
        if agent.runtime is not None:
            used.setdefault(agent.runtime, []).append(name)
    return [await _check_runtime(runtime, ", ".join(names), environ) for runtime, names in sorted(used.items())]


async def _check_runtime(runtime: Runtime, agents: str, environ: Mapping[str, str]) -> Check:
    program = shutil.which(runtime, path=environ.get("PATH"))
    if program is None:
        text = f"{runtime} is not on PATH; used by {agents}"
        return Check(name="Containers", status="problem", text=text, command=install_command(runtime))
    try:
        version, problem = await working_version(runtime, program, environ)
    except (OSError, TimeoutError) as error:
        version, problem = "", str(error)
    if problem:
        return Check(name="Containers", status="problem", text=f"{program} does not work: {problem}; used by {agents}")
    return Check(name="Containers", status="ok", text=f"{version}, {program}; used by {agents}")


async def check_git(settings: Settings | None, environ: Mapping[str, str], clock: Clock = SYSTEM_CLOCK) -> list[Check]:
    """Whether git is there and new enough, if agents of the configuration have worktrees."""
    names = [name for name, agent in settings.agents.items() if agent.worktree] if settings else []
    if not names:
        return []
    used = f"used by {', '.join(names)} for worktrees"
    program = shutil.which("git", path=environ.get("PATH"))
    if program is None:
        text = f"git is not on PATH; {used}: no session of theirs can start"
        return [Check(name="Git", status="problem", text=text, command=install_command("git"))]
    argv = [program, "version"]
    try:
        # Two limits: that of the process ends it, and does not count while a file system blocks its start.
        version = await bounded(
            lambda: subprocess.run(
                argv, env=dict(environ), capture_output=True, text=True, timeout=ANSWER_SECONDS
            ).stdout.strip(),
            clock=clock,
        )
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired, TimeoutError) as error:
        reason = str(error) or f"it has not answered within {ANSWER_SECONDS:g} s"
        return [Check(name="Git", status="problem", text=f"{program} does not work: {reason}; {used}")]
    if problem := problem_of_version(version):
        return [Check(name="Git", status="problem", text=f"{program} {problem}; {used}", command=install_command("git"))]
    return [Check(name="Git", status="ok", text=f"{version}, {program}; {used}")]


async def check_proxies(environ: Mapping[str, str], agents: Agents | None, edit: str | None) -> list[Check]:
    """Whether programs would send requests for this machine to a proxy. `edit` is the command that edits the configuration.

    Names of variables only: the address of a proxy may contain a password.
    """
    if names := _catching(environ):
        direct = next((name for name in NOT_PROXIED if environ.get(name)), None)
        value = '"' + (f"${direct}," if direct else "") + '127.0.0.1,localhost"'
        text = (
            f"{', '.join(names)} is set, and NO_PROXY does not have 127.0.0.1: clients and agents send requests for this machine "
            "to the proxy"
        )
        return [Check(name="Proxy", status="problem", text=text, command=f"export NO_PROXY={value} no_proxy={value}")]
    for agent in agents or ():
        if names := _catching({**environ, **agent.settings.env}):
            where = f"agents.{agent.name}.env"
            text = f"{where} has {', '.join(names)}, and no NO_PROXY with 127.0.0.1: add it there"
            return [Check(name="Proxy", status="problem", text=text, command=edit)]
    used = any(environ.get(name) for name in PROXIES)
    return [Check(name="Proxy", status="ok", text="set, but not for this machine" if used else "none for this machine")]


def _catching(environ: Mapping[str, str]) -> list[str]:
    direct = next((environ[name] for name in NOT_PROXIED if environ.get(name)), "")
    if any(entry.strip() in LOOPBACK for entry in direct.split(",")):
        return []
    return [name for name in PROXIES if environ.get(name)]
