"""`POST /v1/execute`: the fields and the order of the frames, and errors that precede the stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivers.runtime.cli_agent import CliAgent
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import execute, expect_error, is_alive, read_pid
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("also_in_a_cluster")
WriteScenario = Callable[..., str]


@pytest.fixture
def run(portico: RunningGateway, play: Callable[..., None]) -> Callable[..., Any]:
    """Executes a task on a scenario of one turn. The fields of the frames are checked in tests/documents."""

    async def found(*steps: Any, task: str = "do it", **fields: Any) -> list[dict[str, Any]]:
        play(list(steps))
        return await execute(portico.client, task, **fields)

    return found


def kinds_of(found: list[dict[str, Any]]) -> list[str]:
    return [frame["kind"] for frame in found]


async def test_echo_returns_the_task_verbatim(portico: RunningGateway) -> None:
    for task in ("hello", "-hello", "--help", "äöü 🙂\r\n\t", " ", '{"kind":"session_end"}', "x" * 1_000_000, "\x00\x1b[31m"):
        first, end = await execute(portico.client, task, "echo")
        assert first == {"kind": "agent_token", "text": task}
        assert end == {"kind": "session_end", "exit_code": 0, "duration_ms": end["duration_ms"]}
    # Stream has the documented bytes.
    answer = await portico.client.post("/v1/execute", json={"driver": "echo", "task": "hi"})
    assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
    head, duration = answer.text.split('"duration_ms":')
    assert head == 'data: {"kind":"agent_token","text":"hi"}\n\ndata: {"kind":"session_end","exit_code":0,'
    assert duration.endswith("}\n\n")
    # Key in the body is accepted.
    portico.client.headers.pop("Authorization")
    answer = await portico.client.post("/v1/execute", json={"driver": "echo", "task": "x", "auth_token": KEY})
    assert answer.status_code == 200
    assert KEY not in answer.text


async def test_what_a_task_reports_besides_its_text(run: Callable[..., Any]) -> None:
    # State of a usage limit is an event of the gateway.
    event = {"kind": "rate_limit", "status": "warning", "limit": "five_hour", "utilization": 0.9, "resets_at": 4102444800.0}
    [limit, _] = await run({"line": json.dumps(event)})
    assert limit == {**event, "kind": "x-portico.rate_limit"}
    # Standard error is sent only after a failure.
    assert kinds_of(await run({"stderr": "one"}, {"text": "a"})) == ["agent_token", "session_end"]
    found = await run({"stderr": "one"}, {"text": "a"}, {"stderr": "two"}, {"exit": 3})
    assert kinds_of(found) == ["agent_token", "stderr", "stderr", "error", "session_end"]
    assert [frame["line"] for frame in found if frame["kind"] == "stderr"] == ["one", "two"]
    assert found[-1]["exit_code"] == 3
    # Crash ends with an error and an exit code.
    *_, failure, end = await run({"text": "Wait,"}, {"exit": {"signal": "SIGKILL"}})
    assert failure["kind"] == "error"
    assert "-9" in failure["message"]
    assert end["exit_code"] == -9
    *_, failure, end = await run({"stop": {"reason": "error", "message": "429"}})
    assert (failure["message"], end["exit_code"]) == ("429", 1)
    # Lines that are not events are sent unchanged.
    lines = ["npm WARN", '{"kind":"no such kind"}', "{", "[]", "null", '{"kind":"agent_token"}', "\ufeff x", '{"text":"x"}']
    found = await run(*({"line": line} for line in lines))
    assert [frame["line"] for frame in found[:-1]] == lines
    # Call that needs permission is denied.
    found = await run({"tool_call": {"id": "t", "name": "shell", "ask": True}}, {"text": "on"})
    assert [frame.get("status") for frame in found] == ["started", None, "failed", None, None]
    assert "denied" in found[1]["output"]
    # Model is passed to the agent.
    assert (await run({"text": "{model}"}))[0]["text"] == "script"
    assert (await run({"text": "{model}"}, model="large-9"))[0]["text"] == "large-9"


async def test_line_of_20_megabytes_is_sent_whole(run: Callable[..., Any]) -> None:
    first, end = await run({"big_line": 20 * 1024 * 1024})
    assert len(first["text"]) > 20_900_000
    assert set(first["text"]) == {"x"}
    assert end["exit_code"] == 0


async def test_processes_left_by_a_task_are_terminated(run: Callable[..., Any], tmp_path: Path) -> None:
    process = {"seconds": 300, "new_session": True, "hold_stdout": True, "pid_file": "stray"}
    found = await run({"spawn": process}, {"text": "done"})
    assert kinds_of(found) == ["agent_token", "session_end"]
    pid = await read_pid(tmp_path / "scenes" / "stray")
    await wait_until(lambda: not is_alive(pid))


REFUSED: list[tuple[Any, int, list[str]]] = [
    ({"driver": "echo"}, 400, ["task"]),
    ({"task": "x"}, 400, ["driver"]),
    ({"driver": "echo", "task": ""}, 400, ["task"]),
    ({"driver": "echo", "task": 7}, 400, ["task"]),
    ({"driver": "echo", "task": ["s3cret"]}, 400, ["task"]),
    ({"driver": "", "task": "x"}, 400, ["driver"]),
    ({"driver": "no-such-agent", "task": "x"}, 400, ["'no-such-agent'", "echo", "script"]),
    ({"driver": "echo", "task": "x", "model": 7}, 400, ["model"]),
    ({"driver": "echo", "task": "x", "idempotency_key": ""}, 400, ["idempotency_key"]),
    ({"driver": "echo", "task": "x", "auth_token": "wrong"}, 401, ["portico key"]),
    ({"driver": "no-such-agent", "task": "x", "auth_token": None}, 401, ["portico key"]),
    ([], 400, ["JSON object"]),
]


async def test_invalid_requests_are_refused_before_the_stream(portico: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    key = portico.client.headers.pop("Authorization")
    for body, status, named in REFUSED:
        headers = {"Authorization": key} if status != 401 else {}
        answer = await portico.client.post("/v1/execute", json=body, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
        text = answer.json()["error"]
        assert all(word in text for word in named), text
        assert "s3cret" not in text
    portico.client.headers["Authorization"] = key
    # Task is refused if its agent cannot start.
    monkeypatch.setitem(portico.gateway.agents.get("script").settings.options, "cwd", "missing")
    text = await expect_error(portico.client.post("/v1/execute", json={"driver": "script", "task": "x"}), 400)
    assert "missing" in text
    assert json.dumps(text)


async def test_unknown_fields_are_ignored(portico: RunningGateway) -> None:
    assert (await execute(portico.client, "x", "echo", namespace="n", scope_token=None))[0]["text"] == "x"


async def test_idle_stream_sends_keep_alive_comments(tmp_path: Path, write_scenario: WriteScenario, clock: ManualClock) -> None:
    scenario = write_scenario([{"wait_for_file": "go"}])
    entry = {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": scenario}}
    async with run_gateway(gateway_config(tmp_path, server={"keep_alive": 0.7}, agents={"script": entry}), clock) as portico:
        asking = asyncio.create_task(portico.client.post("/v1/execute", json={"driver": "script", "task": "x"}))
        for _ in range(3):
            await clock.expire(0.7)
        (tmp_path / "scenes" / "go").touch()
        answer = await asking
    blocks = answer.text.split("\n\n")
    assert len([block for block in blocks if block.startswith(": ")]) == 3
    assert blocks[-2].startswith('data: {"kind":"session_end"')


async def test_task_ends_if_its_agent_fails_to_close(
    portico: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = CliAgent.close

    async def broken(agent: CliAgent, grace: float | None = None) -> None:
        await close(agent, grace)
        raise OSError("the folder of its sockets is gone")

    monkeypatch.setattr(CliAgent, "close", broken)
    assert (await execute(portico.client, "x", "echo"))[-1]["kind"] == "session_end"
    await wait_until(lambda: not portico.gateway.tasks.running)
    assert list((tmp_path / "data").rglob("exec_*")) == []
