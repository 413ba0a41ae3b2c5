"""`idempotency_key` of `POST /v1/execute`: a task runs once, and each request with its key gets the whole stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from gateway.runs.idempotency import IdempotencyKey
from gateway.store import EventRow, RunRecord
from tests.conftest import write_config
from tests.support.cluster import nodes_of
from tests.support.daemon import Daemon, RunningGateway, gateway_config
from tests.support.requests import agent_processes, execute, expect_error, is_alive, read_pid
from tests.support.sse import parse_output_events
from tests.support.stores import content as stored_content
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
EVENTS = [{"events": 3000}, {"stderr": "not sent"}, {"text": "end"}]
TASK = {"driver": "script", "task": "do it", "idempotency_key": "job-1"}


@pytest.fixture
async def started(portico: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The markers of the processes that the gateway starts."""
    marks: list[str] = []
    for gateway in nodes_of(portico.gateway):
        processes = gateway.store.processes

        async def collect(
            marker: str, pid: int, created: float, record: Callable[..., Awaitable[None]] = processes.started
        ) -> None:
            marks.append(marker)
            await record(marker, pid, created)

        monkeypatch.setattr(processes, "started", collect)
    return marks


@pytest.mark.usefixtures("each_store")
async def test_concurrent_requests_with_one_key_run_once(
    portico: RunningGateway, play: Callable[..., None], started: list[str], tmp_path: Path
) -> None:
    play([{"text": "begin"}, {"write_file": {"path": "began", "text": "x"}}, {"wait_for_file": "go"}, *EVENTS])
    asking = [asyncio.create_task(portico.client.post("/v1/execute", json=TASK)) for _ in range(4)]
    await wait_until((tmp_path / "scenes" / "began").exists)
    (tmp_path / "scenes" / "go").touch()
    answers = [await one for one in asking]
    assert len({answer.text for answer in answers}) == 1
    found = parse_output_events(answers[0].text)
    assert found[0] == {"kind": "agent_token", "text": "begin"}
    assert found[-2:] == [{"kind": "agent_token", "text": "end"}, found[-1]]
    assert len(found) == 3003
    assert len(started) == 1


async def test_later_request_gets_the_stream_from_its_start(
    portico: RunningGateway, play: Callable[..., None], started: list[str], tmp_path: Path
) -> None:
    play([{"text": "begin"}, {"write_file": {"path": "began", "text": "x"}}, {"wait_for_file": "go"}, {"text": "end"}])
    first = asyncio.create_task(portico.client.post("/v1/execute", json=TASK))
    await wait_until((tmp_path / "scenes" / "began").exists)
    following = asyncio.create_task(portico.client.post("/v1/execute", json=TASK))
    await asyncio.sleep(0)
    (tmp_path / "scenes" / "go").touch()
    second = await following
    third = await portico.client.post("/v1/execute", json=TASK)
    assert (await first).text == second.text == third.text
    assert [frame.get("text") for frame in parse_output_events(third.text)] == ["begin", "end", None]
    assert len(started) == 1


async def test_disconnect_does_not_stop_the_run(
    portico: RunningGateway, play: Callable[..., None], started: list[str], tmp_path: Path
) -> None:
    play([{"text": "begin"}, {"wait_for_file": "go"}, *EVENTS, {"write_file": {"path": "ended", "text": "x"}}])
    async with portico.client.stream("POST", "/v1/execute", json=TASK) as answer:
        await anext(answer.aiter_bytes())
    (tmp_path / "scenes" / "go").touch()
    await wait_until((tmp_path / "scenes" / "ended").exists)
    found = await execute(portico.client, "do it", idempotency_key="job-1")
    assert (len(found), len(started)) == (3003, 1)
    assert found[-1]["exit_code"] == 0


