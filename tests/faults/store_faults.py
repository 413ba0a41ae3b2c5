"""A store whose writes fail: each write of each operation, once, and for longer than it is retried."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import httpx

from tests.faults import oracles
from tests.faults.acp_client import AcpConnection
from tests.faults.campaign import Run
from tests.faults.daemon import BOUND, Client, Conversation, Daemon, Turn, prompt

ERRORS = ("database or disk is full", "disk I/O error", "database is locked")
SECONDS = (0.0, 7.0)
"""How long all writes fail from the first one that does; 0: only that one. At the end of a run, writes are retried for 5 s."""
RETRY_SECONDS = 6.0
"""How much longer a call may take while the store fails: the gateway retries what it must not lose."""
WORKERS = 8
QUICK_CASES = {"sent-first": 18, "stored-first": 9}
IDLE = 0.3
"""Seconds without a write after which an operation has done all of its writes."""


async def store(run: Run, durability: str = "sent-first") -> None:
    """Each write x each operation {turn, answer, cancel, delete, close, SIGTERM} fails: once, and all from it on for 7 s."""
    writes: dict[str, int] = {}
    await run.concurrently([partial(_count_writes, run, name, durability, writes) for name in OPERATIONS], WORKERS)
    cases = [(name, n, seconds) for name in OPERATIONS for n in range(writes[name]) for seconds in SECONDS]
    if run.quick:
        cases = run.random("cases").sample(cases, min(len(cases), QUICK_CASES[durability]))
    # Long cases first, so that no worker is left alone with one.
    cases.sort(key=lambda case: -case[2])
    async with asyncio.TaskGroup() as group:
        queue = list(reversed(cases))
        for _ in range(WORKERS):
            group.create_task(_worker(run, queue, durability))


async def _worker(run: Run, queue: list[tuple[str, int, float]], durability: str) -> None:
    """Run cases in one daemon, which is replaced when it has ended or a case has failed."""
    while queue:
        async with run.daemon(faults=True, tables={"store": {"durability": durability}}) as daemon:
            failures = len(run.report.failures)
            while queue and daemon.running and len(run.report.failures) == failures:
                operation, n, seconds = queue.pop()
                how = "once" if not seconds else f"for {seconds:g} s"
                name = f"{operation}: write {n + 1} fails {how}"
                rng = run.random(operation, n, seconds)
                case = partial(_fault, daemon, operation, n, seconds, rng)
                await run.case(name, case)
                for failure in run.report.failures[failures:]:
                    if failure.case == name:
                        failure.problems.append(
                            f"the writes until it was answered: {', '.join(what for _, what in daemon.writes(daemon.fault_id))}"
                        )
                daemon.inject()


async def _count_writes(run: Run, operation: str, durability: str, found: dict[str, int]) -> None:
    """Do the operation without a fault and count its writes."""
    async with run.daemon(faults=True, tables={"store": {"durability": durability}}) as daemon, daemon.client() as client:
        prepared = await OPERATIONS[operation](daemon, client)
        plan = daemon.inject()
        await prepared.act()
        writes: list[tuple[int, str]] = []
        while len(writes) != len(writes := daemon.writes(plan)):
            await asyncio.sleep(IDLE)
        found[operation] = len(writes)
        with suppress(RuntimeError, httpx.HTTPError):
            await prepared.check()


async def _fault(daemon: Daemon, operation: str, n: int, seconds: float, rng: random.Random) -> list[str]:
    async with daemon.client() as client:
        prepared = await OPERATIONS[operation](daemon, client)
        if isinstance(prepared, StopFault) and seconds:
            # If the store still fails at shutdown, clients receive events that are not stored.
            for conversation in prepared.conversations:
                conversation.may_lose = True
        daemon.fault_id = daemon.inject(fail_after=n, seconds=seconds, error=rng.choice(ERRORS))
        began = time.monotonic()
        problems = await prepared.act()
        took = time.monotonic() - began
        if took > BOUND + (0 if operation == "SIGTERM" else min(seconds, RETRY_SECONDS)):
            problems.append(f"answered after {took:.1f} s")
        daemon.inject()
        problems += await prepared.check()
        problems += await daemon.none_left()
    return problems + oracles.given_once(daemon.prompts())


class Prepared:
    """An operation that is about to be done. `act` does it and returns when it is answered; `check` looks at what came of it."""

    async def act(self) -> list[str]:
        """Do it. The violations that its answers show."""
        raise NotImplementedError

    async def check(self) -> list[str]:
        """The violations that are left once the store works again."""
        raise NotImplementedError


def _answered(answer: httpx.Response | Turn | str, *statuses: int) -> list[str]:
    """An answer has one of these statuses, or is an error in words that a failing store explains."""
    if isinstance(answer, str):
        return [answer]
    status, text = (
        (answer.status, answer.body or answer.broken) if isinstance(answer, Turn) else (answer.status_code, answer.text)
    )
    return [] if status in (*statuses, 503) else [f"{status} {text}"]


async def _call(request: Awaitable[httpx.Response]) -> httpx.Response | str:
    try:
        return await request
    except httpx.HTTPError as error:
        return f"no answer: {type(error).__name__}: {error}"


class TurnFault(Prepared):
    """A turn of an idle session."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation

    async def act(self) -> list[str]:
        turn = await self.conversation.turn(["text", 2, 0.01], ["end_message"], ["text", 2, 0.01])
        return _turn_problems(turn)

    async def check(self) -> list[str]:
        return await self.conversation.check() + await _delete(self.conversation)


