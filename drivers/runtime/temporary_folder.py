"""Temporary folders: one of the processes of an agent in the sandbox, and one for a probe.

The system's folder for temporary files is shared by all programs. An agent in the sandbox cannot write there.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from drivers.runtime.confined_files import discard_tree
from drivers.runtime.file_threads import in_thread_or_undone
from drivers.runtime.launcher import LaunchedCommand, Launcher

AGENT_PREFIX = "t-"
"""What the names of agents' folders begin with. It is short: the path of a Unix socket has 108 bytes."""
PROBE_PREFIX = "portico-probe-"
"""What the names of folders for probes begin with."""


class AgentTemporary(Launcher):
    """Launcher that gives the processes of one agent a temporary folder to share: created for the first, removed after the last.

    `parent` is a folder where only the gateway writes; None for the system's folder for temporary files. `variables` are the
    variables of the environment that name the folder.
    """

    def __init__(self, parent: Path | None, variables: Sequence[str]) -> None:
        self._parent, self._variables = parent, tuple(variables)
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._processes = 0

    async def launch(self, command: LaunchedCommand) -> LaunchedCommand:
        own = await in_thread_or_undone(self._enter, lambda _: self._leave())
        return replace(
            command,
            env={**command.env, **dict.fromkeys(self._variables, str(own))},
            writable=(*command.writable, own),
            release=(*command.release, self._leave),
        )

    def _enter(self) -> Path:
        """Return the real path of the folder for one more process. Raises OSError."""
        with self._lock:
            if self._folder is None:
                self._folder = _make(AGENT_PREFIX, self._parent)
            self._processes += 1
            return self._folder

    def _leave(self) -> None:
        """Remove the folder if no other process has entered it."""
        with self._lock:
            self._processes -= 1
            if self._processes:
                return
            folder, self._folder = self._folder, None
        if folder is not None:
            discard_tree(folder)


@asynccontextmanager
async def throwaway_folder(parent: Path | None) -> AsyncIterator[Path]:
    """A fresh folder in `parent`, or in the system's folder for temporary files, as a real path. It is removed at the end.

    It is where only the gateway writes: programs of an agent without a sandbox load files of it. A process that has it as its
    working folder or its state folder may write in it.
    """
    folder = await asyncio.to_thread(_make, PROBE_PREFIX, parent)
    try:
        yield folder
    finally:
        await asyncio.shield(asyncio.to_thread(discard_tree, folder))


def remove_left_behind(temporary: Path) -> None:
    """Remove the folders of agents and probes that a killed daemon left behind."""
    for prefix in (AGENT_PREFIX, PROBE_PREFIX):
        for folder in temporary.glob(f"{prefix}*"):
            discard_tree(folder)


def _make(prefix: str, parent: Path | None) -> Path:
    return Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=parent)))
