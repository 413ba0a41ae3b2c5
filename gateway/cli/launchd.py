"""The daemon as a launch agent of macOS: launchd.plist(5), launchctl(1)."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import time
from pathlib import Path

from gateway.cli.file_replacement import replace_file
from gateway.cli.service_definition import ServiceDefinition, ServiceState, run, succeed
from gateway.errors import ConfigError
from gateway.private_files import private_file

LABEL = "local.portico"
RESTART_SECONDS = 10
TAIL_BYTES = 64 * 1024
"""How much of the log is read for its last lines."""
STOP_STEP = 0.1
"""Seconds between two looks at whether the former agent has ended."""


class Launchd:
    """The user's launchd, of the graphical session."""

    edit = f"edit ~/Library/LaunchAgents/{LABEL}.plist"

    def __init__(self, home: Path) -> None:
        self._home = home
        self.file = home / "Library/LaunchAgents" / f"{LABEL}.plist"
        self.log = home / "Library/Logs/portico.log"
        self._domain = f"gui/{os.getuid()}"
        self._target = f"{self._domain}/{LABEL}"

    def content(self, definition: ServiceDefinition) -> str:
        """Return the property list."""
        return plistlib.dumps(
            {
                "Label": LABEL,
                "ProgramArguments": list(definition.command),
                "EnvironmentVariables": dict(definition.environment),
                "WorkingDirectory": str(self._home),
                "RunAtLoad": True,
                # launchd cannot tell exit codes apart, so that wrong settings are tried again too.
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": RESTART_SECONDS,
                # SIGTERM goes to the daemon alone, which ends its agents. Then SIGKILL.
                "ExitTimeOut": definition.stop_seconds,
                # By default launchd slows down what it starts, agents and their builds included.
                "ProcessType": "Interactive",
                # By default 256 open files.
                "SoftResourceLimits": {"NumberOfFiles": 10240, "Core": 0},
                "StandardOutPath": str(self.log),
                "StandardErrorPath": str(self.log),
            }
        ).decode()

    def installed(self) -> ServiceDefinition:
        """Return what the property list that is installed says."""
        found = plistlib.loads(self.file.read_bytes())
        return ServiceDefinition(tuple(found["ProgramArguments"]), found["EnvironmentVariables"], found["ExitTimeOut"])

    def variables(self) -> set[str]:
        """Return the names of the variables that launchd gives to all agents of the user, but those that every shell has."""
        return set()

    def is_own(self) -> bool:
        """Whether the file is one that `portico service install` wrote: its label is not used by others."""
        return True

    def require(self) -> None:
        """Raise ConfigError if the user has no graphical session."""
        if shutil.which("launchctl") is None:
            raise ConfigError("`launchctl` is not on PATH; it is in /bin")
        if run("launchctl", "print", self._domain).returncode != 0:
            raise ConfigError("launchd has no session for this user: log in at the screen (ssh is not enough), and try again")

    def install(self, content: str) -> None:
        """Write the property list, and start the agent, now and at each login. Raises ConfigError."""
        if self._is_loaded():
            self._unload(plistlib.loads(content.encode())["ExitTimeOut"])
        replace_file(self.file, content, 0o644)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        os.close(private_file(self.log, os.O_WRONLY | os.O_APPEND))
        succeed("launchctl", "enable", self._target)
        succeed("launchctl", "bootstrap", self._domain, str(self.file))

    def uninstall(self) -> None:
        """Stop the daemon, and remove the property list. Raises ConfigError."""
        if self._is_loaded():
            self._unload(self.installed().stop_seconds)
        self.file.unlink()

    def state(self) -> ServiceState:
        """Return what launchd reports. The address is not known to it. Raises ConfigError."""
        printed = run("launchctl", "print", self._target)
        if printed.returncode != 0:
            return ServiceState(False, at_login=False, reason="it is not loaded; `portico service install` loads it")
        found = dict(re.findall(r"^\t(state|pid|last exit code) = (.+)$", printed.stdout, re.MULTILINE))
        running = found.get("state") == "running"
        exited = f"its last exit code is {found.get('last exit code', 'unknown')}"
        reason = None if running else f"{exited}; launchd starts it again every {RESTART_SECONDS} seconds"
        pid = found.get("pid", "")
        return ServiceState(running, at_login=True, pid=int(pid) if pid.isdecimal() else None, reason=reason)

    def last_lines(self, number: int = 5) -> str:
        """Return the end of the log."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as opened:
            opened.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            return "\n".join(opened.read().decode(errors="replace").splitlines()[-number:])

    def log_command(self, lines: int, follow: bool) -> tuple[str, ...]:
        """Return the command that prints the log."""
        return ("tail", "-n", str(lines), *(("-F",) if follow else ()), str(self.log))

    def hint(self) -> str | None:
        """Return how long the daemon runs."""
        return "It stops when you log out, and starts when you log in."

    def _is_loaded(self) -> bool:
        return run("launchctl", "print", self._target).returncode == 0

    def _unload(self, seconds: float) -> None:
        """Stop the agent, and wait until launchd has forgotten it: `bootstrap` fails before. Raises ConfigError."""
        # 36 is "operation now in progress": `bootout` returns before the agent has ended.
        succeed("launchctl", "bootout", self._target, accepted=36)
        deadline = time.monotonic() + seconds + 5
        while self._is_loaded():
            if time.monotonic() > deadline:
                raise ConfigError(f"launchd has not ended {LABEL} after {seconds + 5:g} seconds; try again")
            time.sleep(STOP_STEP)
