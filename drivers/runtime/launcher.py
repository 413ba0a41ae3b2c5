"""The seam for where a process runs: a launcher turns a command into the command that runs it in another place.

The spawner (drivers/runtime/process.py) starts what the launchers return, and knows none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from drivers.contract.codec import Command
from drivers.runtime.process_tree import MARKER


@dataclass(frozen=True, slots=True)
class LaunchedCommand(Command):
    """A driver's command, with what launchers have changed in it. The defaults are those of a process without a launcher.

    Attributes:
        marker: The value of the variable MARKER in `env`. The ledger stores it for a later daemon.
        writable: Folders that the process may write in besides its working folder and its state folder, as real paths.
        pass_fds: Descriptors that the process inherits. The spawner closes them after the start.
        confined: Whether the process is kept from files of its user.
        descends: Whether the driver's program descends from the process that is started. If not, its use of memory is unknown.
        release: Called in a thread when the process has ended, and also if it is not started. The close waits for a moment.
        ended: Called when the process has ended. Each one returns None, or why it failed: the ledger keeps the process then.
    """

    marker: str = ""
    writable: tuple[Path, ...] = ()
    pass_fds: tuple[int, ...] = ()
    confined: bool = False
    descends: bool = True
    release: tuple[Callable[[], None], ...] = ()
    ended: tuple[Callable[[], Awaitable[str | None]], ...] = ()

    @classmethod
    def of(cls, command: Command, marker: str) -> LaunchedCommand:
        """Return the command as a driver gave it, with the marker in its environment."""
        env: Mapping[str, str] = {**command.env, MARKER: marker}
        return cls(command.argv, command.cwd, env, command.stdin, command.files, command.state, marker)


class Launcher(ABC):
    """A place for processes, such as a sandbox. Launchers compose: each one gets the command of the one before."""

    __slots__ = ()

    @property
    def untrusted(self) -> tuple[Path, ...]:
        """Folders in which its processes can create links. No file of a command is written through a link out of them."""
        return ()

    @property
    def has_programs(self) -> bool:
        """Whether it has programs of its own, as an image has."""
        return False

    @abstractmethod
    async def launch(self, command: LaunchedCommand) -> LaunchedCommand:
        """Return the command that runs this one. Raises AgentUnavailable, OSError.

        The spawner has written the files, opens `cwd` and writes `stdin`: a launcher leaves these three as they are. The
        outermost process has MARKER in its environment, with the value of `marker`.
        """
