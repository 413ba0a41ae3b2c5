"""The diagnosis as a whole: all checks in order, each in bounded time, and without secrets in their texts."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.file_threads import ANSWER_SECONDS, bounded
from gateway import __version__
from gateway.agents.configured_agents import Agents
from gateway.config import Settings, load
from gateway.diagnosis.agents import (
    AgentSource,
    DaemonAgents,
    DaemonError,
    RunningAgents,
    check_any_agent,
    own_agents,
    report_agents,
)
from gateway.diagnosis.daemon import Address, Holder, check_daemon
from gateway.diagnosis.data_folder import KEY_FILE, check_data_folder, check_disk, check_key, check_store_password, existing_keys
from gateway.diagnosis.machine import check_containers, check_git, check_proxies, check_sandbox, check_software
from gateway.diagnosis.nodes import check_nodes
from gateway.diagnosis.report import AgentReport, Check, Report
from gateway.errors import ConfigError
from gateway.observability.health import DRAINED
from gateway.private_files import TEMPORARY
from gateway.security.redaction import Redactor, redact_patterns

if TYPE_CHECKING:
    from gateway.gateway import Gateway

OPEN_FILE = "${VISUAL:-${EDITOR:-vi}} {}"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is diagnosed.

    `file` is the configuration file, None without one. `load` reads the settings. `data_dir` is the data directory that options
    or the environment name; None where only the settings can. `portico` is the shell command of Portico, with `{}` for a
    subcommand. With `tried` each agent that is offered runs a short task.
    """

    file: Path | None
    load: Callable[[], Settings]
    data_dir: Path | None
    environ: Mapping[str, str]
    portico: str
    tried: bool = False
    clock: Clock = SYSTEM_CLOCK


async def diagnose(subject: Subject) -> Report:
    """Run all checks. Raises nothing for what they find."""
    redactor, clock = Redactor(), subject.clock
    async with AsyncExitStack() as stack:
        settings, agents, configuration = await _configuration(subject, stack)
        for agent in agents[0] if agents else ():
            redactor.register(agent.secrets)
        checks = [await asyncio.to_thread(check_software), configuration]
        address = None
        if settings is not None:
            redactor.register(settings.auth.keys)
            asked = asyncio.create_task(check_daemon(settings, subject.portico, clock))
            key = _check_key(settings, subject.environ, subject.portico, clock)
            checks += await asyncio.gather(*_checks_of_folder(settings.data_dir, subject.portico, clock), key)
            checks += await _check_store_password(settings, clock)
            daemon = await asked
            checks += daemon.checks
            address = daemon.address
            if nodes := await check_nodes(settings, subject.environ, clock=clock):
                checks.append(nodes)
        elif subject.data_dir is not None:
            checks += await asyncio.gather(*_checks_of_folder(subject.data_dir, subject.portico, clock))
        checks += [check_sandbox(settings), *await check_containers(settings, subject.environ)]
        checks += await check_git(settings, subject.environ, clock)
        checks += [check_proxies(subject.environ, agents[0] if agents else None, _edit(subject.file))]
        found: list[AgentReport] = []
        if settings is not None:
            address, found = await _agents(subject, settings, agents, address, checks, redactor)
    report = Report(version=__version__, daemon=address.url if address else None, checks=checks, agents=found)
    return _without_secrets(report, redactor)


