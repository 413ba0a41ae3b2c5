"""Jumps of the system time, as the daemon sees it: durations must not depend on it."""

from __future__ import annotations

import asyncio

import httpx

from tests.faults import oracles
from tests.faults.campaign import Run
from tests.faults.daemon import BOUND, Conversation, Daemon, Turn

HOUR, DAY = 3600.0, 86400.0
JUMPS = {"an hour forward": HOUR, "an hour back": -HOUR, "ten years forward": 3650 * DAY, "ten years back": -3650 * DAY}
QUICK_JUMPS = ("an hour back", "ten years forward")
LIMITS = {"idle": 5.0, "total": 60.0, "answer": 7200.0}


async def clock(run: Run) -> None:
    """The system time jumps by an hour and by ten years in a turn, while a call is pending, and at a restart."""
    for name, seconds in JUMPS.items():
        if run.quick and name not in QUICK_JUMPS:
            continue
        async with run.daemon(start=False, faults=True, limits=LIMITS) as daemon:
            daemon.inject(clock=0.0)
            await daemon.start()
            for problem_of, problems in (await _jump(daemon, seconds)).items():
                run.record(f"{name}: {problem_of}", problems)


async def _jump(daemon: Daemon, seconds: float) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    async with daemon.client() as client:
        streaming = await Conversation(client, name="streaming").create()
        waiting = await Conversation(client, name="waiting").create()
        await waiting.turn(["ask"], ["text", 2, 0])
        keyed = await streaming.turn(["text", 2, 0], key="key-1")
        turn = Turn(prompt=streaming.next_prompt())
        task = asyncio.create_task(streaming.turn(["text", 30, 0.1], turn=turn, prompt_id=turn.prompt))
        async with asyncio.timeout(BOUND * 4):
            while turn.text.count("<") < 3:
                await asyncio.sleep(0.01)
        daemon.inject(clock=seconds)
        await task
        found["turn in progress"] = oracles.answers_only(turn.prompt, turn.text, 30) + _ended(turn)
        found["next turns"] = await streaming.check()
        repeated = await streaming.turn(["text", 2, 0], key="key-1", prompt_id=keyed.prompt)
        found["idempotency key"] = (
            [] if repeated.frames == keyed.frames else [f"{repeated.status} {repeated.body} {repeated.text}"]
        )
        found["ready"] = await _ready(client)
        answered = await waiting.answer("waiting-1-call-0")
        found["pending call"] = oracles.answers_only("waiting-1", answered.text, 2) + _ended(answered)
        # Suspended over the restart. An hour is less than limits.answer.
        waits = (await waiting.turn(["ask"], ["text", 2, 0])).prompt
    await daemon.kill()
    found["processes after kill -9"] = []
    daemon.inject(clock=seconds * 2 if abs(seconds) <= HOUR else seconds)
    await daemon.start()
    found["processes after kill -9"] = await daemon.none_left()
    async with daemon.client() as client:
        streaming.client = waiting.client = client
        answered = await waiting.answer(f"{waits}-call-0")
        if answered.status != 200:
            found["suspended call"] = [f"{answered.status} {answered.body}"]
        found["restart"] = await streaming.check() + await waiting.check()
    found["prompts are given once"] = oracles.given_once(daemon.prompts())
    code, took = await daemon.end()
    found["SIGTERM"] = [] if code == 0 and took <= BOUND else [f"exit code {code} after {took:.1f} s"]
    return found


def _ended(turn: Turn) -> list[str]:
    return (
        []
        if turn.stop and turn.stop["stopReason"] == "end_turn"
        else [f"the turn ended with {turn.status} {turn.body} {turn.stop}"]
    )


async def _ready(client: httpx.AsyncClient) -> list[str]:
    answer = await client.get("/readyz")
    return [] if answer.status_code == 200 else [f"{answer.status_code} {answer.text}"]