async def test_last_event_id_returns_the_remaining_frames_with_ids(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([{"text": "begin"}, {"events": 20}, {"text": "end"}])
    plain = (await portico.client.post("/v1/execute", json=TASK)).text

    async def after(event_id: str) -> list[str]:
        answer = await portico.client.post("/v1/execute", json=TASK, headers={"Last-Event-ID": event_id})
        assert answer.status_code == 200, answer.text
        return answer.text.split("\n\n")[:-1]

    whole = await after("0")
    assert [block.split("\n")[0] for block in whole] == plain.split("\n\n")[:-1]
    for index, block in enumerate(whole):
        assert await after(block.split("\nid: ")[1]) == whole[index + 1 :]
    await expect_error(portico.client.post("/v1/execute", json=TASK, headers={"Last-Event-ID": "x"}), 400)


async def test_same_key_with_another_request_is_refused(portico: RunningGateway, started: list[str]) -> None:
    for change in ({"task": "do that"}, {"driver": "echo"}, {"model": "other"}):
        await execute(portico.client, **TASK, model="m")
        text = await expect_error(portico.client.post("/v1/execute", json=TASK | {"model": "m"} | change), 409)
        assert "idempotency key" in text, change
        assert len(started) == 1, change
    # Different keys run separately.
    for key in ("job-2", "job-3", "JOB-2", "job-2 ", "x" * 1024, None, None):
        assert (await execute(portico.client, "hi", "echo", **({"idempotency_key": key} if key else {})))[0]["text"] == "hi"
    assert len(started) == 8


async def test_task_that_could_not_start_can_be_retried(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = portico.gateway.agents.get("script").settings.options
    monkeypatch.setitem(options, "cwd", "later")
    await expect_error(portico.client.post("/v1/execute", json=TASK), 400)
    (tmp_path / "scenes" / "later").mkdir()
    assert (await execute(portico.client, **TASK))[-1]["exit_code"] == 0


async def test_key_in_body_or_header_is_the_same_request(portico: RunningGateway, started: list[str]) -> None:
    key = portico.client.headers.pop("Authorization").removeprefix("Bearer ")
    answers = [
        await portico.client.post("/v1/execute", json=TASK | {"auth_token": key}),
        await portico.client.post("/v1/execute", json=TASK, headers={"Authorization": f"Bearer {key}"}),
    ]
    assert answers[0].text == answers[1].text
    assert len(started) == 1


async def _execute(client: httpx.AsyncClient) -> str:
    answer = await client.post("/v1/execute", json=TASK)
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_stream_is_kept_over_a_restart(daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path) -> None:
    _with_scenario(tmp_path, write_scenario(EVENTS))
    await daemon.start()
    async with daemon.client() as client:
        first = await _execute(client)
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client:
        assert await _execute(client) == first
        assert not agent_processes(daemon.pid)
        await expect_error(client.post("/v1/execute", json=TASK | {"task": "other"}), 409)


async def test_stream_of_a_killed_daemon_ends_with_an_error(
    daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    stray_process = {"seconds": 300, "new_session": True, "pid_file": "stray"}
    _with_scenario(
        tmp_path,
        write_scenario([{"text": "begin"}, {"events": 500}, {"spawn": stray_process}, {"text": "hanging"}, {"hang": True}]),
    )
    await daemon.start()
    async with daemon.client() as client, client.stream("POST", "/v1/execute", json=TASK) as answer:
        received = ""
        async for chunk in answer.aiter_text():
            received += chunk
            if "hanging" in received:
                break
        (agent,) = agent_processes(daemon.pid)
        stray = await read_pid(tmp_path / "scenes" / "stray")
        await wait_until(lambda: _stored(tmp_path))
        await daemon.kill()
    await daemon.start()
    assert not is_alive(agent.pid)
    assert not is_alive(stray)
    async with daemon.client() as client:
        again = await _execute(client)
        assert await _execute(client) == again
    found = parse_output_events(again)
    assert again.startswith(received.rsplit("\n\n", 1)[0])
    assert [frame["kind"] for frame in found[-3:]] == ["agent_token", "error", "session_end"]
    assert "stopped" in found[-2]["message"]
    assert found[-1]["exit_code"] != 0


async def test_stream_without_a_stored_end_ends_with_an_error(portico: RunningGateway) -> None:
    """The daemon was killed after it marked the run as ended and before it wrote the last events."""
    store = portico.gateway.store
    key = IdempotencyKey.of(None, "execute", "job-1", ["echo", "x", None])
    await store.runs.start(RunRecord("run", "exec", "ended", "end_turn", 1), key=key.record("exec", 1))
    await store.events.append(EventRow("exec", 1, 1, b'{"kind":"agent_token","text":"x"}'))
    for _ in range(2):
        found = await execute(portico.client, "x", "echo", idempotency_key="job-1")
        assert [frame["kind"] for frame in found] == ["agent_token", "error", "session_end"]
        assert found[-1]["exit_code"] != 0


async def test_stream_of_a_task_that_had_waited_is_whole(portico: RunningGateway) -> None:
    """The policy was asked about a call of the task."""
    store = portico.gateway.store
    key = IdempotencyKey.of(None, "execute", "job-1", ["echo", "x", None])
    await store.runs.start(RunRecord("run", "exec", "ended", "end_turn", 1), key=key.record("exec", 1))
    waiting = b'{"kind":"awaiting","calls":[{"id":"call-1","wants":"permission"}]}'
    for seq, event in enumerate((waiting, b'{"kind":"agent_token","text":"x"}', b'{"kind":"session_end","exit_code":0}'), 1):
        await store.events.append(EventRow("exec", seq, seq, event))
    found = await execute(portico.client, "x", "echo", idempotency_key="job-1")
    assert [frame["kind"] for frame in found][-2:] == ["agent_token", "session_end"]


def _stored(folder: Path) -> bool:
    return b"hanging" in stored_content(folder / "data")


def _with_scenario(folder: Path, name: str) -> None:
    entry = {"driver": "script", "cwd": str(folder / "scenes"), "options": {"scenario": name}}
    write_config(folder, gateway_config(folder, agents={"script": entry}))
