"""The stored history is at every commit what the stored events complete: a kill after any commit leaves no difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.messages import ToolMessage
from gateway.events import event_log
from gateway.events.log_entries import TurnStart, decode
from gateway.events.messages import Fold
from gateway.store.sql import Connection
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import create_session, get_history, send_turn
from tests.support.stores import before_commits

WriteScenario = Callable[..., str]
TOOL = {"name": "ask", "description": "Asks.", "inputSchema": {"type": "object"}}
LOOKUP = {"id": "r", "name": "lookup", "input": {"query": "a"}, "result": "b"}


def folded(connection: Connection, session: str) -> list[str]:
    """Return the messages that the stored events of a session complete, those of its clients included."""
    bodies = connection.values("SELECT body FROM events WHERE log_id = :session ORDER BY first", {"session": session})
    fold, found = Fold(), []
    for line in (line for body in bodies for line in body.split(b"\n")):
        one = decode(line)
        if isinstance(one, TurnStart):
            found += one.messages
            for message in one.messages:
                if isinstance(message, ToolMessage):
                    fold.answer(message.tool_call_id)
        found += fold.feed(one)
    return [message.model_dump_json() for message in found]


@contextmanager
def compared_commits() -> Iterator[list[tuple[list[str], list[str]]]]:
    """Before each commit, add for every session its stored history and the one that its events complete to the list."""
    found: list[tuple[list[str], list[str]]] = []

    def check(connection: Connection) -> None:
        query = "SELECT body FROM messages WHERE session_id = :session ORDER BY position"
        for session in connection.values("SELECT id FROM sessions"):
            found.append((connection.values(query, {"session": session}), folded(connection, session)))

    with before_commits(check):
        yield found


def text_messages(count: int) -> Sequence[Any]:
    return [step for n in range(count) for step in ({"events": {"count": 20, "text": f"{n}.{{n}} "}}, {"message_end": True})]


@pytest.mark.parametrize("row_bytes", [1000, event_log.ROW_BYTES])
async def test_history_is_what_the_events_complete_at_every_commit(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch, row_bytes: int
) -> None:
    monkeypatch.setattr(event_log, "ROW_BYTES", row_bytes)
    name = write_scenario(
        {"when": "flood", "steps": text_messages(20)},
        {"when": "tools", "steps": [{"text": "I read."}, {"tool_call": LOOKUP}, {"app_tool": {"name": "ask"}}, {"text": "done"}]},
        [{"text": "ok"}],
    )
    with compared_commits() as commits:
        answer = await create_session(
            portico.client, options={"scenario": name}, tools=[TOOL], grants=[{"name": "lookup", "trust": True}]
        )
        session = answer["sessionId"]
        await send_turn(portico.client, session, "flood")
        calls = await send_turn(portico.client, session, "tools")
        assert calls["stopReason"] == "tool_use"
        [call] = [
            block
            for message in calls["messages"]
            if message["role"] == "assistant"
            for block in message["content"]
            if block["type"] == "tool_use" and block["name"] == "ask"
        ]
        await send_turn(portico.client, session, {"role": "tool", "toolCallId": call["toolCallId"], "content": "yes"})
        assert (await send_turn(portico.client, session, "tools"))["stopReason"] == "tool_use"
        # The pending call is cancelled.
        await send_turn(portico.client, session, "again")
    assert [stored for stored, expected in commits if stored != expected] == []
    assert len(commits[-1][0]) == len(await get_history(portico.client, session)) > 30


async def test_history_is_what_the_events_complete_while_a_suspended_run_is_resumed(
    tmp_path: Path, write_scenario: WriteScenario
) -> None:
    """The client denies the call, and another gateway continues the run with a fresh agent."""
    shell = {"id": "s", "name": "shell", "input": {"command": "ls"}, "ask": True}
    name = write_scenario([{"text": "I ask."}, {"tool_call": shell}, {"text": "done"}], [{"text": "ok"}])
    with compared_commits() as commits:
        async with run_gateway(gateway_config(tmp_path)) as running:
            answer = await create_session(running.client, options={"scenario": name}, grants=[{"name": "shell"}])
            assert answer["stopReason"] == "tool_use", answer
            session = answer["sessionId"]
        async with run_gateway(gateway_config(tmp_path)) as running:
            denied = {"role": "tool_permission", "toolCallId": "s", "granted": False, "reason": "no"}
            assert (await send_turn(running.client, session, denied))["stopReason"] == "end_turn"
            assert (await send_turn(running.client, session, "go"))["stopReason"] == "end_turn"
    assert [stored for stored, expected in commits if stored != expected] == []
