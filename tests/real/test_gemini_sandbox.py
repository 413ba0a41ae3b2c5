"""The real gemini in the gateway's sandbox: its tools work, with a temporary folder of the session's own."""

from __future__ import annotations

import pytest

from drivers.runtime.sandbox import unavailable
from tests.model_server.scenarios import Scenario, Step, ToolUse, text_step
from tests.real.gemini import SCENARIOS, SHELL, WRITE, Gemini
from tests.support.acp_client import connect, prompt

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=f"no sandbox here: {unavailable()}")

COMMAND = "cat a.txt && echo $TMPDIR > $TMPDIR/file && cat $TMPDIR/file > named.txt; touch ../outside /dev/shm/portico-gemini"
SCENARIOS["confined"] = Scenario(
    (
        Step((ToolUse(WRITE, {"file_path": "a.txt", "content": "written\n"}),)),
        Step((ToolUse(SHELL, {"command": COMMAND, "description": "Try it"}),)),
        text_step("Done."),
    )
)


async def test_tools_work_in_the_sandbox(gemini: Gemini) -> None:
    gemini.agent["sandbox"] = "workspace-write"
    async with gemini.gateway() as running:
        client, connection = connect(running.gateway, "gemini")
        client.choose = lambda params: "allow_once"
        await client.initialize()
        answer = await client.request("session/prompt", prompt(await client.new(), "[[confined]]"))
        assert answer["stopReason"] == "end_turn"
        await connection.close()
    temporary = gemini.base / "data" / "temporary"
    assert (gemini.work / "a.txt").read_text() == "written\n"
    assert (gemini.work / "named.txt").read_text().startswith(f"{temporary}/t-")
    assert not (gemini.base / "outside").exists()
