"""Installs packages of Debian that tests use. Only in CI: elsewhere nothing is installed, and those tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

IN_CI = "CI" in os.environ


def install(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Install the packages if one of the programs is not on PATH. Where that fails, the end of apt-get's output is printed."""
    if not IN_CI or all(map(shutil.which, programs)):
        return
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]):
        try:
            done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            problem = done.stdout[-2000:] if done.returncode else ""
        except OSError as error:
            problem = str(error)
        if problem:
            sys.stdout.write(f"{' '.join(packages)} could not be installed. {' '.join(command)}:\n{problem}\n")
            return
