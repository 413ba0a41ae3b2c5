"""Where the gateway's git works: in the sandbox of agents, with a private folder, so many commands at a time.

An agent in a sandbox may write in a repository, and change it while git is at work: a folder that git has looked at may be a link
to another one in the next moment. So git can write in the folders of one worktree only, and read nothing of the gateway's.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from drivers.contract.errors import AgentUnavailable
from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.confined_files import discard_tree
from drivers.runtime.confined_program import Places
from drivers.runtime.sandbox import Sandbox, unavailable
from gateway.errors import Conflict
from gateway.private_files import private_directory

TEMPORARY = ".temporary-"
"""What the names of temporary folders begin with, and that of no worktree."""
EACH, TOTAL = 4, 8
"""Commands at the same time, of one key and in all."""
WAIT_SECONDS = 30.0
"""How long a command waits for its turn."""

ConfinedWriter = Callable[[Path, str], str | None]
"""Returns the name of an agent in a sandbox that may write in a folder, or of the given agent if that is in one."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the commands of one operation may use. `temporary` is their private folder.

    `ruleset` is the descriptor of a Landlock ruleset; None where nothing confines them. They take the places of an `owner`.
    """

    temporary: Path
    ruleset: int | None
    owner: str
    places: Places
    clock: Clock = SYSTEM_CLOCK


class Confinements:
    """Confines the gateway's git.

    Parameters:
        folder: A folder of the gateway for temporary folders.
        hidden: What git cannot read.
        confined_writer: Which agent needs the confinement.
        clock: The clock of the limits of time of the commands.
    """

    def __init__(
        self, folder: Path, hidden: Sequence[Path], confined_writer: ConfinedWriter, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._folder, self._hidden, self._confined_writer, self._clock = folder, tuple(hidden), confined_writer, clock
        self._places = Places(EACH, TOTAL, WAIT_SECONDS, clock)

    @asynccontextmanager
    async def open(
        self, owner: str | None, agent: str, *folders: Path, readable: tuple[Path, ...] = ()
    ) -> AsyncIterator[Confinement]:
        """Give what git may use that writes in `folders`, real paths, for an agent, and reads `readable` hidden ones.

        Raises Conflict where it cannot be confined and that is needed, or where a folder was replaced by a link.
        """
        opening = asyncio.create_task(asyncio.to_thread(self._open, owner or "", agent, folders, readable))
        try:
            confinement = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_result)
            raise
        try:
            yield confinement
        finally:
            await asyncio.shield(asyncio.to_thread(_close, confinement))

    def _open(self, owner: str, agent: str, folders: tuple[Path, ...], readable: tuple[Path, ...]) -> Confinement:
        private_directory(self._folder)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=self._folder))
        try:
            ruleset = self._ruleset(agent, (*folders, temporary), readable)
            return Confinement(temporary, ruleset, owner, self._places, self._clock)
        except BaseException:
            temporary.rmdir()
            raise

    def _ruleset(self, agent: str, folders: tuple[Path, ...], readable: tuple[Path, ...]) -> int | None:
        sandbox = Sandbox((), self._hidden, folders=folders, readable=readable)
        problem = unavailable() or sandbox.conflict()
        if problem is not None:
            self._require_unneeded(agent, folders, problem)
            return None
        try:
            return sandbox.ruleset()
        except AgentUnavailable as error:
            raise Conflict(f"git does not work there: {error}") from error

    def _require_unneeded(self, agent: str, folders: Sequence[Path], problem: str) -> None:
        for folder in folders:
            if (writer := self._confined_writer(folder, agent)) is not None:
                raise Conflict(
                    f"git does not work in {folder}, where the agent {writer!r} may write: that agent is in a sandbox, and git "
                    f"cannot be kept to that folder: {problem}"
                )


def _close(confinement: Confinement) -> None:
    if confinement.ruleset is not None:
        os.close(confinement.ruleset)
    discard_tree(confinement.temporary)


def _close_result(opening: asyncio.Task[Confinement]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        _close(opening.result())
