"""Process trees: whatever an agent has started is gone when its run, its session or its daemon has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import httpx

from tests.faults.acp_client import AcpConnection
from tests.faults.agent import KINDS
from tests.faults.campaign import Run
from tests.faults.daemon import BOUND, Conversation, Daemon, is_running, prompt

CLEAN_AGENT = "clean-agent"
"""The agent itself has lost the gateway's variables, by `exec env -i`; its child is a plain one."""
TREES = (*KINDS, CLEAN_AGENT)
NAMELESS = ("clean", "setsid-clean", "orphan")
"""When the agent and its daemon are gone, nothing says where these came from (docs/decisions/process-trees.md)."""
TREE_SECONDS = 40.0
"""A tree whose end takes longer has failed."""


async def trees(run: Run) -> None:
    """Trees of processes {plain, clean environment, setsid, double fork, orphan, ignores TERM, exec env -i} x eight ends."""
    await run.concurrently([partial(_one_end, run, name, end) for name, end in ENDS.items()], 3)


async def _one_end(run: Run, name: str, end: End) -> None:
    """Run one end with all trees at the same time, in one daemon. Each tree counts as a case."""
    async with run.daemon() as daemon:
        for tree, problems in (await end(daemon)).items():
            run.record(f"{tree} x {name}" if tree in TREES else f"{name}: {tree}", problems)


async def _gone(daemon: Daemon, tree: str, agent_pids: set[int], seconds: float = BOUND) -> list[str]:
    """Wait until the process of this tree, and these agents, are gone."""
    deadline = time.monotonic() + seconds
    pids = [*daemon.started(tree), *agent_pids]
    if not daemon.started(tree):
        return ["the process was not started"]
    while (left := [pid for pid in pids if is_running(pid, daemon.home)]) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return [f"left running after {seconds:g} s: {left}"] if left else []


def _seconds(tree: str) -> float:
    """How long a tree may run on. An orphan without the variable ends with the last older agent of the daemon."""
    return BOUND if tree == "orphan" else 1.0


def _agents_of(daemon: Daemon, prompt_id: str) -> set[int]:
    """The agents that were given a prompt."""
    return {entry["pid"] for entry in daemon.prompts() if entry["id"] == prompt_id}


async def _spawned(client: httpx.AsyncClient, tree: str, *then: list[object], **fields: Any) -> Conversation:
    """A session whose agent has started the tree and is still in its turn."""
    conversation = await Conversation(client, "clean" if tree == CLEAN_AGENT else "stubborn", tree).create()
    steps: list[list[object]] = [["spawn", tree], *(then or [["hang"]])]
    first = f"<{tree}-1:0>"
    # The turn runs on without its client, unless `on_disconnect` is set.
    turn = await conversation.turn(*steps, until=first, **fields)
    if turn.status != 200 or first not in turn.text:
        raise RuntimeError(f"the turn did not start: {turn.status} {turn.body} {turn.broken} {turn.text}")
    return conversation


async def _each(
    daemon: Daemon, end: Callable[[httpx.AsyncClient, str], Awaitable[list[str]]], trees: Sequence[str] = TREES
) -> dict[str, list[str]]:
    """Apply an end to every tree concurrently."""
    async with daemon.client() as client:

        async def one(tree: str) -> list[str]:
            try:
                async with asyncio.timeout(TREE_SECONDS):
                    return await end(client, tree)
            except Exception as error:
                return [f"{type(error).__name__}: {error}"]

        return dict(zip(trees, await asyncio.gather(*(one(tree) for tree in trees)), strict=True))


async def _timed(call: Awaitable[httpx.Response], *statuses: int) -> list[str]:
    """The call is answered within the bound, with one of these statuses."""
    began = time.monotonic()
    try:
        answer = await call
    except httpx.HTTPError as error:
        return [f"{type(error).__name__} after {time.monotonic() - began:.1f} s"]
    problems = [] if answer.status_code in statuses else [f"{answer.status_code} {answer.text}"]
    seconds = time.monotonic() - began
    return problems + ([f"answered after {seconds:.1f} s"] if seconds > BOUND else [])


async def _cancel(daemon: Daemon) -> dict[str, list[str]]:
    async def end(client: httpx.AsyncClient, tree: str) -> list[str]:
        conversation = await _spawned(client, tree)
        problems = await _timed(client.post(f"/session/{conversation.id}/cancel"), 200)
        problems += await _gone(daemon, tree, _agents_of(daemon, f"{tree}-1"), _seconds(tree))
        return problems + await conversation.check(1)

    return await _each(daemon, end)


