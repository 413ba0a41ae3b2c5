"""The tests that the sources of the `openai` Python package come with, for the endpoints that Portico has.

They are written for a mock server that accepts everything. They check each answer strictly against the package's types.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.daemon import gateway_config, run_gateway
from tests.real.acp.programs import run_program
from tests.real.clis import require
from tests.real.model_apis.clients import FOLDER

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


async def outcomes(folder: Path, *files: str) -> tuple[set[str], set[str]]:
    """Run tests of the package; return the names of those that have passed with each of its clients, and of the others."""
    require(SOURCES / "tests", FOLDER)
    agents = {name: {"driver": "script", "cwd": str(folder)} for name in ("gpt-6-astra", "model")}
    config = gateway_config(folder, agents=agents)
    config["auth"]["keys"] = [KEY]
    python = require(FOLDER / "python" / "bin" / "python", FOLDER)
    command = (python, "-m", "pytest", "-q", "-rA", "-n", "0", "-p", "no:cacheprovider", "--tb=no", *files)
    async with run_gateway(config) as portico:
        env = {"TEST_API_BASE_URL": f"{portico.url}/v1", "PYTHONPATH": "", "PATH": os.environ["PATH"]}
        output = await run_program(*command, folder=SOURCES, env=env, code=None)
    outcomes: dict[str, set[str]] = {}
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) (\S+?)\[", output, re.MULTILINE):
        outcomes.setdefault(name, set()).add(outcome)
    assert outcomes, output[-3000:]
    passed = {name for name, found in outcomes.items() if found == {"PASSED"}}
    return passed, outcomes.keys() - passed
