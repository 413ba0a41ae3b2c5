"""`portico service`: the daemon as a service of the user, by systemd on Linux and by launchd on macOS."""

from __future__ import annotations

import http.client
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import click

from gateway import __version__
from gateway.agents.configured_agents import Agents
from gateway.agents.environment import process_environment
from gateway.cli.launchd import Launchd
from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings
from gateway.cli.output import say
from gateway.cli.own_program import own_program
from gateway.cli.service_definition import ServiceDefinition, service_environment
from gateway.cli.systemd import Systemd
from gateway.config import Settings, setting_variables
from gateway.diagnosis.daemon import Address, daemon_address, daemon_version
from gateway.errors import ConfigError

STOP_SECONDS = 10.0
"""Seconds after `limits.grace` within which the daemon exits in any case (gateway/server/daemon.py, which this does not import:
it takes long)."""
ANSWER_TIMEOUT = 3.0
"""Seconds for the answer of a daemon that runs."""
READY_TIMEOUT = 30.0
READY_STEP = 0.1
"""Seconds for a daemon that launchd has started to answer, and between two attempts. systemd waits itself."""


@click.group()
def service() -> None:
    """Run the daemon as a service of the user: systemd on Linux, launchd on macOS."""


@service.command()
@CONFIG
@DATA_DIR
@click.option("--print", "only_print", is_flag=True, help="Print the file that would be written, and change nothing.")
def install(config: Path | None, data_dir: Path | None, only_print: bool) -> None:
    """Write the service, start it now, and at each login. A service that is installed is replaced and started again.

    It gets the PATH of this shell, so that the daemon finds the agents' programs: install it again where that has changed.
    """
    with config_errors():
        manager = _manager()
        settings = load_settings(config, data_dir)
        definition = _definition(settings, config, data_dir)
        content = manager.content(definition)
        if only_print:
            say(f"would write {manager.file}:", err=True)
            say(content, nl=False)
            return
        manager.require()
        if manager.file.exists() and not manager.is_own():
            raise ConfigError(f"{manager.file} is not from `portico service install`; move it away to install the service")
        manager.install(content)
        say(f"wrote {manager.file}")
        if not _wait_until_ready(manager, settings):
            raise ConfigError("the service is installed, but does not answer yet; `portico service status` says why")
        say(f"Portico {__version__} runs on {manager.state().address or _configured_address(settings)}")
        for hint in (manager.hint(), _missing_variables(settings, manager, os.environ)):
            if hint:
                say(hint)


@service.command()
def status() -> None:
    """Print whether the service is installed and runs, its version and address, or why it does not run (exit code 1)."""
    with config_errors():
        manager = _installed()
        state = manager.state()
        say(f"installed   {manager.file}" + ("" if state.at_login else " (is not started at login)"))
        if not state.running:
            say(f"running     no: {state.reason}")
            if lines := manager.last_lines():
                say("its log ends with:\n" + "\n".join(f"  {line}" for line in lines.splitlines()))
            sys.exit(1)
        say(f"running     yes, process {state.pid}")
        installed = manager.installed()
        settings = load_settings(installed.option("--config"), installed.option("--data-dir"))
        url = state.address or _configured_address(settings)
        version = _version_at(url)
        say(f"address     {url}" + ("" if version else " (does not answer)"))
        if version:
            newer = "" if version == __version__ else f"; this command is {__version__}: `portico service install` starts that"
            say(f"version     {version}{newer}")
        for line in _programs_not_found(settings, installed, os.environ):
            say(f"problem     {line}")
        if version is None:
            sys.exit(1)


@service.command()
@click.option("--follow", "-f", is_flag=True, help="Print new lines as they are written, until Ctrl-C.")
@click.option("--lines", "-n", type=click.IntRange(1), default=100, show_default=True, help="How many lines.")
def logs(follow: bool, lines: int) -> None:
    """Print the log of the service."""
    with config_errors():
        command = _installed().log_command(lines, follow)
        sys.stdout.flush()
        try:
            os.execvp(command[0], command)
        except OSError as error:
            raise ConfigError(f"{command[0]} cannot be called: {error.strerror}") from None