async def diagnose_running(gateway: Gateway, environ: Mapping[str, str], portico: str, *, tried: bool = False) -> Report:
    """Run the checks of the daemon that this process is, but for those of its port. Raises nothing for what they find.

    `portico` and `tried` are as in `Subject`.
    """
    settings, clock = gateway.settings, gateway.clock
    checks = [await asyncio.to_thread(check_software), await _configuration_of_daemon(settings, clock)]
    key = _check_key(settings, environ, portico, clock)
    checks += await asyncio.gather(*_checks_of_folder(settings.data_dir, portico, clock), key)
    checks += await _check_store_password(settings, clock)
    checks.append(await _running(gateway, portico))
    if nodes := await check_nodes(settings, environ, gateway.store, clock):
        checks.append(nodes)
    checks += [check_sandbox(settings), *await check_containers(settings, environ), *await check_git(settings, environ, clock)]
    checks.append(check_proxies(environ, gateway.agents, _edit(settings.file)))
    found = await report_agents(RunningAgents(gateway), tried, portico, _edit(settings.file), clock)
    if problem := check_any_agent(found):
        checks.append(problem)
    report = Report(version=__version__, daemon=None, checks=checks, agents=found)
    return _without_secrets(report, gateway.redactor)


async def _configuration_of_daemon(settings: Settings, clock: Clock) -> Check:
    """Whether the configuration file can be used, and is as the daemon has read it."""
    name, file, command = "Configuration", settings.file, _edit(settings.file)
    if file is None:
        return Check(name=name, status="ok", text="none; all settings have their defaults")
    try:
        now = await bounded(lambda: load(file), clock=clock)
    except (ConfigError, OSError, TimeoutError) as error:
        text = f"{str(error) or f'{file} cannot be read: the file system does not answer'}; the daemon runs with what it has read"
        return Check(name=name, status="problem", text=text, command=command)
    # Options of the command line replace them.
    given = {name: getattr(settings.server, name) for name in ("host", "port", "data_dir")}
    if now.model_copy(update={"server": now.server.model_copy(update=given)}) != settings:
        text = f"{file} has changed since the daemon has read it; restart the daemon"
        return Check(name=name, status="warning", text=text, command=command)
    return Check(name=name, status="ok", text=str(file))


async def _running(gateway: Gateway, portico: str) -> Check:
    running = f"running, version {__version__}, process {os.getpid()}"
    reasons = await gateway.problems()
    if reasons == [DRAINED]:
        # Without a command: a restart would end the drain.
        return Check(name="Daemon", status="warning", text=f"{running}; {DRAINED}")
    if reasons:
        restart = Holder(os.getpid()).restart(portico.format("serve"))
        text = f"{running}; it cannot take work: {'; '.join(reasons)}"
        return Check(name="Daemon", status="problem", text=text, command=restart)
    return Check(name="Daemon", status="ok", text=running)


async def _configuration(subject: Subject, stack: AsyncExitStack) -> tuple[Settings | None, tuple[Agents, Path] | None, Check]:
    """Return the settings, the agents with a temporary folder that they work in, and the check of the configuration."""
    name, command = "Configuration", _edit(subject.file)
    try:
        settings = await bounded(subject.load, clock=subject.clock)
    except ConfigError as error:
        return None, None, Check(name=name, status="problem", text=str(error), command=command)
    except (OSError, TimeoutError) as error:
        text = f"{subject.file} cannot be read: {str(error) or 'the file system does not answer'}"
        return None, None, Check(name=name, status="problem", text=text, command=command)
    try:
        # Not in that of the system, where other programs write.
        own = settings.data_dir / TEMPORARY
        folder = own if await bounded(lambda: os.access(own, os.W_OK), clock=subject.clock) else None
        temporary = stack.enter_context(TemporaryDirectory(prefix="portico-doctor-", dir=folder, ignore_cleanup_errors=True))
    except (OSError, TimeoutError) as error:
        text = f"no temporary file can be written: {str(error) or 'the file system does not answer'}"
        return settings, None, Check(name=name, status="problem", text=text, command="df -h /tmp")
    try:
        # The folders of agents are real paths.
        folder = await bounded(Path(temporary).resolve, clock=subject.clock)
        agents = Agents(settings, subject.environ, folder / "work")
    except (ConfigError, TimeoutError) as error:
        return settings, None, Check(name=name, status="problem", text=str(error), command=command)
    text = str(subject.file) if subject.file else "none; all settings have their defaults"
    return settings, (agents, folder), Check(name=name, status="ok", text=text)


