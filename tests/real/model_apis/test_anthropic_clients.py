"""Anthropic's Python and npm packages, the AI SDK's provider of Anthropic, and Claude Code as clients of `/v1/messages`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.sessions.session import Session
from tests.real.acp.programs import run_program
from tests.real.conftest import Home
from tests.real.model_apis.clients import run_node, run_python
from tests.real.models import Model
from tests.real.processes import cli_of
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.requests import get_history
from tests.support.waiting import wait_until

CALL = {"app_tool": {"id": "toolu_sky", "name": "get_weather", "input": {"location": "Rome"}}}
FAILURE = {"stop": {"reason": "error", "message": "the model is down"}}
TURNS = [
    {"when": r"\[\[echo", "steps": [{"text": "one"}]},
    {"when": r"\[\[recall", "steps": [{"remember": True}]},
    {"when": r"\[\[think", "steps": [{"thinking": "Hm."}, {"text": "The answer is 42."}, {"usage": {"output_tokens": 7}}]},
    {"when": r"\[\[weather", "steps": [{"text": "Looking."}, CALL, {"text": "It is {last_result}."}]},
    {"when": r"\[\[image", "steps": [{"text": "{images} image"}]},
    {"when": r"\[\[waits", "steps": [{"wait_for_file": "go"}, {"text": "waited"}]},
    {"when": r"\[\[fails", "steps": [FAILURE]},
    {"when": r"\[\[late", "steps": [{"text": "half"}, FAILURE]},
    {"when": r"read the pdf", "steps": [
        {"app_tool": {"id": "toolu_pdf", "name": "Read", "input": {"file_path": "a.pdf"}}}, {"text": "{last_result}"},
    ]},
    {"when": r"run the tool", "steps": [{"thinking": "Hm."}, {"text": "Looking."}, {
        "app_tool": {"id": "toolu_say", "name": "Bash", "input": {"command": "echo from-$((40 + 2))", "description": "Say it"}}
    }, {"text": "It gave {last_result}."}]},
]  # fmt: skip
Run = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def playing(tmp_path: Path, **tables: Any) -> AsyncIterator[RunningGateway]:
    """A gateway whose agent `script` plays `TURNS`."""
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    (scenes / "scene.json").write_text(json.dumps({"turns": TURNS}))
    agent = {"driver": "script", "cwd": str(scenes), "options": {"scenario": "scene.json"}}
    async with run_gateway(gateway_config(tmp_path, agents={"script": agent}, **tables)) as portico:
        yield portico


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with playing(tmp_path) as portico:
        yield portico


def _client(program: str, run: Callable[..., Awaitable[Any]]) -> Run:
    async def of_case(case: str, portico: RunningGateway, folder: Path, model: str = "script") -> Any:
        return await run(program, case, portico.url, folder, model)

    return of_case


PYTHON, NPM = _client("anthropic_client.py", run_python), _client("anthropic_client.mjs", run_node)
AI_SDK = _client("ai_sdk_anthropic.mjs", run_node)
vendors = pytest.mark.parametrize("run", [PYTHON, NPM], ids=["python", "npm"])
clients = pytest.mark.parametrize("run", [PYTHON, NPM, AI_SDK], ids=["python", "npm", "ai-sdk"])


def sessions(portico: RunningGateway) -> list[Session]:
    return portico.gateway.sessions.held


@clients
async def test_a_conversation_continues_its_session(scripted: RunningGateway, tmp_path: Path, run: Run) -> None:
    found = await run("chat", scripted, tmp_path)
    assert (found["texts"], found["same"]) == (["one", '["[[echo:one]]"]'], True)
    assert found.get("id", "req_").startswith("req_")


@vendors
async def test_streams(scripted: RunningGateway, tmp_path: Path, run: Run) -> None:
    found = await run("stream", scripted, tmp_path)
    assert found["blocks"] == [["thinking", "Hm."], ["text", "The answer is 42."]]
    assert (found["stop"], found["output"]) == ("end_turn", 7)
    assert (found["kinds"][0], found["kinds"][-1]) == ("message_start", "message_stop")
    assert [found["kinds"].count(f"content_block_{kind}") for kind in ("start", "stop")] == [2, 2]


async def test_streams_of_the_ai_sdk(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await AI_SDK("stream", scripted, tmp_path)
    assert found == {"text": "The answer is 42.", "reasoning": "Hm.", "stop": "stop", "usage": 7}


@clients
@pytest.mark.parametrize("case", ["tools", "streamed_tools"])
async def test_tools_that_the_client_runs(scripted: RunningGateway, tmp_path: Path, run: Run, case: str) -> None:
    found = await run(case, scripted, tmp_path)
    assert found["calls"] == ["Rome"]
    assert found["text"].endswith("It is sun in Rome.")
    stops = ["tool-calls", "stop"] if run is AI_SDK else ["tool_use", "end_turn"]
    assert found["stops"] == stops
    # One run has both answers.
    [session] = sessions(scripted)
    history = await get_history(scripted.client, session.id)
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("run", [PYTHON, AI_SDK], ids=["python", "ai-sdk"])
async def test_images(scripted: RunningGateway, tmp_path: Path, run: Run) -> None:
    assert await run("image", scripted, tmp_path) == "1 image"


@vendors
async def test_errors_are_the_exceptions_of_the_package(scripted: RunningGateway, tmp_path: Path, run: Run) -> None:
    found = await run("errors", scripted, tmp_path)
    kinds = {name: error[:3] for name, error in found.items()}
    in_stream = kinds.pop("failed later")
    assert kinds == {
        "key": ["AuthenticationError", 401, "authentication_error"],
        "model": ["NotFoundError", 404, "not_found_error"],
        "failed": ["InternalServerError", 502, "api_error"],
        "failed stream": ["InternalServerError", 502, "api_error"],
    }
    assert in_stream[2] == "api_error"
    assert {found[name][3] for name in ("failed", "failed stream", "failed later")} == {"the model is down"}
    # The package repeats requests that have failed with 5xx, and did not: each was one run.
    assert len(sessions(scripted)) == 3


async def test_errors_of_the_ai_sdk(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await AI_SDK("errors", scripted, tmp_path)
    assert found["failed"][:2] == [502, "the model is down"]
    assert "the model is down" in found["late"][1]


async def test_a_request_that_finds_no_slot_is_repeated_by_the_package(tmp_path: Path) -> None:
    async with playing(tmp_path, limits={"live_agents": 1}) as portico:
        slow = {"model": "script", "max_tokens": 9, "messages": [{"role": "user", "content": "[[waits]]"}]}
        first = asyncio.create_task(portico.client.post("/v1/messages", json=slow))
        await wait_until(lambda: [session for session in sessions(portico) if session.state == "running"])
        second = asyncio.create_task(PYTHON("retry", portico, tmp_path))

        async def is_refused() -> bool:
            return 'route="/v1/messages",status="429"' in (await portico.client.get("/metrics")).text

        await wait_until(is_refused)
        (tmp_path / "scenes" / "go").touch()
        assert (await first).status_code == 200
        assert await second == {"text": "one", "retries": 1}


@vendors
async def test_models_and_the_count_of_tokens(scripted: RunningGateway, tmp_path: Path, run: Run) -> None:
    found = await run("models", scripted, tmp_path)
    assert "script" in found["listed"] and found["listed"][-1] == "echo"
    assert (found["one"], found["tokens"]) == ("Echo", 104)


@clients
async def test_one_process_of_the_real_claude_answers_a_conversation(
    portico: RunningGateway, home: Home, tmp_path: Path, run: Run
) -> None:
    found = await run("chat", portico, tmp_path, "claude")
    assert found["same"] and found["texts"] == ["one", "I see 2 user texts. Before this one: [[echo:one]]"]
    cli_of(home.path)


@clients
async def test_the_real_claude_calls_tools_of_the_client(
    portico: RunningGateway, home: Home, model: Model, tmp_path: Path, run: Run
) -> None:
    found = await run("streamed_tools", portico, tmp_path, "claude")
    assert found["calls"] == ["Tokyo"] and found["text"].endswith("It is mild in Tokyo.")
    # The model has got the result in the second request of one run, whose process has waited for it.
    assert "sun in Tokyo" in json.dumps(model.last_request()["messages"])
    assert model.request_count("weather") == 2
    cli_of(home.path)


@pytest.fixture
def claude_code(claude_program: Path, tmp_path: Path, scripted: RunningGateway) -> Callable[..., Awaitable[list[dict[str, Any]]]]:
    """Runs Claude Code with the agent `script` as its model, and returns what it prints."""

    async def run(*arguments: str) -> list[dict[str, Any]]:
        folder = tmp_path / "claude"
        folder.mkdir(exist_ok=True)
        env = {
            "PATH": f"{claude_program.parent}:{os.environ['PATH']}",
            "ANTHROPIC_BASE_URL": scripted.url,
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_MODEL": "script",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "script",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        out = await run_program(claude_program, *arguments, "--output-format", "stream-json", "--verbose", folder=folder, env=env)
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    return run


async def test_claude_code_is_a_client(
    scripted: RunningGateway, claude_code: Callable[..., Awaitable[list[dict[str, Any]]]]
) -> None:
    """It runs its own tool for the agent, whose run goes on with the result; its next start goes on with the conversation."""
    messages = await claude_code("-p", "run the tool", "--allowedTools", "Bash")
    assert (messages[-1]["type"], messages[-1]["result"]) == ("result", "It gave from-42.")
    blocks = [block["type"] for line in messages if line["type"] == "assistant" for block in line["message"]["content"]]
    assert blocks == ["thinking", "text", "tool_use", "text"]
    [session] = sessions(scripted)
    first_run = session.run
    again = await claude_code("-p", "[[recall]]", "--continue")
    assert "run the tool" in again[-1]["result"]
    assert sessions(scripted) == [session] and session.run is not first_run


async def test_a_pdf_that_claude_code_has_read_does_not_end_the_conversation(
    tmp_path: Path, scripted: RunningGateway, claude_code: Callable[..., Awaitable[list[dict[str, Any]]]]
) -> None:
    folder = tmp_path / "claude"
    folder.mkdir()
    (folder / "a.pdf").write_bytes(b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n")
    messages = await claude_code("-p", "read the pdf", "--allowedTools", "Read")
    assert "application/pdf, which is not shown here" in messages[-1]["result"]
    again = await claude_code("-p", "[[recall]]", "--continue")
    assert "read the pdf" in again[-1]["result"] and len(sessions(scripted)) == 1
