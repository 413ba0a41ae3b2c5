"""Lists the live agents of sessions and one-shot tasks with what their processes take, and ends one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal

from drivers.contract.agent import Agent, ProcessUse
from gateway.errors import NotFound
from gateway.runs.one_shot_tasks import RunningTask, TaskRunner
from gateway.security.authentication import Caller
from gateway.sessions.registry import Sessions
from gateway.sessions.session import Session

ENDED = "the agent was ended on request (DELETE /v1/live-agents)"


@dataclass(frozen=True, slots=True)
class LiveAgentSummary:
    """A live agent. Either `session_id` or `task_id` is given. `owner` is the name of its API key, None for a default key.

    `use` is None while it has no process: some CLIs have one in their turns only. `idle_since` is when its last turn ended, in
    seconds since the epoch, None while one runs.
    """

    session_id: str | None
    task_id: str | None
    agent: str
    owner: str | None
    state: Literal["running", "waiting", "idle"]
    idle_since: float | None
    use: ProcessUse | None


async def live_agents(sessions: Sessions, tasks: TaskRunner, caller: Caller) -> list[LiveAgentSummary]:
    """The live agents that the caller may see. Takes a tenth of a second, in which the use of the processor is measured."""
    found: list[Awaitable[LiveAgentSummary]] = []
    for session in sessions.held:
        if session.live is not None and caller.sees(session.owner):
            found.append(_of_session(session, session.live))
    found += [_of_task(task, task.run.agent) for task in tasks.tasks if task.run.agent is not None and caller.sees(task.owner)]
    return list(await asyncio.gather(*found))


async def _of_session(session: Session, agent: Agent) -> LiveAgentSummary:
    state, idle_since = session.state, _idle_since(session)
    use = await agent.process_use()
    return LiveAgentSummary(session.id, None, session.agent.name, session.owner, state, idle_since, use)


def _idle_since(session: Session) -> float | None:
    if session.busy:
        return None
    if session.state == "waiting" and session.run is not None:
        return session.run.pending.since
    return time.time() - session.unused_seconds


async def _of_task(task: RunningTask, agent: Agent) -> LiveAgentSummary:
    return LiveAgentSummary(None, task.id, task.agent, task.owner, "running", None, await agent.process_use())


async def end_live_agent(sessions: Sessions, tasks: TaskRunner, caller: Caller, log_id: str) -> None:
    """End the agent of a session or of a task. A run at work ends with an error; calls that wait go on waiting.

    Raises NotFound where there is none, or it is another's.
    """
    task = next((one for one in tasks.tasks if one.id == log_id and caller.sees(one.owner)), None)
    if task is not None:
        return await task.run.fail(ENDED)
    session = await sessions.get(caller, log_id)
    if not await session.end_agent(ENDED):
        raise NotFound(f"session {log_id!r} has no live agent")