@service.command()
def uninstall() -> None:
    """Stop the service, and remove it. The configuration and the data directory stay."""
    with config_errors():
        manager = _installed()
        if not manager.is_own():
            raise ConfigError(f"{manager.file} is not from `portico service install`: it is left as it is")
        manager.uninstall()
        say(f"removed {manager.file}; the configuration and the data directory are left as they are")


def _manager() -> Systemd | Launchd:
    if sys.platform == "darwin":
        return Launchd(Path.home())
    if sys.platform == "linux":
        return Systemd(Path.home())
    raise ConfigError(f"there is no service for this system ({sys.platform}): start `portico serve` yourself")


def _installed() -> Systemd | Launchd:
    """Return the manager of the service. Raises ConfigError if this system has no manager, or the service is not installed."""
    manager = _manager()
    manager.require()
    if not manager.file.exists():
        raise ConfigError(f"the service is not installed ({manager.file} does not exist); `portico service install` installs it")
    return manager


def _definition(settings: Settings, config: Path | None, data_dir: Path | None) -> ServiceDefinition:
    # The service does not get the variables of this shell.
    config = config or (Path(given) if (given := os.environ.get("PORTICO_CONFIG")) else None)
    data_dir = data_dir or (Path(given) if (given := os.environ.get("PORTICO_DATA_DIR")) else None)
    options = (("--config", config), ("--data-dir", data_dir))
    arguments = [text for name, path in options if path is not None for text in (name, str(path.expanduser().absolute()))]
    seconds = math.ceil(settings.limits.grace + STOP_SECONDS)
    return ServiceDefinition((own_program(), "serve", *arguments), service_environment(os.environ), seconds)


def _wait_until_ready(manager: Systemd | Launchd, settings: Settings) -> bool:
    """Wait until the daemon answers. Return whether it does."""
    deadline = time.monotonic() + READY_TIMEOUT
    while True:
        state = manager.state()
        url = state.address or _configured_address(settings)
        if state.running and (url is None or _version_at(url) is not None):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(READY_STEP)


def _configured_address(settings: Settings) -> str | None:
    """Return the URL by the settings; None if the system chooses the port."""
    return daemon_address(settings).url if settings.server.port else None


def _version_at(url: str | None) -> str | None:
    """Return the version of the daemon at this address; None if none answers."""
    parts = urlsplit(url or "")
    if not parts.hostname or not parts.port:
        return None
    try:
        return daemon_version(Address(parts.hostname, parts.port).request("GET", "/healthz", seconds=ANSWER_TIMEOUT))
    except (OSError, http.client.HTTPException):
        return None


def _missing_variables(settings: Settings, manager: Systemd | Launchd, environ: Mapping[str, str]) -> str | None:
    """Return which variables of this shell agents would get by a daemon that is started in it, and not by the service."""
    known = manager.variables()
    given = environ.keys() & {"PORTICO_API_KEY", "PORTICO_ENCRYPTION_KEY", "PORTICO_NODE_KEYS"}
    # The folder is an option of the service.
    given |= {name for name, path in setting_variables(environ).items() if path != ("server", "data_dir")}
    for agent in Agents(settings):
        given |= process_environment(environ, agent.info.program.env, {}).keys() - process_environment(environ, (), {}).keys()
    given |= {name for name in environ if name.upper().endswith("_PROXY") or name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")}
    if not (missing := sorted(given - known)):
        return None
    return (
        f"The service does not have these variables of this shell: {', '.join(missing)}. Put what an agent needs in "
        f"[agents.NAME.env] of the configuration, or: {manager.edit}"
    )


def _programs_not_found(settings: Settings, installed: ServiceDefinition, environ: Mapping[str, str]) -> list[str]:
    """Return the agents whose programs this shell finds, and the service does not."""
    here, there = (variables.get("PATH", os.defpath) for variables in (environ, installed.environment))
    programs = ((agent.name, agent.settings.program or agent.info.program.name or "") for agent in Agents(settings))
    found = (name for name, program in programs if shutil.which(program, path=here) and not shutil.which(program, path=there))
    return [f"the service does not find the program of {name}: run `portico service install` in this shell" for name in found]
