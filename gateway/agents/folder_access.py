"""Calls of the file system for requests: in a thread each, and with a limit of time, because a network folder may not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.file_threads import TooManyAccesses, bounded, in_thread
from gateway.agents.configured_agents import Agents, ConfiguredAgent
from gateway.errors import AgentProblem

TIMEOUT = 5.0
"""Seconds for the file system."""
LIST_TIMEOUT = 1.0
"""Seconds for the folder of a session in a list. Others of the list must not wait for it."""
FOLDER_OF_SESSION = "the file system of the session's folder"
FOLDER_OF_AGENT = "the file system of the agent's folder"
clock: Clock = SYSTEM_CLOCK
"""The clock of these limits."""
AT_ONCE = 16
"""Folders that are resolved at the same time."""
Key = TypeVar("Key")
Result = TypeVar("Result")


async def in_time(access: Callable[[], Result], what: str = "the file system") -> Result:
    """Call a function in a thread and return its result. `what` names what it accesses, for the error.

    Raises what the function raises, and AgentProblem if it has not returned in time, when its thread goes on without a reader, or
    if too many accesses are blocked already.
    """
    try:
        return await bounded(access, TIMEOUT, clock)
    except TooManyAccesses as error:
        raise AgentProblem(
            f"{what} cannot be asked: {error.strerror}; check the folders of the agents, or try again later"
        ) from error
    except TimeoutError as error:
        raise AgentProblem(f"{what} has not answered within {TIMEOUT:g} s; check its folder, or try again later") from error


async def notice_update(agent: ConfiguredAgent) -> None:
    """Look anew for the program of an agent that could not be used. Raises AgentProblem."""
    if agent.problem() is not None:
        agent.kept = await in_time(agent.look, FOLDER_OF_AGENT)


@dataclass(frozen=True, slots=True)
class ChosenFolder:
    """The folder of a stored session: its agent, its option `cwd` and the key whose workspace it uses."""

    agent: str
    cwd: str | None
    workspace_key: str | None


class SlowAccesses(Generic[Key, Result]):
    """Accesses to folders that may not answer, one at a time for each key.

    An access that does not answer keeps one thread. Until it has answered, further calls for its key do not wait.
    """

    def __init__(self) -> None:
        self.tasks: dict[Key, asyncio.Task[Result]] = {}
        """The accesses that are under way."""
        self.late: set[Key] = set()
        """The keys whose accesses have not answered in time."""

    async def ask(self, key: Key, access: Callable[[], Result], clock: Clock) -> Result | None:
        """Call a function in a thread, unless a call for the key is under way, and return its result.

        None if it has not answered in time, or has raised OSError, as where all threads are blocked. Raises what else it raises.
        """
        task = self.tasks.get(key)
        if task is None:
            task = self.tasks[key] = asyncio.create_task(in_thread(access, daemon=True))
            task.add_done_callback(partial(self._answered, key))
        if key not in self.late:
            await clock.wait([task], LIST_TIMEOUT)
        if not task.done():
            self.late.add(key)
            return None
        return None if task.cancelled() or isinstance(task.exception(), OSError) else task.result()

    def _answered(self, key: Key, task: asyncio.Task[Result]) -> None:
        del self.tasks[key]
        self.late.discard(key)
        if not task.cancelled():
            # It is retrieved here where nobody waits any more.
            task.exception()


class ListedFolders:
    """Resolves the working folders of stored sessions for lists. A folder that does not answer has its stored path there."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self.accesses = SlowAccesses[ChosenFolder, str]()

    async def resolve(self, folders: Iterable[ChosenFolder]) -> dict[ChosenFolder, str | None]:
        """Return the absolute folders; None for an agent that is not configured any more."""
        wanted, slots = list(dict.fromkeys(folders)), asyncio.Semaphore(AT_ONCE)

        async def resolved(folder: ChosenFolder) -> str | None:
            agent = self._agents.find(folder.agent)
            if agent is None:
                return None
            async with slots:
                return await self._resolve(agent, folder)

        return dict(zip(wanted, await asyncio.gather(*map(resolved, wanted)), strict=True))

    async def _resolve(self, agent: ConfiguredAgent, folder: ChosenFolder) -> str:
        options = {} if folder.cwd is None else {"cwd": folder.cwd}
        found = await self.accesses.ask(folder, partial(agent.folder_of, options, folder.workspace_key), clock)
        return agent.unresolved_folder(options, folder.workspace_key) if found is None else found
