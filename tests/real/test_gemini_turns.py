"""The real gemini in sessions over AAP v1: text, reasoning, tools, images, histories, and its errors."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.model_server.scenarios import Scenario, Step, ToolUse, text_step
from tests.real.gemini import PIXEL, READ, SCENARIOS, SHELL, WRITE, Gemini, create_session, text_of
from tests.real.processes import processes_of
from tests.support.daemon import RunningGateway

INPUTS: dict[str, dict[str, object]] = {
    READ: {"file_path": "f.txt"},
    "list_directory": {"dir_path": "."},
    "grep_search": {"pattern": "CONTENT"},
    WRITE: {"file_path": "f.txt", "content": "other"},
    "replace": {"file_path": "f.txt", "old_string": "CONTENT", "new_string": "other", "instruction": "x"},
    SHELL: {"command": "touch made.txt", "description": "touch"},
    "web_fetch": {"prompt": "Read {arg}"},
    "google_web_search": {"query": "weather"},
}
SCENARIOS["web"] = Scenario((Step((ToolUse("web_fetch", INPUTS["web_fetch"]),)), text_step("Fetched.")))
for listed in (READ, SHELL):
    others = tuple(ToolUse(name, given) for name, given in INPUTS.items() if name != listed)
    SCENARIOS[f"not-{listed}"] = Scenario((Step(others), text_step("All tried.")))


async def test_a_conversation_in_one_process(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "hello [[plain]]")
    assert text_of(aap.last["messages"]) == "Hello from the model, this is plain text."
    (process,) = processes_of(gemini.home, "node")
    assert await aap.send_turn("and [[think]]") == "The answer is 42."
    blocks = aap.last["messages"][0]["content"]
    assert blocks[0]["type"] == "thinking"
    assert "carefully" in blocks[0]["thinking"]
    assert await aap.send_turn("[[recall]]") == "I see 3 user texts. Before this one: hello [[plain]] | and [[think]]"
    assert processes_of(gemini.home, "node") == [process]
    # The home folder of the user is unchanged.
    assert list(gemini.home.iterdir()) == []


async def test_a_prompt_that_looks_like_a_command_is_text(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "/help [[plain]]")
    assert text_of(aap.last["messages"]).startswith("Hello from the model")


async def test_trusted_tools_run_and_only_listed_tools_are_sent_to_the_model(gemini: Gemini, running: RunningGateway) -> None:
    (gemini.work / "f.txt").write_text("content")
    aap = await create_session(running.client, "[[shell]]", tools={SHELL: True, READ: True})
    assert aap.results() == [".\n..\nf.txt\nhi"]
    assert sorted(gemini.tools()) == sorted([SHELL, READ])
    assert await aap.send_turn("[[toolfail]]") == "It failed as expected."
    assert "File not found" in aap.results()[0]
    assert await aap.send_turn("[[parallel:f.txt]]") == "Three at once. All three done."
    assert aap.results()[:2] == ["one", "two"]
    assert {path.name for path in gemini.work.iterdir()} == {"f.txt", "one.txt", "two.txt"}


@pytest.mark.parametrize("granted", [False, True])
async def test_a_permission_for_each_of_the_tools(gemini: Gemini, running: RunningGateway, granted: bool) -> None:
    (gemini.work / "f.txt").write_text("content")
    aap = await create_session(running.client, "[[run:touch made.txt]]", tools={SHELL: False, READ: False, WRITE: False})
    call = aap.pending_call()
    assert (call["name"], call["input"]) == (SHELL, {"command": "touch made.txt"})
    assert not (gemini.work / "made.txt").exists()
    await aap.permit(granted)
    assert aap.last["stopReason"] == "end_turn"
    assert (gemini.work / "made.txt").exists() is granted
    # The CLI takes the command `ls` and the tool read_file for safe; both need permission.
    for prompt, name in (("[[run:ls]]", SHELL), ("[[fileread:f.txt]]", READ), ("[[filewrite:out.txt]]", WRITE)):
        await aap.send_turn(prompt, stop="tool_use")
        assert aap.pending_call()["name"] == name
        await aap.permit(granted)
        assert aap.last["stopReason"] == "end_turn"
    assert (gemini.work / "out.txt").exists() is granted
    model_saw = json.dumps(gemini.last_request()["contents"][-1])
    assert ("canceled by the user" in model_saw) is not granted


async def test_an_unlisted_tool_does_not_run(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[run:touch made.txt]]", tools={READ: True})
    assert aap.last["stopReason"] == "end_turn"
    assert gemini.tools() == [READ]
    assert not (gemini.work / "made.txt").exists()
    aap = await create_session(running.client, "[[run:touch made.txt]]")
    assert gemini.tools() == []
    assert not (gemini.work / "made.txt").exists()


@pytest.mark.parametrize("listed", [READ, SHELL])
async def test_no_kind_of_tool_runs_unlisted(gemini: Gemini, running: RunningGateway, listed: str) -> None:
    """The model calls tools that read, search, write, run commands and use the web, although none is in its request."""
    (gemini.work / "f.txt").write_text("CONTENT")
    aap = await create_session(running.client, f"[[not-{listed}:{gemini.model.url}/fetched]]", tools={listed: False})
    assert (aap.last["stopReason"], text_of(aap.last["messages"])) == ("end_turn", "All tried.")
    answers = [part["functionResponse"]["response"] for part in gemini.last_request()["contents"][-1]["parts"]]
    assert ["not found" in answer["error"] for answer in answers] == [True] * (len(INPUTS) - 1)
    assert not [request for request in gemini.model.requests if "fetched" in request.path]
    assert [(path.name, path.read_text()) for path in gemini.work.iterdir()] == [("f.txt", "CONTENT")]


async def test_a_denied_tool_of_the_web_does_not_run(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, f"[[web:{gemini.model.url}/fetched]]", tools={"web_fetch": False})
    assert aap.pending_call()["name"] == "web_fetch"
    await aap.permit(False)
    assert aap.last["stopReason"] == "end_turn"
    assert "canceled by the user" in json.dumps(gemini.last_request()["contents"][-1])
    assert not [request for request in gemini.model.requests if "fetched" in request.path]


async def test_project_settings_add_no_tools(gemini: Gemini, running: RunningGateway) -> None:
    own = gemini.work / ".gemini"
    (own / "policies").mkdir(parents=True)
    evil = {"command": "touch", "args": [str(gemini.work / "evil.txt")]}
    (own / "settings.json").write_text(
        json.dumps({"tools": {"core": [SHELL, "glob"], "allowed": [SHELL]}, "mcpServers": {"e": evil, "portico": evil}})
    )
    (own / "policies" / "x.toml").write_text('[[rule]]\ntoolName = "*"\ndecision = "allow"\npriority = 999\n')
    (gemini.work / "GEMINI.md").write_text("PROJECT-MEMORY")
    await create_session(running.client, "[[run:touch made.txt]]", tools={READ: True})
    # Project settings can remove tools but not add them.
    assert set(gemini.tools()) <= {READ}
    assert "PROJECT-MEMORY" in json.dumps(gemini.last_request())
    aap = await create_session(running.client, "[[run:ls]]", tools={SHELL: False}, settings="user")
    assert aap.last["stopReason"] == "tool_use"
    assert "PROJECT-MEMORY" not in json.dumps(gemini.last_request())
    assert {path.name for path in gemini.work.iterdir()} == {".gemini", "GEMINI.md"}


async def test_a_tool_result_of_a_megabyte(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[bigshell]]", tools={SHELL: True})
    assert aap.results() == ["A" * 1_000_000]


async def test_an_image(gemini: Gemini, running: RunningGateway) -> None:
    await create_session(
        running.client, {"role": "user", "content": [{"type": "text", "text": "[[plain]]"}, {"type": "image", "url": PIXEL}]}
    )
    parts = gemini.last_request()["contents"][-1]["parts"]
    assert [part["inlineData"]["mimeType"] for part in parts if "inlineData" in part] == ["image/png"]


async def test_a_history_and_a_system_prompt(gemini: Gemini, running: RunningGateway) -> None:
    called = {"type": "tool_use", "toolCallId": "c1", "name": "get_weather", "input": {"location": "Tokyo"}}
    history: list[Any] = [
        {"role": "system", "content": "SYSTEM-MARK"},
        "My name is Ada.",
        {"role": "assistant", "content": [{"type": "text", "text": "Looking."}, called]},
        {"role": "tool", "toolCallId": "c1", "content": "18C"},
        {"role": "assistant", "content": "It is mild."},
    ]
    for mode in ("append", "replace"):
        aap = await create_session(running.client, *history, "[[recall]]", system_prompt=mode)
        assert text_of(aap.last["messages"]) == "I see 2 user texts. Before this one: My name is Ada."
        request = gemini.last_request()
        contents = json.dumps(request["contents"])
        assert '"functionCall"' in contents
        assert '"output": "18C"' in contents
        assert "It is mild." in contents
        system = request["systemInstruction"]["parts"][0]["text"]
        assert "SYSTEM-MARK" in system
        assert (len(system) < 200) is (mode == "replace")


@pytest.mark.parametrize(
    ("scenario", "reported"),
    [("e400", "bad request"), ("e401", "invalid x-api-key"), ("e429", "slow down"), ("e500", "internal")],
)
async def test_model_errors_are_reported_within_seconds(
    gemini: Gemini, running: RunningGateway, scenario: str, reported: str
) -> None:
    aap = await create_session(running.client, "[[plain]]")
    began = time.monotonic()
    await aap.send_turn(f"[[{scenario}]]", stop="error")
    assert time.monotonic() - began < 60
    assert reported in aap.last["x-portico"]["error"]
    assert await aap.send_turn("[[plain]]") == "Hello from the model, this is plain text."


async def test_the_key_of_a_session_and_a_model(gemini: Gemini, running: RunningGateway) -> None:
    del gemini.env["GEMINI_API_KEY"]
    async with gemini.gateway(server={"data_dir": str(gemini.base / "other")}) as gateway:
        await create_session(gateway.client, "[[plain]]", api_key="s3cret-key-0123456789", model="gemini-2.5-pro")
    request = gemini.model.requests[-1]
    assert "gemini-2.5-pro" in request.path