def _checks_of_folder(folder: Path, portico: str, clock: Clock) -> list[asyncio.Task[Check]]:
    return [
        asyncio.create_task(_answered("Data folder", lambda: check_data_folder(folder, portico), folder, clock)),
        asyncio.create_task(_answered("Disk", lambda: check_disk(folder), folder, clock)),
    ]


async def _check_store_password(settings: Settings, clock: Clock) -> list[Check]:
    """The check of a password in the configuration file, if that has one."""
    file = settings.file
    if file is None or not settings.store.url:
        return []
    # Not imported for the default store.
    from gateway.store.backend import url_secrets

    try:
        secrets = url_secrets(settings.store.url)
    except ConfigError:
        return []
    return [await _answered("Store password", lambda: check_store_password(file), file, clock)] if secrets else []


async def _check_key(settings: Settings, environ: Mapping[str, str], portico: str, clock: Clock) -> Check:
    return await _answered("Key", lambda: check_key(settings, environ, portico), settings.data_dir, clock)


async def _answered(name: str, check: Callable[[], Check], folder: Path, clock: Clock) -> Check:
    """The check, or the problem that the file system fails or does not answer."""
    look = f"ls -ld {shlex.quote(str(folder))}"
    try:
        return await bounded(check, clock=clock)
    except TimeoutError:
        text = f"{folder} does not answer within {ANSWER_SECONDS:g} s"
        return Check(name=name, status="problem", text=text, command=look)
    except OSError as error:
        text = f"{error.filename or folder} cannot be read ({error.strerror})"
        return Check(name=name, status="problem", text=text, command=look)
    except UnicodeDecodeError:
        text = f"{folder / KEY_FILE} is not a text; the key must be made anew"
        return Check(name=name, status="problem", text=text, command=f"rm {shlex.quote(str(folder / KEY_FILE))}")


async def _agents(
    subject: Subject,
    settings: Settings,
    agents: tuple[Agents, Path] | None,
    address: Address | None,
    checks: list[Check],
    redactor: Redactor,
) -> tuple[Address | None, list[AgentReport]]:
    """Report the agents by the daemon, or by this process where it does not answer. Return the address that has answered."""
    if address is not None:
        try:
            keys = await bounded(lambda: existing_keys(settings, subject.environ), clock=subject.clock)
            redactor.register(keys)
            source = DaemonAgents(address, keys[0] if keys else None, subject.clock)
            return address, await _reported(source, subject, checks)
        except (DaemonError, OSError, UnicodeDecodeError) as error:
            text = f"the daemon is not asked about agents: {error}; this process probes them"
            restart = subject.portico.format("serve")
            checks.append(Check(name="Agents", status="warning", text=text, command=restart))
    if agents is None:
        return None, []
    async with _own(settings, agents, redactor, subject.clock) as own:
        return None, await _reported(own, subject, checks)


@asynccontextmanager
async def _own(settings: Settings, agents: tuple[Agents, Path], redactor: Redactor, clock: Clock) -> AsyncIterator[AgentSource]:
    async with own_agents(settings, *agents, redactor, clock) as own:
        yield own


async def _reported(source: AgentSource, subject: Subject, checks: list[Check]) -> list[AgentReport]:
    found = await report_agents(source, subject.tried, subject.portico, _edit(subject.file), subject.clock)
    if problem := check_any_agent(found):
        checks.append(problem)
    return found


def _edit(file: Path | None) -> str | None:
    return OPEN_FILE.replace("{}", shlex.quote(str(file)), 1) if file else None


def _without_secrets(report: Report, redactor: Redactor) -> Report:
    """Redact registered values, and what looks like a secret: a program's error may have one."""

    def clean(value: object) -> object:
        if isinstance(value, str):
            return redact_patterns(redactor.clean(value))
        if isinstance(value, dict):
            return {name: clean(item) for name, item in value.items()}
        return [clean(item) for item in value] if isinstance(value, list) else value

    return Report.model_validate(clean(report.model_dump()))
