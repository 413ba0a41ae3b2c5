"""The daemon as a user unit of systemd: systemd.service(5), systemd.exec(5), systemd.kill(5), systemctl(1)."""

from __future__ import annotations

import getpass
import re
import shutil
from pathlib import Path

from gateway.cli.file_replacement import replace_file
from gateway.cli.options import INVALID_SETTINGS
from gateway.cli.service_definition import CALL_TIMEOUT, ServiceDefinition, ServiceState, run, succeed
from gateway.errors import ConfigError

UNIT = "portico.service"
FIRST_LINE = "# Written by `portico service install`, which replaces it. For changes of your own: systemctl --user edit portico\n"
START_TIMEOUT = 600.0
"""Seconds for a start. It recovers what a daemon that was killed has left."""
RESTART_SECONDS = 5
PROPERTIES = ("ActiveState", "SubState", "MainPID", "Result", "ExecMainCode", "ExecMainStatus", "StatusText", "UnitFileState")
SYSTEMCTL = ("systemctl", "--user")

_TEMPLATE = f"""{FIRST_LINE}
[Unit]
Description=Portico, a local gateway for agent CLIs
# A start that fails is tried again for as long as the unit is not stopped, but not with wrong settings.
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=%(command)s
%(environment)s
Restart=on-failure
RestartSec={RESTART_SECONDS}
RestartPreventExitStatus={INVALID_SETTINGS}
TimeoutStartSec={START_TIMEOUT:.0f}
TimeoutStopSec=%(stop)d
# SIGTERM goes to the daemon alone: it ends its agents in order, and stores how their turns ended. What is left then is killed.
KillMode=mixed
# A command of an agent that runs out of memory does not end the daemon and the other agents.
OOMPolicy=continue
# Clients and agents are file descriptors. Agents may raise the limit of core dumps, which could contain keys.
LimitNOFILE=65536:infinity
LimitCORE=0:infinity
# Neither NoNewPrivileges=, nor what implies it or a user namespace for units of users (Protect*=, Private*=, Restrict*=,
# SystemCallFilter=): agents use sudo, containers and sandboxes of their own. The option `sandbox` of an agent confines it.

[Install]
WantedBy=default.target
"""


