"""The real gemini by `POST /v1/execute`."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.real.gemini import Gemini
from tests.support.daemon import RunningGateway
from tests.support.sse import parse_output_events


async def execute(running: RunningGateway, task: str, **more: str) -> list[dict[str, Any]]:
    answer = await running.client.post("/v1/execute", json={"driver": "gemini", "task": task, **more})
    assert answer.status_code == 200, answer.text
    events = parse_output_events(answer.text)
    assert [event["kind"] for event in events].index("session_end") == len(events) - 1
    return events


async def test_model_that_begins_with_a_dash_is_no_flag(gemini: Gemini, running: RunningGateway) -> None:
    await execute(running, "[[run:touch made.txt]]", model="--yolo")
    assert not (gemini.work / "made.txt").exists()


async def test_tools_with_the_argument_yolo(gemini: Gemini) -> None:
    gemini.agent["args"] = ["--yolo"]
    async with gemini.gateway() as running:
        events = await execute(running, "[[parallel:one.txt]]")
        assert [event["output"] for event in events if event["kind"] == "tool_result"][:2] == ["one", "two"]
        assert (gemini.work / "one.txt").exists()


@pytest.mark.parametrize(
    ("scenario", "code", "reported"), [("e400", 144, "bad request"), ("e401", 145, "invalid x-api-key"), ("cut", 1, "terminated")]
)
async def test_model_errors(gemini: Gemini, running: RunningGateway, scenario: str, code: int, reported: str) -> None:
    began = time.monotonic()
    events = await execute(running, f"[[{scenario}]]")
    assert events[-1]["exit_code"] == code
    assert reported in "".join(event["message"] for event in events if event["kind"] == "error")
    assert time.monotonic() - began < 60


async def test_a_missing_login_is_an_error(gemini: Gemini) -> None:
    del gemini.env["GEMINI_API_KEY"]
    del gemini.env["GOOGLE_GEMINI_BASE_URL"]
    async with gemini.gateway() as running:
        events = await execute(running, "[[plain]]")
    assert events[-1]["exit_code"] == 41
    assert "not logged in" in events[-2]["message"]


@pytest.mark.parametrize(("settings", "started"), [("user,project", ["of-the-project", "of-the-user"]), ("user", [])])
async def test_servers_of_settings_start_in_a_trusted_folder_only(gemini: Gemini, settings: str, started: list[str]) -> None:
    marks = gemini.base / "marks"
    marks.mkdir()
    for folder, name in ((gemini.work, "of-the-project"), (gemini.home, "of-the-user")):
        server = {"command": "touch", "args": [str(marks / name)]}
        (folder / ".gemini").mkdir()
        (folder / ".gemini" / "settings.json").write_text(json.dumps({"mcpServers": {name: server}}))
    gemini.agent["options"] = {"settings": settings}
    async with gemini.gateway() as running:
        await execute(running, "[[plain]]")
    assert sorted(path.name for path in marks.iterdir()) == started
