"""Temporary folders: one of the processes of an agent in the sandbox, and one for a probe.

The system's folder for temporary files is shared by all programs. An agent in the sandbox cannot write there.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from drivers.runtime.confined_files import discard_tree

if TYPE_CHECKING:
    from drivers.runtime.process import Spawner

AGENT_PREFIX = "t-"
"""What the names of agents' folders begin with. It is short: the path of a Unix socket has 108 bytes."""
PROBE_PREFIX = "portico-probe-"
"""What the names of folders for probes begin with."""


class AgentTemporary:
    """The temporary folder that the processes of one agent share: created for the first one, removed after the last one.

    `parent` is a folder where only the gateway writes; None for the system's folder for temporary files.
    """

    def __init__(self, parent: Path | None) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._processes = 0

    def enter(self) -> Path:
        """Return the real path of the folder for one more process. Blocks. Raises OSError."""
        with self._lock:
            if self._folder is None:
                self._folder = _make(AGENT_PREFIX, self._parent)
            self._processes += 1
            return self._folder

    def leave(self) -> None:
        """Remove the folder if no other process has entered it. Blocks."""
        with self._lock:
            self._processes -= 1
            if self._processes:
                return
            folder, self._folder = self._folder, None
        if folder is not None:
            discard_tree(folder)


@asynccontextmanager
async def throwaway_folder(spawner: Spawner) -> AsyncIterator[tuple[Path, Spawner]]:
    """A fresh folder, as a real path, and a spawner whose processes may write in it. The folder is removed at the end.

    It is where only the gateway writes: programs of an agent without a sandbox load files of it.
    """
    folder = await asyncio.to_thread(_make, PROBE_PREFIX, spawner.temporary)
    try:
        yield folder, spawner.with_writable(folder)
    finally:
        await asyncio.shield(asyncio.to_thread(discard_tree, folder))


def remove_left_behind(temporary: Path) -> None:
    """Remove the folders of agents and probes that a killed daemon left behind."""
    for prefix in (AGENT_PREFIX, PROBE_PREFIX):
        for folder in temporary.glob(f"{prefix}*"):
            discard_tree(folder)


def _make(prefix: str, parent: Path | None) -> Path:
    return Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=parent)))