class Systemd:
    """The user's instance of systemd."""

    edit = f"systemctl --user edit {UNIT.partition('.')[0]}"

    def __init__(self, home: Path) -> None:
        self.file = home / ".config/systemd/user" / UNIT
        self._linger = Path("/var/lib/systemd/linger")

    def content(self, definition: ServiceDefinition) -> str:
        """Return the unit. Raises ConfigError for a command that a unit cannot have."""
        program, *arguments = definition.command
        if set(program) & set("'\"\\"):
            raise ConfigError(f"systemd starts no program whose path has quotes or backslashes: {program}")
        # systemd expands `$` in arguments, but neither in the program nor in Environment=.
        words = [_quoted(program), *(_quoted(argument).replace("$", "$$") for argument in arguments)]
        variables = (f"Environment={_quoted(f'{name}={value}')}" for name, value in definition.environment.items())
        values = {"command": " ".join(words), "environment": "\n".join(variables), "stop": definition.stop_seconds}
        return _TEMPLATE % values

    def installed(self) -> ServiceDefinition:
        """Return what the unit that is installed says."""
        text = self.file.read_text("utf-8")
        command = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
        program, *arguments = _words(command[1]) if command else [""]
        variables = (_words(line) for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE))
        environment = dict(word.split("=", 1) for words in variables for word in words if "=" in word)
        stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
        unescaped = (argument.replace("$$", "$") for argument in arguments)
        return ServiceDefinition((program, *unescaped), environment, int(stop[1]) if stop else int(CALL_TIMEOUT))

    def variables(self) -> set[str]:
        """Return the names of the variables that systemd gives to all services of the user."""
        return {line.partition("=")[0] for line in succeed(*SYSTEMCTL, "show-environment").splitlines()}

    def is_own(self) -> bool:
        """Whether `portico service install` wrote the unit."""
        return self.file.read_bytes().startswith(FIRST_LINE.encode())

    def require(self) -> None:
        """Raise ConfigError if the user has no instance of systemd."""
        if shutil.which("systemctl") is None:
            raise ConfigError(
                "there is no systemd here (`systemctl` is not on PATH): start `portico serve` by the service manager that this "
                "system has; in a container, make it the container's command"
            )
        asked = run(*SYSTEMCTL, "show", "--property=Version")
        if asked.returncode != 0:
            raise ConfigError(
                f"systemd does not run for this user (`systemctl --user`: {asked.stderr.strip()}): in a container, make "
                "`portico serve` the container's command; after `su` or `sudo`, log in as the user by ssh or "
                f"`machinectl shell {getpass.getuser()}@`"
            )

    def install(self, content: str) -> None:
        """Write the unit, and start it, now and at each login. Raises ConfigError."""
        replace_file(self.file, content, 0o644)
        succeed(*SYSTEMCTL, "daemon-reload")
        succeed(*SYSTEMCTL, "enable", UNIT)
        # Not `enable --now`: that leaves a daemon with the former unit running.
        started = run(*SYSTEMCTL, "restart", UNIT, timeout=START_TIMEOUT + 60)
        if started.returncode != 0:
            raise ConfigError(f"the service is installed, but does not start:\n{_indented(self.last_lines())}")

    def uninstall(self) -> None:
        """Stop the daemon, and remove the unit. Raises ConfigError."""
        succeed(*SYSTEMCTL, "disable", "--now", UNIT, timeout=self.installed().stop_seconds + CALL_TIMEOUT)
        self.file.unlink()
        succeed(*SYSTEMCTL, "daemon-reload")
        # It fails if the unit has not failed.
        run(*SYSTEMCTL, "reset-failed", UNIT)

    def state(self) -> ServiceState:
        """Return what systemd reports. Raises ConfigError."""
        shown = succeed(*SYSTEMCTL, "show", UNIT, "--property=" + ",".join(PROPERTIES))
        found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        running = found.get("ActiveState") in ("active", "reloading")
        address = re.search(r"listening on (\S+)", found.get("StatusText", "")) if running else None
        return ServiceState(
            running,
            at_login=found.get("UnitFileState") == "enabled",
            pid=int(found.get("MainPID", "0")) or None,
            address=address[1] if address else None,
            reason=None if running else _reason(found),
        )

    def last_lines(self, number: int = 5) -> str:
        """Return the end of the log."""
        if shutil.which("journalctl") is None:
            return ""
        return run("journalctl", "--user", "--unit", UNIT, "--lines", str(number), "--output=cat", "--no-pager").stdout.strip()

    def log_command(self, lines: int, follow: bool) -> tuple[str, ...]:
        """Return the command that prints the log."""
        return ("journalctl", "--user", "--unit", UNIT, "--lines", str(lines), *(("--follow",) if follow else ("--no-pager",)))

    def hint(self) -> str | None:
        """Return what keeps the daemon running without a login; None if it does."""
        user = getpass.getuser()
        if (self._linger / user).exists():
            return None
        return f"It stops when you log out. `loginctl enable-linger {user}` starts it with the system, and keeps it running."


def _reason(found: dict[str, str]) -> str:
    """Return why the unit is not active, by its properties."""
    state, status = found.get("ActiveState", "unknown"), found.get("ExecMainStatus", "0")
    exited = f"it exited with code {status}" if found.get("ExecMainCode") == "1" else f"it was ended by signal {status}"
    if state == "activating":
        again = found.get("SubState") == "auto-restart"
        return f"{exited}, and is started again every {RESTART_SECONDS} seconds" if again else "it is starting"
    if state == "deactivating":
        return "it is stopping"
    if state == "inactive":
        return "it is stopped; `systemctl --user start portico` starts it"
    if found.get("ExecMainCode") == "1" and status == str(INVALID_SETTINGS):
        return "its settings are wrong; correct them, and start it by `systemctl --user start portico`"
    return f"it failed ({found.get('Result', 'unknown')}): {exited}"


def _quoted(text: str) -> str:
    """Return a word of a unit file. Raises ConfigError for a text that a unit file cannot have."""
    if not text.isprintable():
        raise ConfigError(f"{text!r} contains a control character, which a unit file cannot have")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _words(line: str) -> list[str]:
    """Return the words that `_quoted` has written."""
    return [re.sub(r"\\(.)", r"\1", word).replace("%%", "%") for word in re.findall(r'"((?:[^"\\]|\\.)*)"?', line)]


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines()).rstrip("\n")