async def _delete(conversation: Conversation) -> list[str]:
    """Delete a session whose case is over: the daemon is used for others, which must find no process of this one."""
    answer = await _call(conversation.client.delete(f"/session/{conversation.id}"))
    if isinstance(answer, str):
        return [f"the delete after the fault: {answer}"]
    return [] if answer.status_code == 204 else [f"the delete after the fault: {answer.status_code} {answer.text}"]


def _turn_problems(turn: Turn) -> list[str]:
    """A turn that was refused, or that has ended once and has nothing of another."""
    if turn.status != 200:
        return _answered(turn, 200)
    broken = [turn.broken] if turn.broken else []
    return broken + oracles.ends_once(turn.frames) + (oracles.answers_only(turn.prompt, turn.text) if turn.prompt else [])


class AnswerFault(Prepared):
    """The answer to a pending call. Where it is refused, the call is still pending and is answered again."""

    def __init__(self, conversation: Conversation, call: str) -> None:
        self.conversation, self.call, self.refused = conversation, call, False

    async def act(self) -> list[str]:
        turn = await self.conversation.answer(self.call, Turn(prompt=""))
        self.refused = turn.status != 200
        return _answered(turn, 200) if self.refused else oracles.ends_once(turn.frames)

    async def check(self) -> list[str]:
        problems = []
        if self.refused:
            again = await self.conversation.answer(self.call, Turn(prompt=""))
            # An error after the decision was stored may have passed it on.
            if again.status not in (200, 400):
                problems.append(f"the answer after the fault: {again.status} {again.body}")
            if again.status == 400 and "answered already" not in again.body:
                problems.append(f"the answer after the fault is not pending any more: {again.body}")
        return problems + await self.conversation.check() + await _delete(self.conversation)


class CancelFault(Prepared):
    """A cancel of a turn in progress."""

    def __init__(self, conversation: Conversation, running: asyncio.Task[Turn]) -> None:
        self.conversation, self.running = conversation, running

    async def act(self) -> list[str]:
        answer = await _call(self.conversation.client.post(f"/session/{self.conversation.id}/cancel"))
        return _answered(answer, 200)

    async def check(self) -> list[str]:
        await _end(self.conversation)
        return _turn_problems(await self.running) + await self.conversation.check() + await _delete(self.conversation)


async def _end(conversation: Conversation) -> None:
    """Cancel what a refused call has left at work."""
    await conversation.client.post(f"/session/{conversation.id}/cancel")


class DeleteFault(Prepared):
    """A delete of a session with a turn in progress, or with a pending call."""

    def __init__(self, conversation: Conversation, running: asyncio.Task[Turn] | None) -> None:
        self.conversation, self.running = conversation, running
        self.deleted = False

    async def act(self) -> list[str]:
        answer = await _call(self.conversation.client.delete(f"/session/{self.conversation.id}"))
        self.deleted = isinstance(answer, httpx.Response) and answer.status_code == 204
        return _answered(answer, 204)

    async def check(self) -> list[str]:
        problems = []
        if not self.deleted:
            found = await self.conversation.session()
            if self.running is None and found["state"] != "waiting":
                problems.append(f"a refused delete has changed the session: it is {found['state']}, its call was pending")
            await _end(self.conversation)
            problems += await self.conversation.check()
            problems += await _delete(self.conversation)
        if self.running is not None:
            problems += _turn_problems(await self.running)
        answer = await self.conversation.client.get(f"/session/{self.conversation.id}")
        if answer.status_code != 404:
            problems.append(f"the deleted session: {answer.status_code}")
        return problems


