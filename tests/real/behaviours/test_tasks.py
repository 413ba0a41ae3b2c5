"""Tasks of the real CLIs by `POST /v1/execute`: events, errors, prompts as they were written, and the processes' end."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.model_server.scenarios import Text
from tests.real.aap_client import frames_of
from tests.real.processes import arguments, processes_of
from tests.real.real_cli import PLAIN, RealCli
from tests.support.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]


def of_kind(events: list[Json], kind: str) -> list[Json]:
    return [event for event in events if event["kind"] == kind]


def text_of(events: list[Json], kind: str = "agent_token") -> str:
    return "".join(event["text"] for event in of_kind(events, kind))


async def test_a_task(cli: RealCli) -> None:
    """It ends with the model's text."""
    events = await cli.task("[[plain]]")
    assert (text_of(events), events[-1]["exit_code"]) == (PLAIN, 0), of_kind(events, "error")
    [usage] = of_kind(events, "usage")
    assert (usage["input_tokens"], usage["output_tokens"], usage["cache_read"]) == cli.task_usage
    assert len(cli.requests()) == 1
    await wait_until(lambda: processes_of(cli.home) == [], "the CLI has ended")
    events = await cli.task("[[think]]")
    assert text_of(events) == "The answer is 42."


async def test_a_task_with_tools(cli: RealCli) -> None:
    """What the CLI permits by itself runs, and the rest does not."""
    (cli.work / "a-file").write_text("the file's words")
    events = await cli.task(cli.calls(Text("Reading. "), cli.reading_call("a-file")))
    started, ended = of_kind(events, "tool_call")
    assert (started["status"], ended["status"], started["id"]) == ("started", "completed", ended["id"])
    [output] = of_kind(events, "tool_result")
    assert (output["tool_call_id"], output["is_error"]) == (started["id"], False)
    assert "the file's words" in cli.request_text() and text_of(events) == "Reading. Done."
    events = await cli.task(cli.calls(cli.writing(f"{cli.base}/elsewhere.txt")))
    assert all(event["is_error"] for event in of_kind(events, "tool_result"))
    assert not (cli.base / "elsewhere.txt").exists() and cli.made() == ["a-file"]


async def test_tasks_are_literal(cli: RealCli) -> None:
    (cli.work / "file.txt").write_text("the file's words")
    for prompt in cli.prompts:
        await cli.task(prompt)
        assert [text.strip() for text in cli.texts("user")] == [prompt.strip()]
        assert "the file's words" not in cli.request_text()


async def test_a_task_and_an_answer_of_a_megabyte(cli: RealCli) -> None:
    task = ("[[bigtext]] " + "0123456789abcde\n" * 65536)[: 1024 * 1024 - 1] + "."
    assert text_of(await cli.task(task)) == "X" * 1_200_000
    assert cli.texts("user") == [task]


async def test_the_model_of_a_task(cli: RealCli) -> None:
    await cli.task("[[plain]]", model=cli.models[0])
    assert cli.model_of(cli.last_request()) == cli.models[0]


async def test_an_error_of_the_model_is_the_error_of_a_task(cli: RealCli) -> None:
    for scenario in ("e400", "e401"):
        events = await cli.task(f"[[{scenario}]]")
        assert events[-1]["exit_code"] > 0
        [error] = of_kind(events, "error")
        assert cli.errors[scenario] in error["message"] and text_of(events) == ""


async def test_a_repeated_key_replays_the_same_bytes(cli: RealCli) -> None:
    body = {"driver": cli.name, "task": "[[think]]", "idempotency_key": cli.name}
    together = await asyncio.gather(*(cli.client.post("/v1/execute", json=body) for _ in range(2)))
    after = await cli.client.post("/v1/execute", json=body)
    assert together[0].text == together[1].text == after.text and len(cli.requests("think")) == 1
    assert (await cli.client.post("/v1/execute", json={**body, "task": "[[plain]]"})).status_code == 409


async def test_ps_shows_nothing_of_a_task_which_ends_with_the_daemon(cli: RealCli) -> None:
    body = {"driver": cli.name, "task": f"{cli.long_text} zebra-of-the-task"}
    async with frames_of(cli.client, "POST", "/v1/execute", body) as frames:
        await wait_until(cli.requests, "the model has a request")
        shown = " ".join(word for process in processes_of(cli.home) for word in arguments(process))
        assert shown and "zebra" not in shown and "dummy" not in shown
        assert await cli.daemon.stop(signal.SIGINT) == 0
        last = [data async for _, data in frames][-1]
    assert (last["kind"], last["exit_code"]) == ("session_end", 1)
    assert processes_of(cli.home) == []
