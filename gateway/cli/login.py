"""A login with an agent's program in a terminal, for `portico acp AGENT --login`: this process becomes the program."""

from __future__ import annotations

import os

from gateway.agents.configured_agents import Agents
from gateway.cli.acp import host_of
from gateway.config import Settings
from gateway.errors import ConfigError, GatewayError
from gateway.security.loopback import is_loopback


def run_login(settings: Settings, name: str, method: str, daemon: str | None) -> None:
    """Replace this process by the agent's program, with the arguments of a login method. An empty one is the usual method.

    `daemon` is the address of the daemon that the agent belongs to, None for a gateway in this process.
    Raises ConfigError if the agent or the method is unknown, its program is not found, or the daemon is on another machine.
    """
    if daemon is not None and not is_loopback(host_of(daemon)):
        raise ConfigError(f"the daemon at {daemon} is on another machine; log in there")
    try:
        agent = Agents(settings).get(name)
        program = agent.program()
    except GatewayError as error:
        raise ConfigError(str(error)) from None
    logins = {login.id: login for login in agent.info.program.logins}
    if not logins:
        raise ConfigError(f"agent {name!r} has no login that can be started; log in with its own program")
    if method and method not in logins:
        raise ConfigError(f"--login {method!r}: agent {name!r} has no such method; choose one of {', '.join(logins)}")
    if agent.settings.container.image is not None:
        raise ConfigError(f"agent {name!r} runs in a container; log in there: {agent.login_command()}")
    chosen = logins[method or next(iter(logins))]
    os.execve(program, [program, *chosen.arguments], agent.environment)