async def _delete(daemon: Daemon) -> dict[str, list[str]]:
    async def end(client: httpx.AsyncClient, tree: str) -> list[str]:
        conversation = await _spawned(client, tree)
        problems = await _timed(client.delete(f"/session/{conversation.id}"), 204)
        return problems + await _gone(daemon, tree, _agents_of(daemon, f"{tree}-1"), _seconds(tree))

    return await _each(daemon, end)


async def _own_exit(daemon: Daemon) -> dict[str, list[str]]:
    async def end(client: httpx.AsyncClient, tree: str) -> list[str]:
        conversation = await Conversation(client, "clean" if tree == CLEAN_AGENT else "faulty", tree).create()
        turn = await conversation.turn(["spawn", tree], ["exit", 3])
        problems = [] if turn.stop and turn.stop["stopReason"] == "error" else [f"the turn ended with {turn.stop}"]
        problems += await _gone(daemon, tree, _agents_of(daemon, f"{tree}-1"))
        return problems + await conversation.check(1)

    return await _each(daemon, end)


async def _task_end(daemon: Daemon) -> dict[str, list[str]]:
    async def end(client: httpx.AsyncClient, tree: str) -> list[str]:
        agent = "clean" if tree == CLEAN_AGENT else "faulty"
        task = prompt(f"{tree}-1", ["spawn", tree])["content"]
        answer = await client.post("/v1/execute", json={"driver": agent, "task": task})
        problems = [] if '"exit_code":0' in answer.text else [f"the task ended with {answer.text[-200:]}"]
        return problems + await _gone(daemon, tree, _agents_of(daemon, f"{tree}-1"))

    return await _each(daemon, end)


async def _socket_drop(daemon: Daemon) -> dict[str, list[str]]:
    async def end(client: httpx.AsyncClient, tree: str) -> list[str]:
        conversation = await _spawned(client, tree, on_disconnect="cancel")
        problems = await _gone(daemon, tree, _agents_of(daemon, f"{tree}-1"))
        return problems + await conversation.check(1)

    return await _each(daemon, end)


async def _sigterm(daemon: Daemon) -> dict[str, list[str]]:
    async def end(client: httpx.AsyncClient, tree: str) -> list[str]:
        await _spawned(client, tree)
        return []

    found = await _each(daemon, end)
    code, seconds = await daemon.end()
    for tree, problems in found.items():
        problems += await _gone(daemon, tree, _agents_of(daemon, f"{tree}-1"), 0.5)
    found["exit"] = [] if code == 0 and seconds <= BOUND else [f"exit code {code} after {seconds:.1f} s"]
    return found


async def _kill(daemon: Daemon) -> dict[str, list[str]]:
    conversations: dict[str, Conversation] = {}

    async def end(client: httpx.AsyncClient, tree: str) -> list[str]:
        conversations[tree] = await _spawned(client, tree)
        return []

    found = await _each(daemon, end, [tree for tree in TREES if tree not in NAMELESS])
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client:
        for tree, problems in found.items():
            problems += await _gone(daemon, tree, _agents_of(daemon, f"{tree}-1"))
            if tree in conversations:
                conversations[tree].client = client
                problems += await conversations[tree].check(1)
    return found


async def _close_and_drop(daemon: Daemon) -> dict[str, list[str]]:
    """ACP `session/close`, with the socket dropped while it is handled."""

    async def end(client: httpx.AsyncClient, tree: str) -> list[str]:
        connection = await AcpConnection.open(daemon, "clean" if tree == CLEAN_AGENT else "stubborn")
        session = await connection.open_session(str(daemon.work))
        steps = prompt(f"{tree}-1", ["spawn", tree], ["hang"])["content"]
        answer = connection.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": steps}])
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        while f"<{tree}-1:0>" not in str(connection.updates):
            await asyncio.sleep(0.02)
        closed = connection.send("session/close", sessionId=session)
        closed.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0.03 if TREES.index(tree) % 2 else 0.5)
        connection.drop()
        problems = await _gone(daemon, tree, _agents_of(daemon, f"{tree}-1"))
        conversation = Conversation(client, name=tree)
        conversation.id, conversation.prompts = session, 1
        return problems + await conversation.check(1)

    return await _each(daemon, end)


End = Callable[[Daemon], Awaitable[dict[str, list[str]]]]
ENDS: dict[str, End] = {
    "cancel": _cancel,
    "delete": _delete,
    "own exit": _own_exit,
    "task end": _task_end,
    "SIGTERM": _sigterm,
    "kill -9": _kill,
    "socket drop": _socket_drop,
    "close and drop": _close_and_drop,
}
