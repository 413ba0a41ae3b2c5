"""aider, a program that edits files by a model's answers, with the real claude as its model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.real.acp.programs import run_program
from tests.real.clis import CLIS, require
from tests.real.models import Model, message_texts
from tests.support.daemon import KEY, RunningGateway

FOLDER = CLIS / "aider"
ANSWER = "a.txt\n```\nHello\n```\n"


async def test_a_message_edits_a_file(portico: RunningGateway, model: Model, tmp_path: Path) -> None:
    aider = FOLDER / "bin" / "aider"
    if (FOLDER / ".installed").exists() and not aider.exists():
        pytest.skip("aider needs Python 3.10 to 3.12, which `make test-real` has not found")
    require(aider, FOLDER)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("Goodbye\n")
    arguments = (
        "--model", "openai/claude", "--openai-api-base", f"{portico.url}/v1", "--openai-api-key", KEY, "--edit-format", "whole",
        "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes",
        "--analytics-disable", "--no-detect-urls", "--no-pretty", "--no-suggest-shell-commands",
        "--message", f"Say hello. [[echo:{ANSWER}]]", "a.txt",
    )  # fmt: skip
    output = await run_program(aider, *arguments, folder=folder, env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
    assert "Applied edit to a.txt" in output
    assert await asyncio.to_thread((folder / "a.txt").read_text) == "Hello\n"
    # claude has got aider's conversation: its instructions, the file, and the message.
    request = model.bodies("echo")[-1]
    assert "Goodbye" in "".join(message_texts(request, "user"))
    assert len(portico.gateway.sessions.held) == 1
