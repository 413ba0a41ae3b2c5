"""`kill -9` of the daemon in each phase of a turn, and during its own start; then a restart with the same data."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import httpx

from tests.faults import oracles
from tests.faults.campaign import Run
from tests.faults.daemon import BOUND, Client, Conversation, Daemon, Turn, prompt

REPETITIONS, STORED_FIRST_REPETITIONS, QUICK_REPETITIONS = 5, 3, 1
WORKERS = 4
QUICK_STORED_FIRST = ("streaming", "flooding", "turn end", "cancelling")
"""Phases with `--quick` and durability stored-first: events are on their way to clients."""
START_KILLS, QUICK_START_KILLS = 10, 3
DELAYS = {
    "idle": 0.05,
    "starting": 1.5,
    "prompted": 0.02,
    "answering": 0.03,
    "cancelling": 0.05,
    "deleting": 0.05,
    "turn end": 0.03,
}
"""The longest random time, in seconds, between the request of a phase and the kill."""


async def kills(run: Run, durability: str = "sent-first") -> None:
    """`kill -9` in eleven phases of a session, several times each."""
    count = QUICK_REPETITIONS if run.quick else REPETITIONS if durability == "sent-first" else STORED_FIRST_REPETITIONS
    phases = QUICK_STORED_FIRST if run.quick and durability == "stored-first" else tuple(PHASES)
    await run.concurrently([partial(_phase, run, phase, count, durability) for phase in phases], WORKERS)


async def _phase(run: Run, phase: str, count: int, durability: str) -> None:
    async with run.daemon(tables={"store": {"durability": durability}}) as daemon:
        for n in range(count):
            rng = run.random(phase, n)
            await run.case(f"{phase} {n + 1}", partial(_kill_in_phase, daemon, phase, n, rng), daemon)
            if not daemon.running:
                await daemon.start()


async def _kill_in_phase(daemon: Daemon, phase: str, n: int, rng: random.Random) -> list[str]:
    async with daemon.client() as client:
        # Its history must be as it was; and it is not the only session.
        other = await Conversation(client, name=f"other{n}").create()
        await other.turn(["text", 3, 0])
        agent = "slow" if phase == "starting" else "faulty"
        conversation = await Conversation(client, agent, f"{phase.replace(' ', '-')}{n}").create()
        if phase not in ("starting", "prompted"):
            await conversation.turn(["text", 3, 0], ["end_message"], ["text", 2, 0])
        pending = await PHASES[phase](client, conversation, rng)
        if phase in DELAYS:
            await asyncio.sleep(rng.uniform(0, DELAYS[phase]))
        await daemon.kill()
        for task in pending:
            with suppress(httpx.HTTPError):
                await task
    await daemon.start()
    async with daemon.client() as client:
        problems = await daemon.none_left()
        other.client = conversation.client = client
        problems += await after_kill(phase, conversation)
        problems += [f"another session: {text}" for text in await other.check(1)]
    return problems + oracles.given_once(daemon.prompts())


async def after_kill(phase: str, conversation: Conversation) -> list[str]:
    """The session goes on: its pending call is answered, its key is honoured, and the next turns work."""
    answer = await conversation.client.get(f"/session/{conversation.id}")
    if phase == "deleting" and answer.status_code == 404:
        return []
    if answer.status_code != 200:
        return [f"GET /session: {answer.status_code} {answer.text}"]
    problems = []
    if answer.json()["x-portico"]["state"] == "waiting":
        turn = await conversation.answer(f"{conversation.name}-{conversation.prompts}-call-0")
        if turn.status != 200 or "<go-on:0>" not in turn.text:
            problems.append(f"the answer after the restart: {turn.status} {turn.body} {turn.text} {turn.stop}")
    elif phase == "waiting":
        problems.append("the session does not wait any more")
    elif phase in KEYED:
        problems += await _retry(conversation)
    return problems + await conversation.check()


async def _retry(conversation: Conversation) -> list[str]:
    """The same request with the same key is accepted; `given_once` and the log show whether it ran twice."""
    name = f"{conversation.name}-{conversation.prompts}"
    turn = await conversation.turn(*STEPS, prompt_id=name, key=name)
    if turn.status != 200:
        return [f"the repeated request: {turn.status} {turn.body} {turn.broken}"]
    return oracles.ends_once(turn.frames) + oracles.answers_only(name, turn.text)


STEPS: tuple[list[object], ...] = (["text", 20, 0.005], ["end_message"], ["text", 100, 0.005])
KEYED = ("starting", "prompted", "streaming", "turn end")
Requests = list["asyncio.Task[Turn] | asyncio.Task[httpx.Response]"]
"""Requests that are in progress when the daemon is killed."""
Phase = Callable[[Client, Conversation, random.Random], Awaitable[Requests]]


def _keyed_turn(conversation: Conversation, turn: Turn | None = None) -> asyncio.Task[Turn]:
    name = conversation.next_prompt()
    # A repeated request must have the same body.
    return asyncio.create_task(conversation.turn(*STEPS, prompt_id=name, key=name, turn=turn))


async def _text(turn: Turn, count: int) -> None:
    """Wait until so many texts have come."""
    async with asyncio.timeout(BOUND * 4):
        while turn.text.count("<") < count and not turn.stop:
            await asyncio.sleep(0.001)


async def _idle(client: Client, conversation: Conversation, rng: random.Random) -> Requests:
    return []


async def _creating(client: Client, conversation: Conversation, rng: random.Random) -> Requests:
    body = {"agent": {"name": "faulty"}, "messages": [prompt(f"created-{conversation.name}")]}
    task = asyncio.create_task(client.put("/session", json=body))
    await asyncio.sleep(rng.uniform(0, 0.1))
    return [task]


async def _begun(client: Client, conversation: Conversation, rng: random.Random) -> Requests:
    return [_keyed_turn(conversation)]


async def _streaming(client: Client, conversation: Conversation, rng: random.Random) -> Requests:
    turn = Turn()
    task = _keyed_turn(conversation, turn)
    await _text(turn, rng.randint(1, 110))
    return [task]


async def _flooding(client: Client, conversation: Conversation, rng: random.Random) -> Requests:
    turn = Turn()
    task = asyncio.create_task(conversation.turn(["flood", 20_000, 200], ["end_message"], ["flood", 20_000, 200], turn=turn))
    await _text(turn, rng.randint(1, 2000))
    return [task]


async def _turn_end(client: Client, conversation: Conversation, rng: random.Random) -> Requests:
    turn = Turn()
    task = _keyed_turn(conversation, turn)
    await _text(turn, 119)
    return [task]


async def _ask(conversation: Conversation) -> str:
    """A turn that waits for permission; the id of its call."""
    turn = await conversation.turn(["text", 2, 0], ["ask"], ["text", 30, 0.002])
    if not turn.stop or turn.stop["stopReason"] != "tool_use":
        raise RuntimeError(f"the turn does not wait: {turn}")
    return f"{turn.prompt}-call-0"


async def _waiting(client: Client, conversation: Conversation, rng: random.Random) -> Requests:
    await _ask(conversation)
    await asyncio.sleep(rng.uniform(0, 0.05))
    return []


async def _answering(client: Client, conversation: Conversation, rng: random.Random) -> Requests:
    call = await _ask(conversation)
    return [asyncio.create_task(conversation.answer(call))]


async def _cancelling(client: Client, conversation: Conversation, rng: random.Random) -> Requests:
    turn = Turn()
    task = _keyed_turn(conversation, turn)
    await _text(turn, rng.randint(1, 50))
    return [task, asyncio.create_task(client.post(f"/session/{conversation.id}/cancel"))]


async def _deleting(client: Client, conversation: Conversation, rng: random.Random) -> Requests:
    turn = Turn()
    task = _keyed_turn(conversation, turn)
    await _text(turn, rng.randint(1, 50))
    return [task, asyncio.create_task(client.delete(f"/session/{conversation.id}"))]


PHASES: dict[str, Phase] = {
    "idle": _idle,
    "creating": _creating,
    "starting": _begun,
    "prompted": _begun,
    "streaming": _streaming,
    "flooding": _flooding,
    "turn end": _turn_end,
    "waiting": _waiting,
    "answering": _answering,
    "cancelling": _cancelling,
    "deleting": _deleting,
}


async def start_kills(run: Run) -> None:
    """`kill -9` during the start of the daemon, which has the rest of an earlier kill to clean up."""
    async with run.daemon() as daemon:
        for n in range(QUICK_START_KILLS if run.quick else START_KILLS):
            rng = run.random(n)
            failures = len(run.report.failures)
            await run.case(f"start {n + 1}", partial(_kill_at_start, daemon, n, rng), daemon)
            if len(run.report.failures) > failures and daemon.running:
                # It may not accept connections.
                await daemon.kill()
            if not daemon.running:
                await daemon.start()


async def _kill_at_start(daemon: Daemon, n: int, rng: random.Random) -> list[str]:
    async with daemon.client() as client:
        conversations = [await Conversation(client, name=f"start{n}-{m}").create() for m in range(3)]
        turns = [Turn() for _ in conversations]
        tasks = [_keyed_turn(each, turn) for each, turn in zip(conversations, turns, strict=True)]
        await asyncio.gather(*(_text(turn, rng.randint(1, 100)) for turn in turns))
        await daemon.kill()
        await asyncio.gather(*tasks)
    for _ in range(2):
        await daemon.spawn()
        await asyncio.sleep(rng.uniform(0.0, 1.2))
        await daemon.kill()
    await daemon.start()
    problems = await daemon.none_left()
    async with daemon.client() as client:
        for each in conversations:
            each.client = client
            problems += await after_kill("streaming", each)
    return problems + oracles.given_once(daemon.prompts())
