"""Transcripts of CLIs: both directions, redaction, size limit, and deletion."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.observability.transcripts import Transcript
from gateway.runs.retention import START_DELAY
from gateway.security.redaction import HIDDEN, Redactor
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import create_session, execute, send_turn
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
OF_ENV, OF_SESSION, LATER, SHAPE = "value-of-env-11", "secret-of-session-22", "secret-of-later-33", "sk-ant-never-registered-44"


def recording_config(folder: Path, **agents: Any) -> dict[str, Any]:
    entry = {
        "driver": "script",
        "cwd": str(folder / "scenes"),
        "record": True,
        "env": {"VENDOR_BASE_URL": OF_ENV, "MODE": "fast"},
    }
    return gateway_config(folder, agents={"script": entry, "echo": {"driver": "echo"}, **agents})


def transcript_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def joined_lines(found: list[dict[str, Any]], direction: str) -> str:
    return "\n".join(row["line"] for row in found if row["direction"] == direction)


async def test_transcripts_are_off_by_default(portico: RunningGateway) -> None:
    await create_session(portico.client, "echo")
    await execute(portico.client, driver="echo")
    assert not (portico.gateway.settings.data_dir / "transcripts").exists()


async def test_session_transcript_has_both_directions_without_secrets(tmp_path: Path, write_scenario: WriteScenario) -> None:
    name = write_scenario(
        {"when": "crash", "steps": [{"stderr": f"no login with {{options.token}} or {SHAPE}"}, {"exit": 3}]},
        [{"line": "junk {options.token}"}, {"env": "VENDOR_BASE_URL"}, {"env": "MODE"}],
    )
    async with run_gateway(recording_config(tmp_path)) as running:
        folder = running.gateway.settings.data_dir / "transcripts"
        session = (
            await create_session(running.client, "script", "first words", options={"scenario": name, "token": OF_SESSION})
        )["sessionId"]
        await send_turn(running.client, session, f"crash with {KEY}", agent={"options": {"token": LATER}})
        await send_turn(running.client, session, "third words")
        file = folder / f"{session}.jsonl"
        assert file.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [path.name for path in folder.iterdir()] == [file.name]
        found = transcript_rows(file)
        assert (await running.client.delete(f"/session/{session}")).status_code == 204
        assert not list(folder.iterdir())
    assert all(row.keys() == {"time", "pid", "direction", "line"} for row in found)
    assert [row["time"] for row in found] == sorted(row["time"] for row in found)
    assert len({row["pid"] for row in found}) == 3
    assert "first words" in joined_lines(found, "to_agent") and "third words" in joined_lines(found, "to_agent")
    assert f"junk {HIDDEN}" in joined_lines(found, "from_agent")
    assert f"no login with {HIDDEN} or {HIDDEN}" in joined_lines(found, "stderr")
    assert "3" in joined_lines(found, "exit").split()
    assert "script/program/main.py" in joined_lines(found, "start")
    assert "MODE=fast" in joined_lines(found, "from_agent")
    for secret in (OF_ENV, OF_SESSION, LATER, SHAPE, KEY):
        assert secret not in json.dumps(found)


async def test_task_transcript_is_deleted_when_it_is_old(tmp_path: Path, clock: ManualClock) -> None:
    config = recording_config(tmp_path, echo={"driver": "echo", "record": True})
    async with run_gateway(config) as running:
        await execute(running.client, "a task", "echo")
        (file,) = (running.gateway.settings.data_dir / "transcripts").glob("exec_*.jsonl")
    assert joined_lines(transcript_rows(file), "to_agent") == "a task"
    assert "a task" in joined_lines(transcript_rows(file), "from_agent")
    async with run_gateway(config):
        assert file.exists()
    os.utime(file, (0, time.time() - 8 * 86400))
    async with run_gateway(config, clock):
        await clock.expire(START_DELAY)
        await wait_until(lambda: not file.exists())


def test_transcript_size_is_limited_and_newest_lines_are_kept(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "x.jsonl", [Redactor()], file_bytes=5000, line_bytes=100)
    for n in range(200):
        transcript.received(1, [b"%d" % n])
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["x.1.jsonl", "x.jsonl"]
    assert all(file.stat().st_size <= 5000 for file in files)
    kept = [row["line"] for file in files for row in transcript_rows(file)]
    assert kept == [str(n) for n in range(200 - len(kept), 200)], "the newest are kept, in order"
    transcript.received(1, [b"y" * 500])
    assert transcript_rows(tmp_path / "x.jsonl")[-1]["line"] == "y" * 100 + " … and 400 more characters"


def test_secret_is_redacted_before_a_long_line_is_truncated(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.register([OF_SESSION])
    transcript = Transcript(tmp_path / "x.jsonl", [redactor], line_bytes=100)
    transcript.sent(1, b"x" * 95 + OF_SESSION.encode() + b"\n")
    assert OF_SESSION[:5] not in (tmp_path / "x.jsonl").read_text()


async def test_turn_succeeds_when_the_transcript_cannot_be_written(
    tmp_path: Path, write_scenario: WriteScenario, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_gateway(recording_config(tmp_path)) as running:
        (running.gateway.settings.data_dir / "transcripts").write_text("in the way")
        answer = await create_session(running.client, options={"scenario": write_scenario([{"text": "ok"}])})
    assert answer["messages"][0]["content"] == "ok"
    assert sum("cannot be written, and ends here" in line.message for line in caplog.records) == 1
