"""The tests that the sources of the `openai` Python package come with, for the endpoints that Portico has.

They are written for a mock server that accepts everything. They check each answer strictly against the package's types.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from gateway.store import ConversationRecord
from tests.real.acp.programs import run_program
from tests.real.clis import require
from tests.real.model_apis.clients import FOLDER
from tests.support.daemon import RunningGateway, gateway_config, run_gateway

SOURCES = FOLDER / "openai-python"
KEY = "My API Key"
NOT_HERE = re.compile(
    # Completions that OpenAI has stored.
    r"Completions::test_(method|raw_response|streaming_response)_(retrieve|update|list|delete)|"
    # A request with each parameter has `functions`, `logprobs` and `web_search_options`, which are refused.
    r"Completions::test_method_create_with_all_params|"
    # The deletion of a model.
    r"Models::test_(method|raw_response|streaming_response)_delete"
)


async def test_chat_completions_and_models(tmp_path: Path) -> None:
    files = ("tests/api_resources/chat/test_completions.py", "tests/api_resources/test_models.py")
    passed, others = await outcomes(tmp_path, *files)
    assert {name for name in others if not NOT_HERE.search(name)} == set()
    assert {name for name in passed if NOT_HERE.search(name)} == set()
    assert len([name for name in passed if "_create_" in name]) == 12
    assert len([name for name in passed if "Models::" in name]) == 16


RESPONSES, CONVERSATION = ("resp_677efb5139a88190b512bc3fef8e535d", "response_id"), "conv_123"
"""The ids that the tests of responses use. Those that create responses send no `input`, which is required."""


async def test_responses_and_conversations(tmp_path: Path) -> None:
    async def add_ids(portico: RunningGateway) -> None:
        body = {"model": "model", "input": "hello", "background": True}
        found = (await portico.client.post("/v1/responses", json=body, headers={"Authorization": f"Bearer {KEY}"})).json()
        store = portico.gateway.store.responses
        while (record := await store.get(found["id"])) is None or record.last_seq is None:
            await portico.client.get("/healthz")
        for response_id in RESPONSES:
            await store.add(replace(record, id=response_id))
        await store.add_conversation(ConversationRecord(CONVERSATION, None, record.created_at, {"metadata": {}}))

    folder = "tests/api_resources"
    files = (f"{folder}/test_responses.py", f"{folder}/responses/test_input_items.py", f"{folder}/test_conversations.py")
    # Whatever deletes an id would be in the way of the tests after it.
    passed, _ = await outcomes(
        tmp_path, *files, "-k", "retrieve or cancel or list or Conversations and not delete", before=add_ids
    )
    calls = r"::test_(method|raw_response|streaming_response)_"
    counted = Counter(re.sub(calls, " ", name.split("/")[-1]).removeprefix("test_") for name in passed if re.search(calls, name))
    both = {
        "responses.py::{}Responses retrieve_overload_1": 3,
        "responses.py::{}Responses retrieve_overload_2": 3,
        "responses.py::{}Responses retrieve_with_all_params_overload_1": 1,
        "responses.py::{}Responses retrieve_with_all_params_overload_2": 1,
        "responses.py::{}Responses cancel": 3,
        "input_items.py::{}InputItems list": 3,
        "conversations.py::{}Conversations create": 3,
        "conversations.py::{}Conversations retrieve": 3,
        "conversations.py::{}Conversations update": 3,
    }
    assert counted == {name.format(kind): count for name, count in both.items() for kind in ("Test", "TestAsync")}


async def nothing(portico: RunningGateway) -> None:
    """Do nothing."""


async def outcomes(
    folder: Path, *files: str, before: Callable[[RunningGateway], Awaitable[None]] = nothing
) -> tuple[set[str], set[str]]:
    """Run tests of the package; return the names of those that have passed with each of its clients, and of the others."""
    require(SOURCES / "tests", FOLDER)
    agents = {name: {"driver": "script", "cwd": str(folder)} for name in ("gpt-6-astra", "model")}
    config = gateway_config(folder, agents=agents)
    config["auth"]["keys"] = [KEY]
    python = require(FOLDER / "python" / "bin" / "python", FOLDER)
    command = (python, "-m", "pytest", "-q", "-rA", "-n", "0", "-p", "no:cacheprovider", "--tb=no", *files)
    async with run_gateway(config) as portico:
        await before(portico)
        env = {"TEST_API_BASE_URL": f"{portico.url}/v1", "PYTHONPATH": "", "PATH": os.environ["PATH"]}
        output = await run_program(*command, folder=SOURCES, env=env, code=None)
    outcomes: dict[str, set[str]] = {}
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) (\S+?)\[", output, re.MULTILINE):
        outcomes.setdefault(name, set()).add(outcome)
    assert outcomes, output[-3000:]
    passed = {name for name, found in outcomes.items() if found == {"PASSED"}}
    return passed, outcomes.keys() - passed
