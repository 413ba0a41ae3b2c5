"""Clients that disconnect or read slowly: no event is lost, and the daemon's memory does not grow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.aap_client import AapClient
from tests.support.daemon import KEY, Daemon
from tests.support.requests import agent_processes, create_session, user_message
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
TEXT = "".join(f"event {n} " for n in range(5000))


async def test_disconnected_stream_client_finds_the_whole_turn_in_the_history(
    aap: AapClient, write_scenario: WriteScenario
) -> None:
    steps = [{"text": "begun "}, {"events": 5000}, {"thinking": "so"}, {"text": "end"}]
    session = (await aap.create_session(options={"scenario": write_scenario({"when": "go", "steps": steps}, [{"text": "a"}])}))[
        "sessionId"
    ]
    for mode in ("delta", "message"):
        body = {"messages": [user_message("go")], "stream": mode}
        async with aap.http.stream("POST", aap.turns(session), json=body) as answer:
            async for _ in answer.aiter_text():
                break
        found = await aap.wait_until_idle(session)
        assert found["stopReason"] == "end_turn"
        first, thought, last = found["history"]["full"][-1]["content"]
        assert (first["text"], thought["thinking"], last["text"]) == (f"begun {TEXT}", "so", "end")
        assert (await aap.send_turn(session, "next"))["stopReason"] == "end_turn"


async def test_disconnected_json_client_finds_the_whole_turn_in_the_history(
    aap: AapClient, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    name = write_scenario({"when": "go", "steps": [{"wait_for_file": "left"}, {"text": "whole"}]}, [{"text": "a"}])
    session = (await aap.create_session(options={"scenario": name}))["sessionId"]
    request = asyncio.create_task(aap.post(session, {"messages": [user_message("go")]}))
    await wait_until(lambda: _is_running(aap, session))
    request.cancel()
    await asyncio.wait([request])
    (tmp_path / "scenes" / "left").touch()
    found = await aap.wait_until_idle(session)
    assert found["history"]["full"][2:] == [user_message("go"), {"role": "assistant", "content": "whole"}]


async def _is_running(aap: AapClient, session: str) -> bool:
    return bool((await aap.get_session(session))["state"] == "running")


async def test_ten_thousand_events_are_sent_in_order(aap: AapClient, write_scenario: WriteScenario) -> None:
    name = write_scenario({"when": "go", "steps": [{"events": {"count": 10_000, "text": "{n} "}}]}, [{"text": "a"}])
    session = (await aap.create_session(options={"scenario": name}))["sessionId"]
    events = (await aap.stream_turn(session, user_message("go"), stream="delta"))[1:]
    assert [data["delta"] for _, data in events[:-1]] == [f"{n} " for n in range(10_000)]
    assert events[-1] == ("turn_stop", {"stopReason": "end_turn"})
    assert (await aap.get_history(session))[-1]["content"] == "".join(f"{n} " for n in range(10_000))


@pytest.mark.long
async def test_slow_reader_gets_all_events_without_memory_growth(daemon: Daemon, write_scenario: WriteScenario) -> None:
    """Sends 150 MB to a client that reads nothing until the agent has written all its output, and then reads small chunks."""
    await daemon.start()
    steps = [{"events": {"count": 500, "text": "{n} " + "x" * 10_000}}, {"message_end": True}] * 30
    name = write_scenario({"when": "go", "steps": steps}, [{"text": "a"}])
    async with daemon.client() as client:
        session = (await create_session(client, options={"scenario": name}))["sessionId"]
        process = psutil.Process(daemon.pid)
        before = process.memory_info().rss
        body = json.dumps({"messages": [user_message("go")], "stream": "delta"}).encode()
        host, port = daemon.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
        writer.write(
            f"POST /session/{session} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        (agent,) = agent_processes(daemon.pid)
        await wait_until(lambda: _output_written(agent, process), 60)
        grown = process.memory_info().rss - before
        received = bytearray()
        while chunk := await reader.read(3000 if len(received) < 3_000_000 else 1_000_000):
            received += chunk
        writer.close()
        await writer.wait_closed()
    head, _, chunked = bytes(received).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    numbers = [int(part.split(b" ", 1)[0]) for part in _unchunk(chunked).split(b'"delta":"')[1:]]
    assert numbers == list(range(500)) * 30
    assert grown < 100_000_000, f"{grown / 1e6:.0f} MB more"
    assert await daemon.stop() == 0


def _output_written(agent: psutil.Process, process: psutil.Process) -> bool:
    return process.memory_info().rss > 0 and agent.io_counters().write_chars > 150_000_000


def _unchunk(data: bytes) -> bytes:
    parts, at = [], 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        parts.append(data[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(parts)