class CloseFault(Prepared):
    """`session/close` of the Agent Client Protocol, with a prompt in progress."""

    def __init__(self, client: Client, session: str, connection: AcpConnection) -> None:
        self.session, self.connection = session, connection
        self.conversation = Conversation(client)
        self.conversation.id = session

    async def act(self) -> list[str]:
        try:
            async with asyncio.timeout(15):
                await self.connection.call("session/close", sessionId=self.session)
        except (TimeoutError, ConnectionError) as error:
            return [f"session/close: {type(error).__name__}"]
        return []

    async def check(self) -> list[str]:
        self.connection.drop()
        await _end(self.conversation)
        return await self.conversation.check() + await _delete(self.conversation)


class StopFault(Prepared):
    """SIGTERM of a daemon with three turns in progress and one pending call; then a restart."""

    def __init__(
        self, daemon: Daemon, working: list[tuple[Conversation, asyncio.Task[Turn]]], waiting: Conversation, call: str
    ) -> None:
        self.daemon, self.waiting, self.call = daemon, waiting, call
        self.conversations = [waiting, *(conversation for conversation, _ in working)]
        self.running = [task for _, task in working]

    async def act(self) -> list[str]:
        code, seconds = await self.daemon.end()
        problems = [] if code == 0 else [f"exit code {code} after {seconds:.1f} s"]
        for turn in [await task for task in self.running]:
            problems += _turn_problems(turn)
        return problems + await self.daemon.none_left(0.5)

    async def check(self) -> list[str]:
        await self.daemon.start()
        problems: list[str] = []
        async with self.daemon.client() as client:
            for conversation in self.conversations:
                conversation.client = client
                if conversation is self.waiting:
                    turn = await conversation.answer(self.call)
                    if turn.status != 200:
                        problems.append(f"the pending call after the restart: {turn.status} {turn.body}")
                problems += await conversation.check()
        await self.daemon.end()
        return problems


async def _working(client: Client) -> tuple[Conversation, asyncio.Task[Turn]]:
    """A session with a turn in progress."""
    conversation = await Conversation(client).create()
    turn = Turn(prompt=conversation.next_prompt())
    task = asyncio.create_task(
        conversation.turn(["text", 3, 0.01], ["end_message"], ["text", 500, 0.05], turn=turn, prompt_id=turn.prompt)
    )
    async with asyncio.timeout(BOUND * 4):
        while turn.text.count("<") < 5:
            await asyncio.sleep(0.01)
    return conversation, task


async def _prepare_turn(daemon: Daemon, client: Client) -> Prepared:
    conversation = await Conversation(client).create()
    await conversation.turn(["text", 1, 0])
    return TurnFault(conversation)


async def _prepare_first_turn(daemon: Daemon, client: Client) -> Prepared:
    return TurnFault(await Conversation(client).create())


async def _pending(client: Client) -> tuple[Conversation, str]:
    conversation = await Conversation(client).create()
    turn = await conversation.turn(["text", 2, 0], ["ask"], ["text", 2, 0.01])
    return conversation, f"{turn.prompt}-call-0"


async def _prepare_answer(daemon: Daemon, client: Client) -> Prepared:
    return AnswerFault(*await _pending(client))


async def _prepare_cancel(daemon: Daemon, client: Client) -> Prepared:
    return CancelFault(*await _working(client))


async def _prepare_delete(daemon: Daemon, client: Client) -> Prepared:
    return DeleteFault(*await _working(client))


async def _prepare_delete_waiting(daemon: Daemon, client: Client) -> Prepared:
    conversation, _ = await _pending(client)
    return DeleteFault(conversation, None)


async def _prepare_close(daemon: Daemon, client: Client) -> Prepared:
    connection = await AcpConnection.open(daemon, "faulty")
    session = await connection.open_session(str(daemon.work))
    name = f"acp-{session[-6:]}"
    steps = prompt(name, ["text", 500, 0.05])["content"]
    answer = connection.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": steps}])
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    async with asyncio.timeout(BOUND * 4):
        while f"<{name}" not in str(connection.updates):
            await asyncio.sleep(0.01)
    return CloseFault(client, session, connection)


async def _prepare_stop(daemon: Daemon, client: Client) -> Prepared:
    return StopFault(daemon, [await _working(client) for _ in range(3)], *await _pending(client))


OPERATIONS: dict[str, Callable[[Daemon, Client], Awaitable[Prepared]]] = {
    "first turn": _prepare_first_turn,
    "turn": _prepare_turn,
    "answer": _prepare_answer,
    "cancel": _prepare_cancel,
    "delete": _prepare_delete,
    "delete while a call is pending": _prepare_delete_waiting,
    "close": _prepare_close,
    "SIGTERM": _prepare_stop,
}
