"""SIGTERM with many turns: each client gets the end of its turn, every agent ends, and the exit code is 0 in time."""

from __future__ import annotations

import asyncio

from tests.faults import oracles
from tests.faults.campaign import Run
from tests.faults.daemon import AGENTS, BOUND, Conversation, Daemon, Turn

TURNS, QUICK_TURNS = 20, 8
STEPS: dict[str, list[list[object]]] = {
    "stream": [["text", 1000, 0.02]],
    "hang": [["text", 1, 0], ["hang"]],
    "deaf": [["text", 1, 0], ["deaf"]],
    "spawn": [["text", 1, 0], ["spawn", "setsid"], ["hang"]],
    "flood": [["text", 1, 0], ["flood", 200_000, 1000]],
}


async def shutdown(run: Run) -> None:
    """SIGTERM with 20 turns of agents that stream, hang, do not read, ignore SIGTERM or have lost their variables."""
    async with run.daemon() as daemon, daemon.client() as client:
        count = QUICK_TURNS if run.quick else TURNS
        agents = [name for name in AGENTS if name != "slow"]
        kinds = [(agents[n % len(agents)], [*STEPS][n % len(STEPS)]) for n in range(count)]
        conversations = [
            await Conversation(client, agent, f"{steps}-{agent}-{n}").create() for n, (agent, steps) in enumerate(kinds)
        ]
        turns = [Turn() for _ in kinds]
        tasks = [
            asyncio.create_task(conversation.turn(*STEPS[steps], turn=turn))
            for conversation, turn, (_, steps) in zip(conversations, turns, kinds, strict=True)
        ]
        await _all_write(turns)
        await _stop(run, daemon, conversations, tasks)
        await _restart(run, daemon, conversations)
    await run.case("SIGTERM while agents start", lambda: _while_starting(run))


async def _all_write(turns: list[Turn]) -> None:
    async with asyncio.timeout(BOUND * 8):
        while not all("<" in turn.text for turn in turns):
            await asyncio.sleep(0.02)


async def _stop(run: Run, daemon: Daemon, conversations: list[Conversation], tasks: list[asyncio.Task[Turn]]) -> None:
    code, seconds = await daemon.end()
    run.record("exit", [] if code == 0 and seconds <= BOUND else [f"exit code {code} after {seconds:.1f} s"])
    for conversation, turn in zip(conversations, await asyncio.gather(*tasks), strict=True):
        problems = oracles.ends_once(turn.frames)
        if turn.stop and turn.stop["stopReason"] != "error":
            problems.append(f"the turn ended with {turn.stop}")
        run.record(f"turn {conversation.name}", problems)
    run.record("processes", await daemon.none_left(0.5))


async def _restart(run: Run, daemon: Daemon, conversations: list[Conversation]) -> None:
    await daemon.start()
    async with daemon.client() as client:
        for conversation in conversations:
            conversation.client = client
            # Memory for the histories of floods is not what this campaign measures.
            check = conversation.check_log if "flood" in conversation.name else conversation.check
            await run.case(f"restart {conversation.name}", check)


async def _while_starting(run: Run) -> list[str]:
    async with run.daemon() as daemon, daemon.client() as client:
        conversations = [await Conversation(client, "slow", f"starts{n}").create() for n in range(5)]
        tasks = [asyncio.create_task(conversation.turn(["text", 1, 0])) for conversation in conversations]
        async with asyncio.timeout(BOUND * 4):
            while len(daemon.started("agent")) < len(tasks):
                await asyncio.sleep(0.02)
        code, seconds = await daemon.end()
        problems = [] if code == 0 and seconds <= BOUND else [f"exit code {code} after {seconds:.1f} s"]
        for turn in await asyncio.gather(*tasks):
            if turn.status not in (409, 500, 503) and not turn.stop:
                problems.append(f"a request without an answer: {turn.status} {turn.body} {turn.broken}")
        problems += await daemon.none_left(0.5)
        return problems + [f"given although it was stopped: {entry['id']}" for entry in daemon.prompts()]
