"""The absolute path of the command `portico`, for what starts it later: editors and service managers."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from gateway.errors import ConfigError
from gateway.installation import install_command

NAMES = ("portico", "portico-gateway")
"""The names of the command."""


def own_program() -> str:
    """Return the path: an editor that is started from a desktop has another PATH than a shell. Raises ConfigError without one."""
    started = Path(sys.argv[0])
    if started.name.partition(".")[0] in NAMES:
        return os.path.abspath(shutil.which(sys.argv[0]) or started)
    found = shutil.which("portico", path=str(Path(sys.executable).parent)) or shutil.which("portico")
    if found is None:
        raise ConfigError(f"the command `portico` is not on PATH. Run: {install_command()}")
    return os.path.abspath(found)
