"""Runs `portico` in its own process, for tests of the command line."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import write_config
from tests.support.daemon import gateway_config
from tests.support.fork_server import forked_command


@dataclass
class RunningServer:
    """A daemon that accepts connections. Its further output and its exit code are set when it has stopped."""

    line: str
    out: str = ""
    err: str = ""
    code: int | None = None

    @property
    def url(self) -> str:
        return self.line.split()[-1]


class PorticoCommand:
    """`portico ARGUMENTS` with a configuration of `echo` and `script` and an empty home.

    The fork server forks it. With `own` it is a child of the test process, so that its own children can be examined.
    """

    def __init__(
        self, folder: Path, *arguments: str, env: Mapping[str, str] | None = None, config: bool = True, own: bool = False
    ) -> None:
        if config and not (folder / "config.toml").exists():
            write_config(folder, gateway_config(folder))
        self._argv = [*((sys.executable, "-m", "gateway") if own else forked_command("gateway")), arguments[0]]
        self._argv += ["--config", str(folder / "config.toml")] if config else []
        self._argv += arguments[1:]
        own = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "TMPDIR": tempfile.gettempdir()}
        self._env = {**own, **(env or {})}
        self._folder = folder

    async def start(
        self, stderr: int = asyncio.subprocess.PIPE, stdout: int = asyncio.subprocess.PIPE
    ) -> asyncio.subprocess.Process:
        """Start the process in its own process session, with pipes for its standard streams."""
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *self._argv, stdin=pipe, stdout=stdout, stderr=stderr, env=self._env, cwd=self._folder, start_new_session=True
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RunningServer]:
        """Run `portico serve` and yield when it listens. It is stopped afterwards."""
        process = await self.start()
        assert process.stdout is not None
        serving = RunningServer((await asyncio.wait_for(process.stdout.readline(), 60)).decode())
        try:
            yield serving
        finally:
            process.terminate()
            out, err = await process.communicate()
            serving.out, serving.err, serving.code = out.decode(), err.decode(), process.returncode

    async def run(self, stdin: bytes = b"") -> tuple[int, str, str]:
        """Run the command and return its exit code, standard output and standard error."""
        process = await self.start()
        out, err = await asyncio.wait_for(process.communicate(stdin), 60)
        return process.returncode or 0, out.decode(), err.decode()
