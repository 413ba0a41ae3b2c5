"""SIGSTOP of an agent and of the daemon, for longer and for shorter than the time limits."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial

import httpx

from tests.faults import oracles
from tests.faults.campaign import Run
from tests.faults.daemon import BOUND, Conversation, Daemon, Turn

LIMITS = {"idle": 3.0, "start": 4.0}
LONG, SHORT = 5.0, 1.0
"""Seconds of a pause, longer and shorter than the limits."""


async def pauses(run: Run) -> None:
    """SIGSTOP of an agent and of the daemon, in a turn, at its end and while an agent starts."""
    await run.concurrently([partial(_one, run, name) for name in CASES], 3)


async def _one(run: Run, name: str) -> None:
    async with run.daemon(limits=LIMITS) as daemon, daemon.client() as client:
        await run.case(name, partial(CASES[name], daemon, client), daemon)


async def _working(client: httpx.AsyncClient, *steps: list[object]) -> tuple[Conversation, Turn, asyncio.Task[Turn]]:
    conversation = await Conversation(client, name="paused").create()
    turn = Turn(prompt=conversation.next_prompt())
    task = asyncio.create_task(conversation.turn(["text", 1, 0], *steps, turn=turn, prompt_id=turn.prompt))
    async with asyncio.timeout(BOUND * 4):
        while "<" not in turn.text:
            await asyncio.sleep(0.01)
    return conversation, turn, task


async def _pause(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _agent_long(daemon: Daemon, client: httpx.AsyncClient) -> list[str]:
    """The run ends with the limit as its error, and the agent is killed although it does not run."""
    conversation, turn, _ = await _working(client, ["text", 1000, 0.1])
    (agent,) = daemon.started("agent")
    os.kill(agent, signal.SIGSTOP)
    async with asyncio.timeout(LIMITS["idle"] + 2 * BOUND):
        while turn.stop is None:
            await asyncio.sleep(0.01)
    problems = await daemon.none_left()
    if turn.stop["stopReason"] != "error" or "silent" not in turn.stop["x-portico"]["error"]:
        problems.append(f"the turn ended with {turn.stop}")
    return problems + await conversation.check()


async def _agent_short(daemon: Daemon, client: httpx.AsyncClient) -> list[str]:
    conversation, turn, task = await _working(client, ["text", 20, 0.1])
    await _pause(daemon.started("agent")[0], SHORT)
    await task
    problems = [] if turn.stop and turn.stop["stopReason"] == "end_turn" else [f"the turn ended with {turn.stop}"]
    return problems + oracles.answers_only(turn.prompt, turn.text, 21) + await conversation.check()


async def _daemon_in_turn(daemon: Daemon, client: httpx.AsyncClient) -> list[str]:
    """The agent has written all the time: it was not silent."""
    conversation, turn, task = await _working(client, ["text", 70, 0.1])
    await _pause(daemon.pid, LONG)
    await task
    problems = [] if turn.stop and turn.stop["stopReason"] == "end_turn" else [f"the turn ended with {turn.stop}"]
    return problems + oracles.answers_only(turn.prompt, turn.text, 71) + await conversation.check()


async def _daemon_at_turn_end(daemon: Daemon, client: httpx.AsyncClient) -> list[str]:
    """The agent ends its turn while the daemon is stopped."""
    conversation, turn, task = await _working(client, ["text", 5, 0.1])
    await _pause(daemon.pid, LONG)
    await task
    problems = [] if turn.stop and turn.stop["stopReason"] == "end_turn" else [f"the turn ended with {turn.stop}"]
    return problems + oracles.answers_only(turn.prompt, turn.text, 6) + await conversation.check()


async def _daemon_at_start(daemon: Daemon, client: httpx.AsyncClient) -> list[str]:
    """The agent is ready before its limit, and the daemon reads that after the limit."""
    conversation = await Conversation(client, "slow", name="slow").create()
    task = asyncio.create_task(conversation.turn(["text", 2, 0]))
    async with asyncio.timeout(BOUND * 4):
        while not daemon.started("agent"):
            await asyncio.sleep(0.01)
    await _pause(daemon.pid, LONG)
    turn = await task
    problems = [] if turn.status == 200 else [f"the turn: {turn.status} {turn.body} {turn.broken}"]
    return problems + oracles.answers_only(turn.prompt, turn.text, 2) + await conversation.check()


async def _daemon_waiting(daemon: Daemon, client: httpx.AsyncClient) -> list[str]:
    """A pending call is not affected."""
    conversation = await Conversation(client, name="waits").create()
    await conversation.turn(["ask"], ["text", 2, 0])
    await _pause(daemon.pid, LONG)
    turn = await conversation.answer("waits-1-call-0")
    problems = oracles.answers_only("waits-1", turn.text, 2)
    return problems + await conversation.check()


CASES: dict[str, Callable[[Daemon, httpx.AsyncClient], Awaitable[list[str]]]] = {
    "agent, longer than limits.idle": _agent_long,
    "agent, shorter": _agent_short,
    "daemon in a turn": _daemon_in_turn,
    "daemon at the end of a turn": _daemon_at_turn_end,
    "daemon while an agent starts": _daemon_at_start,
    "daemon while a call is pending": _daemon_waiting,
}
