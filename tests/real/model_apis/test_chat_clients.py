"""Chat completions with clients that are not Portico's own: the `openai` packages of Python and of Node, LiteLLM, the AI SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.security.authentication import ADMINISTRATOR
from tests.real.conftest import Home
from tests.real.model_apis.clients import run_node, run_python
from tests.real.processes import cli_of
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import get_history
from tests.support.waiting import wait_until

TURNS = [
    {
        "when": "think",
        "steps": [
            {"thinking": "Let me think."},
            {"text": "The answer is 42."},
            {"usage": {"input_tokens": 5, "output_tokens": 3}},
        ],
    },
    {
        "when": "weather",
        "steps": [
            {"text": "Asking. "},
            {"app_tool": {"id": "sky", "name": "get_weather", "input": {"location": "Tokyo"}}},
            {"text": "It is {results.sky} in Tokyo."},
        ],
    },
    {"when": "fail at once", "steps": [{"stop": {"reason": "error", "message": "the model is down"}}]},
    {"when": "fail later", "steps": [{"text": "half"}, {"stop": {"reason": "error", "message": "the model is down"}}]},
    {"when": "long", "steps": [{"text": "half"}, {"hang": True}]},
    {"steps": [{"text": "You said: {prompt}"}]},
]
Client = Callable[..., Awaitable[Any]]


SCRIPTS = {
    "python": "openai_package.py",
    "node": "openai_package.mjs",
    "litellm": "litellm_package.py",
    "ai-sdk": "ai_sdk_openai.mjs",
}
OPENAI = pytest.mark.parametrize("client", ["python", "node"], indirect=True)
ALL = pytest.mark.parametrize("client", SCRIPTS, indirect=True)


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Client:
    """Runs a case with one of the clients, and returns its result."""
    script: str = SCRIPTS[request.param]
    run = run_python if script.endswith(".py") else run_node

    async def result(case: str, portico: RunningGateway, model: str = "script") -> Any:
        return await run(script, case, portico.url, tmp_path, model)

    return result


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway whose agent `script` plays the turns."""
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    (scenes / "scene.json").write_text(json.dumps({"turns": TURNS}))
    agent = {"driver": "script", "cwd": str(scenes), "options": {"scenario": "scene.json"}}
    async with run_gateway(gateway_config(tmp_path, agents={"script": agent})) as running:
        yield running


@ALL
async def test_a_conversation_with_a_tool(client: Client, scripted: RunningGateway) -> None:
    found = await client("conversation", scripted)
    assert found.pop("sessions", 1) == 1
    # The AI SDK has names of its own.
    found["asked"][1] = found["asked"][1].replace("-", "_")
    assert found == {
        "text": "The answer is 42.",
        "reasoning": "Let me think.",
        "finish": ["stop"],
        "usage": [5, 3, 8],
        "asked": ["Asking. ", "tool_calls"],
        "calls": [["get_weather", {"location": "Tokyo"}]],
        "answer": "It is mild in Tokyo.",
    }
    assert len(scripted.gateway.sessions.held) == 1


@ALL
async def test_a_conversation_with_claude_is_one_process(client: Client, home: Home) -> None:
    async with home.gateway() as portico:
        found = await client("conversation", portico, "claude")
        assert (found["text"], found["reasoning"]) == ("The answer is 42.", "Let me think about this carefully.")
        assert found["usage"] == [107, 42, 149]
        assert found["calls"] == [["get_weather", {"location": "Tokyo"}]]
        assert found["answer"] == "It is mild in Tokyo."
        assert cli_of(home.path) is not None
        assert len(portico.gateway.sessions.held) == 1


@OPENAI
async def test_errors_and_no_retries_of_a_run(client: Client, scripted: RunningGateway) -> None:
    assert await client("errors", scripted) == [
        ["NotFoundError", 404, "model_not_found", "model"],
        ["BadRequestError", 400, None, "n"],
        ["AuthenticationError", 401, "invalid_api_key", None],
        ["InternalServerError", 502, "the model is down"],
        ["half", "the model is down"],
    ]
    # The two that have failed: the package has repeated neither.
    assert len(scripted.gateway.sessions.held) == 2


@pytest.mark.parametrize("client", ["litellm"], indirect=True)
async def test_errors_of_litellm(client: Client, scripted: RunningGateway) -> None:
    found = await client("errors", scripted)
    assert found[:2] == [["NotFoundError", 404], ["BadRequestError", 400]]
    assert found[2][1] in (500, 502)
    assert found[3] == ["half", True]
    assert len(scripted.gateway.sessions.held) == 2


@pytest.mark.parametrize("client", ["ai-sdk"], indirect=True)
async def test_errors_of_the_ai_sdk(client: Client, scripted: RunningGateway) -> None:
    unknown, failed, later = await client("errors", scripted)
    assert (unknown[:2], unknown[3]) == (["APICallError", 404], "model_not_found")
    assert failed == ["APICallError", 502, "the model is down", None]
    assert later == ["half", "the model is down"]


@OPENAI
async def test_images(client: Client, scripted: RunningGateway) -> None:
    assert await client("images", scripted) == "You said: What is it?"
    (session,) = scripted.gateway.sessions.held
    content = (await get_history(scripted.client, session.id))[0]["content"]
    assert [block["type"] for block in content] == ["text", "image"]


@OPENAI
async def test_models(client: Client, scripted: RunningGateway) -> None:
    ids, one = await client("models", scripted)
    assert {"script", "echo"} <= {*ids} and one == "script"


@OPENAI
async def test_a_stream_that_is_closed_stops_the_run(client: Client, scripted: RunningGateway) -> None:
    assert await client("stop", scripted) == "half"
    (session,) = scripted.gateway.sessions.held
    await wait_until(lambda: not session.busy)
    assert (await scripted.gateway.sessions.get(ADMINISTRATOR, session.id)).state == "idle"
