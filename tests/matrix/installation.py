"""Installs a release of a CLI from npm into a throw-away folder."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

INSTALL_SECONDS = 180.0


class InstallError(Exception):
    """npm or the package's own script failed."""


@asynccontextmanager
async def installed(package: str, version: str) -> AsyncIterator[Path]:
    """A folder with this release in `node_modules`, for the length of the block. Raises InstallError.

    The scripts of packages do not run, but for the one of claude: it puts the program for this platform into its place.
    """
    # Not below /tmp: codex refuses to create its helper programs there.
    with tempfile.TemporaryDirectory(prefix="portico-matrix-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        home = folder / "npm-home"
        home.mkdir()
        # The other variables stay: npm may need a proxy or a certificate of this network.
        env = {**os.environ, "HOME": str(home), "npm_config_cache": str(home / "cache"), "NO_UPDATE_NOTIFIER": "1"}
        quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
        await _run(folder, env, "npm", "install", "--prefix", name, "--ignore-scripts", *quiet, f"{package}@{version}")
        script = folder / "node_modules" / package / "install.cjs"
        if script.exists():
            await _run(script.parent, env, "node", str(script))
        yield folder


async def _run(folder: Path, env: dict[str, str], *command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), INSTALL_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise InstallError(f"{command[0]} was not ready after {INSTALL_SECONDS:g} s") from None
    if process.returncode:
        raise InstallError(f"{command[0]} exited with {process.returncode}: {output.decode(errors='replace').strip()}")
