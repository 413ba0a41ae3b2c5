"""The diagnosis as a whole: all checks in order, each in bounded time, and without secrets in their texts."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.file_threads import ANSWER_SECONDS, bounded
from gateway import __version__
from gateway.agents.configured_agents import Agents
from gateway.agents.driver_states import driver_states
from gateway.app import Gateway
from gateway.config import Settings, load, setting_variables
from gateway.diagnosis.agents import (
    DaemonError,
    States,
    Task,
    check_any_agent,
    own_agents,
    report_agents,
    states_of_daemon,
    task_of_daemon,
    task_of_gateway,
)
from gateway.diagnosis.daemon import Address, DaemonReport, Holder, check_daemon
from gateway.diagnosis.data_folder import KEY_FILE, check_data_folder, check_disk, check_key, check_store_password, existing_keys
from gateway.diagnosis.machine import check_containers, check_git, check_proxies, check_sandbox, check_software
from gateway.diagnosis.nodes import check_nodes
from gateway.diagnosis.report import AgentReport, Check, Report
from gateway.errors import ConfigError
from gateway.observability.health import DRAINED
from gateway.private_files import TEMPORARY
from gateway.security.redaction import Redactor, redact_patterns
from gateway.store import Store
from gateway.store.urls import url_secrets

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
    redactor = Redactor()
    async with AsyncExitStack() as stack:
        settings, agents, configuration = await _configuration(subject, stack)
        for agent in agents[0] if agents else ():
            redactor.register(agent.secrets)
        redactor.register(settings.auth.keys if settings else ())
        daemon = asyncio.create_task(check_daemon(settings, subject.portico, subject.clock))
        checks = await _checked(subject, configuration, settings, agents[0] if agents else None, _checks_of(daemon))
        address, found = (await daemon).address, list[AgentReport]()
        if settings is not None:
            address, found = await _agents(subject, settings, agents, address, checks, redactor)
    report = Report(version=__version__, daemon=address.url if address else None, checks=checks, agents=found)
    return _without_secrets(report, redactor)


async def diagnose_running(gateway: Gateway, environ: Mapping[str, str], portico: str, *, tried: bool = False) -> Report:
    """Run the checks of the daemon that this process is, but for those of its port. Raises nothing for what they find.

    `portico` and `tried` are as in `Subject`.
    """
    settings, agents = gateway.settings, gateway.agents
    subject = Subject(settings.file, lambda: settings, None, environ, portico, tried, gateway.clock)
    configuration = await _configuration_of_daemon(settings, gateway.clock)
    checks = await _checked(subject, configuration, settings, agents, _running(gateway, portico), gateway.store)
    states = partial(driver_states, agents, gateway.discovery, gateway.redactor)
    found = await _reported(states, partial(task_of_gateway, gateway), subject, checks)
    report = Report(version=__version__, daemon=None, checks=checks, agents=found)
    return _without_secrets(report, gateway.redactor)


async def _checked(
    subject: Subject,
    configuration: Check,
    settings: Settings | None,
    agents: Agents | None,
    daemon: Awaitable[list[Check]],
    store: Store | None = None,
) -> list[Check]:
    """Run the checks at the same time, and return what they find, in this order. A given store stays open."""
    environ, portico, clock = subject.environ, subject.portico, subject.clock
    folder = settings.data_dir if settings is not None else subject.data_dir
    checks: list[Awaitable[list[Check]]] = []
    if folder is not None:
        checks += [
            _answered("Data folder", partial(check_data_folder, folder, portico), folder, clock),
            _answered("Disk", partial(check_disk, folder), folder, clock),
        ]
    if settings is not None:
        checks.append(_answered("Key", partial(check_key, settings, environ, portico), settings.data_dir, clock))
    if settings is not None and settings.file is not None and _has_password(settings):
        checks.append(_answered("Store password", partial(check_store_password, settings.file), settings.file, clock))
    checks.append(daemon)
    if settings is not None and settings.node.address:
        checks.append(check_nodes(settings, environ, store, clock))
    checks += [
        check_sandbox(settings),
        check_containers(settings, environ),
        check_git(settings, environ, clock),
        check_proxies(environ, agents, _edit(subject.file)),
    ]
    found = await asyncio.gather(*checks)
    return [await asyncio.to_thread(check_software), configuration, *chain.from_iterable(found)]


async def _checks_of(daemon: Awaitable[DaemonReport]) -> list[Check]:
    return (await daemon).checks


async def _configuration_of_daemon(settings: Settings, clock: Clock) -> Check:
    """Whether the configuration file can be used, and is as the daemon has read it."""
    name, file, command = "Configuration", settings.file, _edit(settings.file)
    if file is None:
        return Check(name=name, status="ok", text=_without_file(os.environ))
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


async def _running(gateway: Gateway, portico: str) -> list[Check]:
    running = f"running, version {__version__}, process {os.getpid()}"
    reasons = await gateway.problems()
    if reasons == [DRAINED]:
        # Without a command: a restart would end the drain.
        return [Check(name="Daemon", status="warning", text=f"{running}; {DRAINED}")]
    if reasons:
        restart = Holder(os.getpid()).restart(portico.format("serve"))
        text = f"{running}; it cannot take work: {'; '.join(reasons)}"
        return [Check(name="Daemon", status="problem", text=text, command=restart)]
    return [Check(name="Daemon", status="ok", text=running)]


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
    text = str(subject.file) if subject.file else _without_file(subject.environ)
    return settings, (agents, folder), Check(name=name, status="ok", text=text)


def _without_file(environ: Mapping[str, str]) -> str:
    given = ", ".join(setting_variables(environ))
    return f"no file; the environment has {given}" if given else "none; all settings have their defaults"


def _has_password(settings: Settings) -> bool:
    try:
        return bool(url_secrets(settings.store.url))
    except ConfigError:
        return False


async def _answered(name: str, check: Callable[[], Check], folder: Path, clock: Clock) -> list[Check]:
    """Return what a check finds, or the problem that the file system fails or does not answer."""
    look = f"ls -ld {shlex.quote(str(folder))}"
    try:
        return [await bounded(check, clock=clock)]
    except TimeoutError:
        text = f"{folder} does not answer within {ANSWER_SECONDS:g} s"
        return [Check(name=name, status="problem", text=text, command=look)]
    except OSError as error:
        text = f"{error.filename or folder} cannot be read ({error.strerror})"
        return [Check(name=name, status="problem", text=text, command=look)]
    except UnicodeDecodeError:
        text = f"{folder / KEY_FILE} is not a text; the key must be made anew"
        return [Check(name=name, status="problem", text=text, command=f"rm {shlex.quote(str(folder / KEY_FILE))}")]


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
            asked = address, keys[0] if keys else None, subject.clock
            return address, await _reported(partial(states_of_daemon, *asked), partial(task_of_daemon, *asked), subject, checks)
        except (DaemonError, OSError, UnicodeDecodeError) as error:
            text = f"the daemon is not asked about agents: {error}; this process probes them"
            restart = subject.portico.format("serve")
            checks.append(Check(name="Agents", status="warning", text=text, command=restart))
    if agents is None:
        return None, []
    async with own_agents(settings, *agents, redactor, subject.clock) as (states, task):
        return None, await _reported(states, task, subject, checks)


async def _reported(states: States, task: Task, subject: Subject, checks: list[Check]) -> list[AgentReport]:
    task_if_tried = task if subject.tried else None
    found = await report_agents(states, task_if_tried, subject.portico, _edit(subject.file), subject.clock)
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
